"""Cache of the activations of a frozen prefix: each text runs through it once, in the process that meets it first.

The states of a row of tokens are kept on disk (:mod:`fednlp.training.activation_store`), under a digest of the row.
They are computed of the row alone, a batch of one without padding, so that they do not depend on the batch or the
process that met it first. Where nothing can or shall be kept, they are computed in the same way each time, so
that a full disk and ``runtime.cache_activations = false`` change no bit of a result.
"""

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednlp.training.activation_store import ActivationStore
from fednlp.training.frozen_prefix import FrozenPrefix
from fednlp.training.kernels.onednn import OneDnnLinear

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_IRRELEVANT = ("return_dict", "num_items_in_batch")
_OF_THE_HEAD = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type")


def activation_cache_folder(prefix: FrozenPrefix, cache: Path) -> Path:
    """Return the folder for the states of one frozen prefix: the same for the same weights, and for no others.

    Args:
        prefix: Its tensors, the configuration, the versions of torch and transformers, the kind of device,
            the number of threads and oneDNN all count, since each may change the last bits.
        cache: The cache folder.
    """
    further: list[Any] = [len(prefix.blocks)]
    onednn = any(isinstance(module, OneDnnLinear) for block in prefix.blocks for module in block.modules())
    digest = digest_of_model(prefix.owner.config, prefix.tensors(), further + ["onednn"] * onednn)
    return cache / "states" / digest


def digest_of_model(config: Any, tensors: Mapping[str, Tensor], further: Sequence[Any] = ()) -> str:
    """Return a digest of all that decides the last bits of what a model, or a part of one, computes here.

    Args:
        config: The model's configuration.
        tensors: Its parameters and buffers, by name.
        further: JSON values that count too.
    """
    import transformers

    about = {name: value for name, value in config.to_dict().items() if name not in _OF_THE_HEAD}
    device = next(iter(tensors.values())).device.type
    digest = hashlib.sha256()
    identity = [
        about,
        getattr(config, "_attn_implementation", None),
        list(further),
        [torch.__version__, transformers.__version__],
        [device, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()],
        [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()],
    ]
    digest.update(json.dumps(identity, sort_keys=True, default=str).encode())
    for tensor in tensors.values():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class ActivationCache:
    """Keeps what a frozen prefix computes of each text.

    Args:
        prefix: From :func:`fednlp.training.frozen_prefix.find_frozen_prefix`.
        folder: From :func:`activation_cache_folder`; None to keep nothing.
        writer: The number of this process among those of the run.
    """

    def __init__(self, prefix: FrozenPrefix, folder: Path | None, writer: int) -> None:
        self.prefix = prefix
        self._names = list(inspect.signature(prefix.owner.forward).parameters)
        self.store = None if folder is None else ActivationStore(folder, writer, prefix.width)

    def refresh(self) -> None:
        """Read what other processes have computed since."""
        if self.store is not None:
            self.store.refresh()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Read or compute and keep the states at each call of the model inside the ``with`` block.

        The prefix does no work where token ids come with an attention mask of ones and zeros, and with no other
        input but token types. A call with anything else runs as usual: with a cache of keys and values, with
        positions or embeddings of its own, without a mask. Cached states have no gradient and need none.
        """
        self.prefix.eval_mode()
        hook = self.prefix.owner.register_forward_pre_hook(self._provide_states, with_kwargs=True)
        try:
            with self.prefix.returning_states():
                yield
        finally:
            hook.remove()
            if self.store is not None:
                self.store.flush()

    def _provide_states(
        self, owner: Any, args: Any, kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Set what the blocks of the prefix return, before the owner of the stack runs."""
        self.prefix.states = None
        given = dict(zip(self._names, args, strict=False)) | kwargs
        others = (value for name, value in given.items() if name not in (*_INPUTS, *_IRRELEVANT))
        if any(value is not None and value is not False for value in others):
            return None
        inputs = {name: given[name] for name in _INPUTS if given.get(name) is not None}
        self.prefix.states = self._states_of(inputs)
        if self.prefix.states is None or len(args) > len(_INPUTS):
            return None
        return args, kwargs | self.prefix.options

    def _states_of(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Return a batch's states, zero in padding at the end; None where it is to be computed as usual."""
        rows = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        lengths = _lengths(rows)
        if lengths is None:
            return None
        made = np.zeros((*rows["input_ids"].shape, self.prefix.width), np.float32)
        for row, length in enumerate(lengths):
            alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}
            self._fill(made[row, :length], _key(rows, row, length), alone)
        return torch.from_numpy(made).to(inputs["input_ids"].device)

    def _fill(self, into: np.ndarray, key: bytes, alone: Mapping[str, Tensor]) -> None:
        """Write a row's states: those that are kept, or else newly computed ones."""
        place = None if self.store is None else self.store.find(key)
        if self.store is not None and place is not None and self.store.read(place, into):
            return
        into[:] = self.prefix.compute(alone)[0].cpu().numpy()
        if self.store is not None:
            self.store.add(key, into)


def _lengths(rows: Mapping[str, np.ndarray]) -> list[int] | None:
    """Return how many tokens each row has up to its last one; None where rows cannot be told from padding."""
    ids, mask = rows.get("input_ids"), rows.get("attention_mask")
    if ids is None or mask is None or ids.ndim != 2 or any(r.shape != ids.shape for r in rows.values()):
        return None
    ones = mask == 1
    if not ones.any(1).all() or not (ones | (mask == 0)).all():
        return None
    lengths: list[int] = (ids.shape[1] - ones[:, ::-1].argmax(1)).tolist()
    return lengths


def _key(rows: Mapping[str, np.ndarray], row: int, length: int) -> bytes:
    """Return the digest of one row: of its tokens, its types if any, and of padding that comes before them."""
    digest = hashlib.blake2b(length.to_bytes(8, "little"), digest_size=16)
    for name, values in rows.items():
        digest.update(name.encode())
        digest.update(values[row, :length].astype(np.int64).data)
    return digest.digest()
