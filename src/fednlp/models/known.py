"""The models that have a name here: pinned ones to fetch, and ones to build."""

from fednlp.hubs.package_index import MODEL_NAMES as _ENCODERS

FETCHED_NAMES: tuple[str, ...] = (*_ENCODERS, "smollm2")
BUILT_NAMES: tuple[str, ...] = ("lstm", "bilstm", "transformer")
ALL_NAMES: tuple[str, ...] = (*FETCHED_NAMES, *BUILT_NAMES)
LSTM = "fednlp-lstm"
"""The model type of :mod:`fednlp.models.lstm` in a ``config.json``."""
