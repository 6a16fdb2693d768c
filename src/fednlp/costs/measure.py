"""Measure this machine: seconds per example of a model at several depths, as a device profile."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.processor import processor

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH, LENGTH = 8, 64
_SECONDS = 1.5
_STEPS = 30

OnProgress = Callable[[int, int, str], None]


def measure_device(
    models: list[str],
    name: str,
    *,
    batch: int = BATCH,
    length: int = LENGTH,
    on_progress: OnProgress = lambda done, of, what: None,
) -> dict[str, Any]:
    """Measure this machine; return its profile as a table, which is TOML that ``load_profile`` reads.

    Each model is trained with AdamW on batches of random tokens: whole, by its biases, and with some of its layers
    frozen and their outputs cached; the seconds are the median over the steps of about a second. The GPU is measured
    where there is one.

    Args:
        models: Names, folders or hub names of Transformer encoders or decoders.
        name: The profile's name.
        batch: Number of examples of a batch.
        length: Number of tokens of an example.
        on_progress: Called with measurements done, of how many, and the name of the next.

    Raises:
        ConfigError: A model has no single stack of layers, or the sizes do not fit it.
        ModelError: A model cannot be found.
    """
    training: dict[str, Any] = {"models": {}, "depths": {}}
    inference: dict[str, Any] = {"models": {}, "depths": {}}
    shares = []
    for model in models:
        for kind, depth, seconds in _measurements(model, batch, length, on_progress):
            table = inference if kind == "inference" else training
            if kind == "bias":
                shares.append(seconds)
            elif depth is None:
                table["models"][_called(model)] = seconds
            else:
                table["depths"].setdefault(_called(model), {})[str(depth)] = seconds
        shares[-1] = min(1.0, shares[-1] / training["models"][_called(model)])
    training["bias"] = _short(statistics.fmean(shares))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    source = _source(models, batch, length)
    return {"name": name, "source": source, "memory": memory, "training": training, "inference": inference}


def _called(model: str) -> str:
    return Path(model).name


def _measurements(
    name: str, batch: int, length: int, on_progress: OnProgress
) -> Iterator[tuple[str, int | None, float]]:
    """Yield kind (training, bias, inference), depth (None for the whole model) and seconds an example."""
    layers, build = _builder(name)
    depths = _depths(layers)
    jobs: list[tuple[Any, int | None]] = [("all", None), (["bias", "head"], None)]
    jobs += [(["head", *([f"layer.{layers - d}-{layers - 1}"] if d else [])], d) for d in depths]
    for number, (train, depth) in enumerate(jobs):
        what = "biases" if number == 1 else "whole" if depth is None else f"{depth} of {layers} layers"
        on_progress(number, len(jobs), f"{_called(name)}, {what}")
        model = build(train)
        with _cached_states(model, depth, batch, length) as batches:
            if batches is None:
                continue
            kind = "bias" if number == 1 else "training"
            yield kind, depth, _timed(_trainer(model, batches), batch)
            if number != 1:
                yield "inference", depth, _timed(_labeller(model, batches), batch)
    on_progress(len(jobs), len(jobs), _called(name))


def _depths(layers: int) -> list[int]:
    """Return depths from only the head to all layers but one.

    >>> _depths(1), _depths(2), _depths(24)
    ([0], [0, 1], [0, 1, 8, 16, 23])
    """
    most = layers - 1
    return sorted({0, min(1, most), layers // 3, 2 * layers // 3, most})


def _builder(name: str) -> tuple[int, Callable[[Any], "nn.Module"]]:
    """Return a model's number of layers, and a function that builds it with a selection of trained parts."""
    from fednlp.models.groups import groups_of
    from fednlp.models.pretrained import new_model
    from fednlp.models.resolve import resolve_model
    from fednlp.models.selection import apply_selection, parse_selection

    source = resolve_model(name)

    def build(train: Any) -> "nn.Module":
        model = new_model(source, "AutoModelForSequenceClassification", {}, {})
        config: Any = model.config
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0  # some classifiers look for it in every batch
        apply_selection(model, parse_selection(train))
        return model.to(_device())

    groups = groups_of(build("all")).values()
    layers = {int(group.rpartition(".")[2]) for group in groups if group.startswith("layer.")}
    if not layers:
        raise ConfigError(f"{name} has no single stack of layers to measure: give an encoder or a decoder")
    return max(layers) + 1, build


def _device() -> "torch.device":
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def _cached_states(
    model: "nn.Module", depth: int | None, batch: int, length: int
) -> "Iterator[Callable[[], dict[str, Any]] | None]":
    """Yield a function that makes a batch, frozen layers' outputs cached; None where these cannot be skipped."""
    import torch

    from fednlp.training.frozen_prefix import find_frozen_prefix

    config: Any = model.config
    limit = getattr(config, "max_position_embeddings", length) or length
    if not 1 <= length <= limit or batch < 1:
        raise ConfigError(
            f"batches of {plural(batch, 'text')} of {plural(length, 'token')}: this model reads 1 to {limit}, and a "
            "batch has 1 text or more"
        )
    ids = torch.randint(1, config.vocab_size, (batch, length), device=_device())
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    prefix = None if depth is None else find_frozen_prefix(model)
    if depth is not None and prefix is None:
        yield None
        return
    states = None if prefix is None else prefix.compute(inputs)

    def made() -> dict[str, Any]:
        if prefix is not None:
            prefix.states = states
        return inputs | (prefix.options if prefix is not None else {})

    with nullcontext() if prefix is None else prefix.returning_states():
        yield made


def _trainer(model: "nn.Module", batches: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Return a function that runs one local step."""
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def run() -> None:
        model.train()
        inputs = batches()
        labels = torch.zeros(len(inputs["input_ids"]), dtype=torch.long, device=_device())
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def _labeller(model: "nn.Module", batches: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Return a function that labels one batch."""
    import torch

    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model(**batches())

    return run


def _timed(run: Callable[[], None], batch: int) -> float:
    """Return the median seconds an example over some steps, the first two left out."""
    import torch

    taken: list[float] = []
    for number in range(_STEPS):
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if number > 1:
            taken.append(time.perf_counter() - start)
        if sum(taken) > _SECONDS and len(taken) > 2:
            break
    return _short(statistics.median(taken) / batch)


def _short(number: float) -> float:
    """Return a number with four significant digits, the precision of the measurement."""
    return float(f"{number:.4g}")


def _source(models: list[str], batch: int, length: int) -> str:

    import torch
    import transformers

    cores = f"{plural(os.cpu_count() or 1, 'core')}, {plural(torch.get_num_threads(), 'thread')}"
    on = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{processor() or platform.machine()}, {cores}"
    )
    return (
        f"measured on {date.today().isoformat()} with fednlp {version('fednlp')}, PyTorch {torch.__version__}, "
        f"transformers {transformers.__version__}: {', '.join(map(_called, models))}; {on}; AdamW, batches of "
        f"{plural(batch, 'text')} of {plural(length, 'token')}, median; frozen layers remembered"
    )
