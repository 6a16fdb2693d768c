"""The sections of ``benchmarks/deployment.py``: what a deployment costs."""
