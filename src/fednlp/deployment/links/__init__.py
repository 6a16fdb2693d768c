"""Drivers: they move the frames of sessions, and know nothing of what is in them."""
