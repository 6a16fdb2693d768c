"""Estimates of the peak memory of training or labelling: weights, gradients, optimiser, activations."""

from dataclasses import dataclass
from typing import Any

from fednlp.costs.training_time import TrainingDepth
from fednlp.errors import ConfigError

ALLOCATOR_OVERHEAD = 1.5
"""Bytes that glibc's allocator holds for a byte of activations, measured with its defaults on Linux.

It keeps freed blocks of up to 32 MB, and the gaps between used blocks do not fit later ones.
"""

_CHECKPOINTING_OVERHEAD = 3.0
"""The same with gradient checkpointing: what is kept of each layer lies between blocks that are soon freed."""

_GIVEN_BACK = 32 * 2**20
"""Bytes of a block above which that allocator gives it back at once (mallopt(3), DEFAULT_MMAP_THRESHOLD_MAX)."""
_NUMBER = 4
_LIBRARIES = 6_000_000
_OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class LayerSizes:
    """The sizes of a Transformer's layers.

    Attributes:
        hidden: Width of the hidden states.
        heads: Number of attention heads.
        intermediate: Width of the feed-forward network.
    """

    hidden: int
    heads: int
    intermediate: int


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model and its texts that the memory of a client depends on.

    Attributes:
        parameters: Number of parameters of the whole model, trained or not.
        length: Maximum number of tokens of a row.
        logits: Number of logits of a row, where they are many.
        rows: Maximum number of rows that labelling processes at once; None for a whole batch.
        recompute: True if training too processes at most ``rows`` at once, and recomputes their activations in the
            backward pass.
    """

    parameters: int
    shape: LayerSizes
    length: int
    logits: int = 0
    rows: int | None = None
    recompute: bool = False


def layer_sizes(config: Any) -> LayerSizes:
    """Return the sizes of a model's layers, by its Hugging Face configuration.

    Raises:
        ConfigError: The configuration has no known names of these sizes.
    """
    names = {
        "hidden": ("hidden_size", "d_model", "n_embd", "dim"),
        "heads": ("num_attention_heads", "encoder_attention_heads", "n_head", "n_heads"),
        "intermediate": ("intermediate_size", "encoder_ffn_dim", "d_ff", "n_inner", "hidden_dim"),
    }
    found = {
        key: next((size for name in keys if isinstance(size := getattr(config, name, None), int)), None)
        for key, keys in names.items()
    }
    hidden, heads = found["hidden"], found["heads"]
    if hidden is None or heads is None:
        raise ConfigError(
            f"memory cannot be predicted for a model of type {getattr(config, 'model_type', 'unknown')}: "
            "its configuration has no hidden_size and num_attention_heads"
        )
    return LayerSizes(hidden, heads, found["intermediate"] or 4 * hidden)


def peak_memory(
    parameters: int,
    trained: int,
    shape: LayerSizes,
    depth: TrainingDepth,
    *,
    batch: int,
    length: int,
    optimizer: str = "adamw",
    logits: int = 0,
    tied: int = 0,
    held: int = 0,
    checkpointing: bool = False,
    exact: bool = False,
) -> int:
    """Return the peak memory of a process for a model in 32 bits, in bytes, without its libraries.

    The sum of ::

        weights      4 parameters
        gradients    4 trained + 8 tied
        optimiser    8 trained (adam, adamw), 4 trained (adagrad, SGD with momentum), 0 (SGD)
        method       4 held
        libraries    6 MB that PyTorch allocates for itself once it computes
        1.5 times    activations + workspace, or the workspace of labelling if that is more; that of labelling once
                     where its scores, 4 a s^2 b, are a block above 32 MB

    Activations are what the backward pass needs of each layer, for ``s`` tokens, batch ``b``, width ``h``,
    intermediate width ``i`` and ``a`` heads ::

        trained whole     s b (40 h + 8 i) + 12 a s^2 b
        biases alone      s b (28 h + 4 i) + 12 a s^2 b    the inputs of the matrix products are not kept
        frozen            0
        embeddings        12 s b h where no layer is frozen (8 s b h with biases alone)
        head              12 logits

        checkpointing     4 s b h of each layer that is not frozen, and one layer as above; 3 times

        workspace         8 a s^2 b + 4 s b i beside what is kept
        of labelling      16 a s^2 b + 16 s b h + 8 logits

    Source: the method of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
    section 4.1, ``s b h (34 + 5 a s / h)`` in 16 bits. Here with 32 bits, and with what PyTorch's attention and
    dropout keep on a CPU, counted tensor by tensor. That biases alone keep fewer activations: Cai et al. 2020,
    "TinyTL", section 3. Checkpointing: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost". Adam's
    two moments: Kingma and Ba 2015. A model without attention dropout keeps no scores and takes less.

    Args:
        parameters: Number of parameters of the whole model, trained or not.
        trained: Number of trained parameters; 0 for labelling, which has no backward pass.
        shape: Sizes of its layers, from :func:`layer_sizes`.
        batch: Number of examples of a batch.
        length: Number of tokens of the longest example of a batch, with padding.
        optimizer: ``"sgd"``, ``"momentum"`` (SGD with momentum), ``"adam"``, ``"adamw"`` or ``"adagrad"``.
        logits: Number of logits of a batch, where they are many: masked tokens times vocabulary.
        tied: Number of trained parameters in a word embedding whose matrix is the head's too: the gradients of both
            uses, and their sum, are in memory together.
        held: Number of values that the method of federated learning holds beside the model that is trained.
        checkpointing: True if the backward pass computes the activations of each layer again.
        exact: Count only memory in use, for an allocator that returns freed blocks at once.

    Raises:
        ConfigError: The optimiser is unknown.

    >>> base = LayerSizes(hidden=768, heads=12, intermediate=3072)
    >>> whole = peak_memory(110_000_000, 110_000_000, base, TrainingDepth(12, 12), batch=8, length=128)
    >>> top = peak_memory(110_000_000, 14_000_000, base, TrainingDepth(12, 2), batch=8, length=128)
    >>> round(whole / 1e9, 1), round(top / 1e9, 1)
    (3.2, 0.9)
    """
    if optimizer not in _OPTIMIZER_STATES:
        raise ConfigError(f"no optimiser {optimizer!r:.40}: say one of {', '.join(_OPTIMIZER_STATES)}")
    tokens = batch * length
    scores = shape.heads * length * tokens
    overhead = 1.0 if exact else ALLOCATOR_OVERHEAD
    labelling: float = 16 * scores + 16 * tokens * shape.hidden + 8 * logits
    labelling *= 1.0 if _NUMBER * scores > _GIVEN_BACK else overhead
    if not trained:
        return _NUMBER * parameters + _LIBRARIES + int(labelling)
    whole = tokens * (40 * shape.hidden + 8 * shape.intermediate) + 12 * scores
    biases = tokens * (28 * shape.hidden + 4 * shape.intermediate) + 12 * scores if exact else whole
    kept = depth.trained_layers * whole + depth.bias_layers * biases
    held_by_allocator = overhead
    if checkpointing and kept:
        held_by_allocator = 1.0 if exact else _CHECKPOINTING_OVERHEAD
        inputs = (depth.trained_layers + depth.bias_layers) * _NUMBER * tokens * shape.hidden
        kept = inputs + (whole if depth.trained_layers else biases)
    kept += 12 * logits
    if not depth.frozen_layers:
        kept += (8 if depth.bias_layers else 12) * tokens * shape.hidden
    if depth.frozen_layers < depth.layers:
        kept += 8 * scores + _NUMBER * tokens * shape.intermediate
    fixed = _NUMBER * (parameters + trained * (1 + _OPTIMIZER_STATES[optimizer]) + 2 * tied + held)
    return fixed + _LIBRARIES + int(max(held_by_allocator * kept, labelling))


def client_memory(
    sizes: ModelSizes,
    depth: TrainingDepth,
    trained: int,
    *,
    batch: int,
    labelled: int = 0,
    optimizer: str = "adamw",
    tied: int = 0,
    held: int = 0,
    max_tokens: int = 0,
    checkpointing: bool = False,
) -> int:
    """Return the peak memory of a client in bytes: of training, or of labelling if it labels and that is more.

    Args:
        sizes: Sizes of model and texts.
        trained: Number of trained parameters.
        batch: Number of examples of a training batch; of a step, with ``max_tokens``.
        labelled: Number of examples of a labelling batch; 0 where clients do not label.
        optimizer: Name of the optimiser, as for :func:`peak_memory`.
        tied: Number of trained parameters in a word embedding whose matrix is the head's too.
        held: Number of values that the method holds beside the model that it trains.
        max_tokens: Number of tokens of a training batch with padding, if it is positive.
        checkpointing: True if the backward pass computes the activations of each layer again.

    Raises:
        ConfigError: The optimiser is unknown.

    >>> tiny = ModelSizes(4_400_000, LayerSizes(hidden=128, heads=2, intermediate=512), length=128)
    >>> trains, labels = (client_memory(tiny, TrainingDepth(2, 0), 20_000, batch=8, labelled=n) for n in (0, 64))
    >>> round(trains / 1e6), round(labels / 1e6)
    (33, 99)
    """

    def peak(rows: int, trained: int, cut: bool, length: int = sizes.length) -> int:
        rows = min(rows, sizes.rows) if cut and sizes.rows else rows
        return peak_memory(
            sizes.parameters,
            trained,
            sizes.shape,
            depth,
            batch=rows,
            length=length,
            optimizer=optimizer,
            tied=tied if trained else 0,
            held=held,
            logits=rows * sizes.logits,
            checkpointing=checkpointing,
        )

    shapes = _shapes(batch, sizes.length, max_tokens) if max_tokens else [(batch, sizes.length)]
    training = max(peak(rows, trained, sizes.recompute, length) for rows, length in shapes)
    return max(training, peak(labelled, 0, True)) if labelled else training


def _shapes(batch: int, length: int, max_tokens: int) -> list[tuple[int, int]]:
    """Return the rows and lengths of the largest batches that fit in a number of tokens with padding.

    >>> _shapes(64, 128, 512), _shapes(64, 128, 500), _shapes(2, 128, 500), _shapes(8, 128, 100)
    ([(4, 128), (5, 102)], [(3, 128), (4, 125)], [(2, 128)], [(1, 128), (2, 50)])
    """
    rows = max(1, max_tokens // length)
    if rows >= batch:
        return [(batch, length)]
    return [(rows, length), (rows + 1, max(1, max_tokens // (rows + 1)))]
