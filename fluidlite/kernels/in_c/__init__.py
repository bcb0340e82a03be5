"""Thin wrappers of the extension: they allocate outputs and hand over arrays that it can take."""
