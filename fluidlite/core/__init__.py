"""The program as data, its written forms, its invariants and its dataflow."""
