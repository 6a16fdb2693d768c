"""Secure sums between machines: the protocols over the sessions of a deployment."""
