"""Where pinned models and data sets are downloaded from, and the cache that keeps them."""
