"""The server's half of secure sums."""
