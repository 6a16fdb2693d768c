"""Load what Hugging Face stores, quietly and never with code that a model brings along.

What a loader raises becomes an error of one sentence (:func:`explain_load_errors`).
"""

import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fednlp.disk import POINTED, POINTER
from fednlp.errors import FednlpError, ModelError
from fednlp.formatting.safe_text import clean
from fednlp.models.folder_bounds import folder_config, within_bounds, without_hub
from fednlp.models.registry import ALL_NAMES, LSTM

_DRAWING = ("uniform_", "normal_", "kaiming_uniform_")
"""Functions of ``torch.nn.init`` that a mode is asked about; the others draw by methods of tensors."""

_LARGEST_PLACEHOLDER = 1024


def load_pretrained(auto: Any, source: str, **options: Any) -> Any:
    """Load a configuration, a tokenizer or a model by an auto class; standard input is never asked for consent.

    What lies in a folder is loaded from there alone, whatever its files name, and after its bounds were checked.

    Args:
        auto: ``AutoConfig``, ``AutoTokenizer``, or the auto class of a head.
        source: A folder or a hub name.
        options: Further arguments of ``from_pretrained``.

    Raises:
        ModelError: The configuration asks for kernels of a hub repository, names another model, or has a size beyond
            all models; or the weights are quantised.
        ValueError: The model needs code of its own; :func:`explain_load_errors` reports that in one line.
    """
    if not Path(source).is_dir():
        loaded = auto.from_pretrained(source, trust_remote_code=False, **options)
    else:
        if "gguf_file" not in options:
            folder_config(source)
        with without_hub(), within_bounds():
            loaded = auto.from_pretrained(source, trust_remote_code=False, local_files_only=True, **options)
    _refuse_kernels(loaded, source)
    _refuse_quantised(loaded, source)
    return loaded


def empty_model(auto: Any, config: Any, **options: Any) -> Any:
    """Build a model of a configuration, with fresh weights; nothing is fetched for it.

    Raises:
        ModelError: It has too many modules.
        ValueError: The model needs code of its own, as for :func:`load_pretrained`.
    """
    with without_hub(), within_bounds():
        return auto.from_config(config, trust_remote_code=False, **options)


@contextmanager
def without_draws(*, of_shapes_alone: bool = False) -> Iterator[None]:
    """Build models inside the ``with`` block without drawing weights: for weights that the caller sets.

    Memory that is not written takes no room. PyTorch imports sympy to draw, to count a range, or to copy an order of
    axes on the meta device; none of it is done there.

    Args:
        of_shapes_alone: Draw weights that have memory, as a checkpoint lacks them, and nothing on the meta device.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from transformers import initialization

    drawing = {getattr(torch.Tensor, name) for name in ("normal_", "uniform_", "bernoulli_", "exponential_")}
    # transformers puts functions of its own into the place of those of PyTorch while it draws.
    places = (torch.nn.init, initialization)
    drawing |= {getattr(place, name) for place in places for name in _DRAWING}

    class Undrawn(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if func in drawing:
                tensor = args[0] if args else kwargs["tensor"]
                if tensor.is_meta or not of_shapes_alone:
                    return tensor
            if func is torch.arange and kwargs.get("device") == torch.device("meta"):
                return func(*args, **kwargs | {"device": "cpu"}).to("meta")
            if func is torch.empty_like and args and args[0].is_meta:
                if args[0].is_contiguous():
                    kwargs = {"memory_format": torch.contiguous_format} | kwargs
                made = func(*args, **kwargs)
                return made if made.is_meta else made.zero_()  # transformers leaves some biases as they are
            return func(*args, **kwargs)

    with Undrawn():
        yield


@contextmanager
def without_memory() -> Iterator[None]:
    """Build models inside the ``with`` block as shapes alone, on PyTorch's meta device; nothing is drawn."""
    import torch

    with without_draws(), torch.device("meta"):
        yield


def _needs_own_code(source: str) -> ModelError:
    """Return the error for a model that works with code of its own alone."""
    return ModelError(
        f"the model in {source} needs code of its own (auto_map in its configuration), and fednlp runs no code that "
        "comes with a model: use a model of an architecture that transformers has"
    )


