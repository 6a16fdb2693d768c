"""The sections of a report: each reads runs and yields the blocks under one heading."""
