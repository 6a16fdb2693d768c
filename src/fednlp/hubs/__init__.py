"""Downloads of pinned models and data sets, and their cache."""
