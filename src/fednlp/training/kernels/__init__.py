"""Faster ways to compute the same numbers: what PyTorch and transformers do not do yet.

Each has a slow path that it stands in for, and falls back on it. docs/architecture.md says when each can go.
"""
