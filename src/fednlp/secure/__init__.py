"""Secure aggregation: the server learns the sum of the clients' updates and nothing else."""
