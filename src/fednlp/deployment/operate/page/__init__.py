"""A read-only page that shows a federation in a browser, and its numbers for Prometheus."""
