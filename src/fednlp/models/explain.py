"""Quiet loading, and one sentence in place of whatever a loader raises."""

import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fednlp.errors import FednlpError, ModelError
from fednlp.models.known import ALL_NAMES, LSTM
from fednlp.models.load import needs_own_code


def quiet() -> None:
    """Keep transformers' own banners, bars and reports off the screen."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _make_known(source: str) -> None:
    """Let transformers know the LSTM before it meets one; for any other model the import would be in vain."""
    config = Path(source) / "config.json"
    if config.is_file() and LSTM in config.read_text(encoding="utf-8", errors="replace"):
        importlib.import_module("fednlp.models.lstm")


@contextmanager
def explained(source: str) -> Iterator[None]:
    """Turn what transformers raises for a missing or unfit model into one sentence."""
    quiet()
    try:
        _make_known(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FednlpError:
        raise
    except Exception as error:  # loaders of many hands raise anything
        if "trust_remote_code" in str(error):  # how transformers asks for consent
            raise needs_own_code(source) from None
        first, *more = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
        if Path(source).exists():
            raise ModelError(f"the model in {source} cannot be loaded: {reason}") from None
        raise ModelError(
            f'there is no model "{source}" here and the hub did not give it ({reason}): pass one of '
            f"{', '.join(ALL_NAMES)}, or the folder of a model"
        ) from None
