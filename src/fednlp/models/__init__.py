"""Models by name, folder or hub name, or from scratch, with the right head for the task."""
