"""A federation between machines that keep their texts: a server, and sites that join it."""
