"""The parameter server: who takes part, when a step counts, and what it changes."""
