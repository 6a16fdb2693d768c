"""Where the work is done: in this process alone, or with worker processes alongside it."""
