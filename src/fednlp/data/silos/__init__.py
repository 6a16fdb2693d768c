"""Silos: files or folders that hold the examples of one client each."""