def _refuse_kernels(config: Any, source: str) -> None:
    """Refuse attention kernels of a hub repository, which are compiled code that a configuration may name."""
    from transformers import PretrainedConfig

    if not isinstance(config, PretrainedConfig):
        return
    parts = [config, *(part for part in vars(config).values() if isinstance(part, PretrainedConfig))]
    named = [str(part._attn_implementation) for part in parts if "/" in str(part._attn_implementation)]
    if named:
        raise ModelError(
            f"the model in {source} asks for the attention kernels {named[0]}, and fednlp runs no code that comes with "
            "a model: take attn_implementation out of its config.json"
        )


def _refuse_quantised(config: Any, source: str) -> None:
    """Refuse weights of a few bits: they are read by libraries of their own, and cannot be trained."""
    from transformers import PretrainedConfig

    found = getattr(config, "quantization_config", None) if isinstance(config, PretrainedConfig) else None
    if not found:
        return
    options = found if isinstance(found, dict) else vars(found)
    method = str(getattr(options.get("quant_method"), "value", options.get("quant_method") or "bitsandbytes"))
    raise ModelError(
        f"the weights in {source} are quantised ({clean(method)[:40]}: quantization_config in its config.json), and "
        "float32 weights are trained: give the checkpoint that was quantised, in float32, float16 or bfloat16"
    )


def _refuse_placeholders(folder: Path) -> None:
    """Refuse a folder in which a small text of git-lfs stands in the place of a file."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size < _LARGEST_PLACEHOLDER:
            with path.open("rb") as file:
                if file.read(len(POINTER)) == POINTER:
                    raise ModelError(f"{path} is {POINTED}")


def refuse_unusable(model: Any, source: str) -> None:
    """Refuse a model that was loaded and cannot be trained, whatever its data.

    Raises:
        ModelError: It reads no tokens, its weights are all zero, or some are no finite numbers.
    """
    try:
        model.get_input_embeddings()
    except NotImplementedError:
        raise ModelError(
            f"{model.config.model_type} models have no table of token embeddings (they read characters), and fednlp "
            "trains models that have one: use another, e.g. bert-tiny"
        ) from None
    parameters = [(name, one) for name, one in model.named_parameters() if not one.is_meta]
    for name, one in parameters:
        # A sum is cheaper than a look at each number, and not finite where one of them is not.
        if not one.detach().sum().isfinite() and (broken := int((~one.detach().isfinite()).sum())):
            raise ModelError(
                f"the model in {source} is damaged: {broken:,} of the {one.numel():,} weights of {name} are not finite "
                "(NaN or infinity): fetch it again, or give the checkpoint before it diverged"
            )
    if parameters and not any(bool(one.detach().any()) for _, one in parameters if one.dim() > 1):
        raise ModelError(
            f"the model in {source} is damaged: all its weights are zero: fetch or save it again"
        )


def silence_transformers() -> None:
    """Keep transformers' own banners, bars and reports off the screen."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _register_lstm(source: str) -> None:
    """Register the LSTM with transformers if the source is one; other models do not need the import."""
    config = Path(source) / "config.json"
    if config.is_file() and LSTM in config.read_text(encoding="utf-8", errors="replace"):
        importlib.import_module("fednlp.models.lstm")


@contextmanager
def explain_load_errors(source: str) -> Iterator[None]:
    """Replace whatever transformers raises for a missing or unfit model by an error of one sentence.

    Raises:
        ModelError: The block raised an exception that is not one of fednlp's own.
    """
    silence_transformers()
    try:
        _refuse_placeholders(Path(source))
        _register_lstm(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except FednlpError:
        raise
    except Exception as error:  # the loaders raise exceptions of every kind
        if "trust_remote_code" in str(error):  # how transformers asks for consent
            raise _needs_own_code(source) from None
        first, *more = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
        if Path(source).exists():
            raise ModelError(f"the model in {source} cannot be loaded: {reason}") from None
        raise ModelError(
            f'there is no model "{source}" here and the hub did not give it ({reason}): pass one of '
            f"{', '.join(ALL_NAMES)}, or the folder of a model"
        ) from None
