"""The parts of ``benchmarks/faults.py``: what a federation survives."""
