"""Load what Hugging Face stores, quietly and never with code that a model brings along.

What a loader raises becomes an error of one sentence (:func:`explain_load_errors`).
"""

import importlib
import logging
import os
import re
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fednlp.disk import POINTED, POINTER, read_whole
from fednlp.errors import FednlpError, ModelError
from fednlp.formatting.safe_text import clean
from fednlp.models.folder_bounds import LONGEST_CONFIG, folder_config, within_bounds, without_hub
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
    raise _quantised(source, f"{clean(method)[:40]}: quantization_config in its config.json")


def _quantised(source: str, how: str) -> ModelError:
    return ModelError(
        f"the weights in {source} are quantised ({how}), and float32 weights are trained: give the checkpoint that was "
        "quantised, in float32, float16 or bfloat16"
    )


_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Types of numbers that are trained, as files of safetensors call them."""
_LOADABLE = r"(model\.safetensors|pytorch_model\.bin)(\.index\.json)?"
_OTHER_WEIGHTS = (
    (r".*-\d+-of-\d+\.(safetensors|bin)", "a part, without the file that says what is where: fetch {} too"),
    (r".*\.gguf", "a GGUF file: give the file itself in place of its folder"),
    (
        r".*\.(onnx|h5|msgpack|tflite|pb|mlmodel)|openvino_model\..*",
        "of other software: give PyTorch's weights",
    ),
    (r".*\.safetensors", "not called model.safetensors: rename it, if it has the weights of the whole model"),
    (
        r"(optimizer|scheduler|training_args|rng_state|scaler).*\.(pt|pth|bin)",
        "no weights: give a folder that save_pretrained wrote",
    ),
    (
        r".*\.(bin|pt|pth|ckpt|distcp)",
        "not as save_pretrained writes it: load it where it was made, and save it with save_pretrained",
    ),
)
"""Names of files beside which there are no weights to be loaded, and what they are."""


def has_weights(source: str) -> bool:
    """Return whether a model starts from a checkpoint; a folder with a configuration alone starts from the seed."""
    return not Path(source).is_dir() or _weights_in(Path(source)) != []


def _weights_in(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, also of kinds that cannot be loaded, and those of its ``onnx``."""
    there = [*folder.iterdir(), *(folder / "onnx").glob("*.onnx")]
    kinds = [_LOADABLE, *(kind for kind, _ in _OTHER_WEIGHTS)]
    return [path for path in sorted(there) if any(re.fullmatch(kind, path.name) for kind in kinds)]


def refuse_weights(source: str) -> str:
    """Refuse a folder whose weights cannot be loaded or trained, by their names and types.

    Returns:
        The type of its weights, such as ``"bfloat16"``; empty where it is not known, or there are several.

    Raises:
        ModelError: They are of other software or of few bits, or a part of them is not there.
    """
    folder = Path(source)
    if not folder.is_dir():
        return ""
    found = _weights_in(folder)
    if not any(re.fullmatch(_LOADABLE, path.name) for path in found):
        for kind, what in _OTHER_WEIGHTS:
            if other := next((path for path in found if re.fullmatch(kind, path.name)), None):
                index = f"{other.name.partition('-')[0]}{other.suffix}.index.json"
                raise ModelError(f"{source} has no weights to train: {other.name} is {what.format(index)}")
    types: dict[str, str] = {}
    for path in found:
        if path.suffix == ".safetensors":
            types |= _types_in(path)
    strange = next(
        (name for name, one in types.items() if name.endswith("weight") and one not in _FLOATS), None
    )
    if strange is not None:
        raise _quantised(source, f"{clean(strange)[:80]} is {types[strange]}")
    kinds = {one for one in types.values() if one in _FLOATS}
    return _FLOATS[kinds.pop()] if len(kinds) == 1 else ""


def _types_in(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118


def _refuse_placeholders(folder: Path) -> None:
    """Refuse a folder in which a small text of git-lfs stands in the place of a file."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size < _LARGEST_PLACEHOLDER:
            with path.open("rb") as file:
                if file.read(len(POINTER)) == POINTER:
                    raise ModelError(f"{path} is {POINTED}")


def refuse_unusable(model: Any, source: str, fresh: Collection[str] = ()) -> None:
    """Refuse a model that was loaded and cannot be trained, whatever its data.

    Args:
        source: Where it is from.
        fresh: Names of the weights that were drawn anew.

    Raises:
        ModelError: It reads no tokens, half of its matrices have one number throughout, or some numbers are not finite.
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
    for name, buffer in model.named_buffers():
        floats = buffer.is_floating_point() and not buffer.is_meta
        if floats and bool((buffer.isnan() | buffer.isposinf()).any()):  # minus infinity stands in masks
            raise ModelError(
                f"the model in {source} is damaged: {name} has numbers that are not finite (NaN or infinity): "
                "fetch it again, or give the checkpoint before it diverged"
            )
    matrices = [one.detach() for name, one in parameters if one.dim() > 1 and name not in fresh]
    if matrices and 2 * sum(map(_is_constant, matrices)) >= len(matrices):
        raise ModelError(
            f"the model in {source} is damaged: all its weights are zero, or one number throughout: fetch or save it "
            "again"
        )


@contextmanager
def _tokenizer_panics(source: str) -> Iterator[None]:
    """Replace a panic of the tokenizers library, which Python does not take for an error, by one.

    Raises:
        ModelError: The block panicked.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        first = next(iter(str(error).splitlines()), "")
        raise ModelError(
            f"the tokenizer in {source} fails ({first:.200}): copy tokenizer.json from the model again"
        ) from None


def guarded(tokenizer: Any, source: str) -> Any:
    """Return a tokenizer whose panics are errors, under its own name: it is saved as it was."""
    kind = type(tokenizer)

    def guard(name: str) -> Any:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            with _tokenizer_panics(source):
                return getattr(super(made, self), name)(*args, **options)

        return call

    made: Any = type(kind.__name__, (kind,), {name: guard(name) for name in ("__call__", "decode")})
    tokenizer.__class__ = made
    return tokenizer


def _is_constant(matrix: Any) -> bool:
    """Say whether a matrix has one number throughout; of most matrices, a few numbers tell that it has not."""
    numbers = matrix.reshape(-1)
    few = numbers[:: max(1, len(numbers) // 1024)]
    return bool((few == few[0]).all()) and bool((numbers == numbers[0]).all())


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
    with suppress(OSError):  # there is none, or it is refused when its bounds are checked
        if LSTM.encode() in read_whole(Path(source) / "config.json", LONGEST_CONFIG):
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
        with warnings.catch_warnings(), _tokenizer_panics(source):
            warnings.simplefilter("ignore")
            yield
    except FednlpError:
        raise
    except Exception as error:  # the loaders raise exceptions of every kind
        if "trust_remote_code" in str(error):  # how transformers asks for consent
            raise _needs_own_code(source) from None
        first, *more = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
        if "deserializing header" in reason:
            reason += "; its file of weights is damaged or cut short: fetch it again"
        if Path(source).exists():
            raise ModelError(f"the model in {source} cannot be loaded: {reason}") from None
        raise ModelError(
            f'there is no model "{source}" here and the hub did not give it ({reason}): pass one of '
            f"{', '.join(ALL_NAMES)}, or the folder of a model"
        ) from None
