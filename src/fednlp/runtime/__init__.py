"""Where the work is done: in this process alone, or with worker processes alongside it."""

ENGINES = {"pool": "fednlp.runtime.pool:Pool"}
"""What ``[runtime] engine`` may name: name -> ``"module:Class"`` (:mod:`fednlp.runtime.engine`)."""
