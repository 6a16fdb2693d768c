"""Run an experiment on this machine: build its parts, train round after round, evaluate, write a run directory."""
