"""Few labels between machines: each site keeps its own, and the server knows how many there are."""
