"""Rounds with few labels, whoever holds these."""
