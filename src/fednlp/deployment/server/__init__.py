"""The server: it sets sites up, runs the rounds with them, and goes on after a stop."""
