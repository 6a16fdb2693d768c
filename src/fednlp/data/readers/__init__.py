"""Readers of published formats: one module a format, each a generator of rows of strings."""
