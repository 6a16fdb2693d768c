"""Differential privacy of a run: noise in whole numbers, and what a run of T rounds gives away."""
