"""Runs programs: scopes, plans, the executor."""
