"""Readers of file formats and published data sets, one module each: generators of rows of strings."""
