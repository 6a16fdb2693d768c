"""A federation between machines that keep their texts."""
