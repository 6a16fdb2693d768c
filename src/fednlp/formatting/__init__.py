"""Numbers, names and texts as people read them."""
