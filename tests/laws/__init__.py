"""The laws of a run, each tried on one table of configurations."""
