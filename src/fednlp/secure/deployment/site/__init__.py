"""A site's half of secure sums."""
