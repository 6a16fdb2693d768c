"""Where pinned models and data come from, and where they are kept."""
