"""The models that have a name in fednlp: pinned ones to fetch, and ones built from scratch."""

from fednlp.hubs.package_index import MODEL_NAMES as _ENCODERS

FETCHED_NAMES: tuple[str, ...] = (*_ENCODERS, "smollm2")
FROM_SCRATCH_NAMES: tuple[str, ...] = ("lstm", "bilstm", "transformer")
ALL_NAMES: tuple[str, ...] = (*FETCHED_NAMES, *FROM_SCRATCH_NAMES)
LSTM = "fednlp-lstm"
"""The model type of :mod:`fednlp.models.lstm` in a ``config.json``."""
