"""Where the work is done: in this process alone, or with worker processes alongside it."""

ENGINES = {
    "pool": "fednlp.runtime.pool:Pool",
    "mpi": "fednlp.runtime.mpi:Mpi",
    "ray": "fednlp.runtime.ray:Ray",
}
"""What ``[runtime] engine`` may name: name -> ``"module:Class"`` (:mod:`fednlp.runtime.engine`)."""
