"""Memory of what a frozen bottom computes: each text is run through it once, by whichever process meets it first.

The states of a row of tokens are kept on disk (:mod:`fednlp.training.states`), under a digest of the row. They
are computed of the row alone, a batch of one without padding, so that they do not depend on the batch or the
process that met it first. Where nothing can or shall be kept, they are computed in the same way each time, so
that a full disk and ``runtime.cache_activations = false`` change no bit of a result.
"""

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednlp.training.bottom import Bottom
from fednlp.training.states import States

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_NO_MATTER = ("return_dict", "num_items_in_batch")
_OF_THE_HEAD = ("_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type")


def memory_folder(bottom: Bottom, cache: Path) -> Path:
    """Return the folder for the states of one frozen bottom: the same for the same weights, and for no others.

    Args:
        bottom: Its tensors, the configuration, the versions of torch and transformers, the kind of device and
            the number of threads all count, since each may change the last bits.
        cache: The cache folder.
    """
    import transformers

    tensors = bottom.tensors()
    config: Any = bottom.owner.config
    about = {name: value for name, value in config.to_dict().items() if name not in _OF_THE_HEAD}
    device = next(iter(tensors.values())).device.type
    digest = hashlib.sha256()
    said = [
        about,
        getattr(config, "_attn_implementation", None),
        len(bottom.blocks),
        [torch.__version__, transformers.__version__],
        [device, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()],
        [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()],
    ]
    digest.update(json.dumps(said, sort_keys=True, default=str).encode())
    for tensor in tensors.values():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return cache / "states" / digest.hexdigest()


class Memory:
    """Remembers what a frozen bottom computes of each text.

    Args:
        bottom: From :func:`fednlp.training.bottom.frozen_bottom`.
        folder: From :func:`memory_folder`; None to keep nothing.
        writer: The number of this process among those of the run.
    """

    def __init__(self, bottom: Bottom, folder: Path | None, writer: int) -> None:
        self.bottom = bottom
        self._names = list(inspect.signature(bottom.owner.forward).parameters)
        self.states = None if folder is None else States(folder, writer, bottom.width)

    def refresh(self) -> None:
        """Learn what other processes have computed since."""
        if self.states is not None:
            self.states.refresh()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Recall what is known, and learn what is not, at each call of the model in the block.

        The bottom does no work where token ids come with an attention mask of ones and zeros, and with nothing
        but token types beside. A call with anything else runs as usual: with a cache of keys and values, with
        positions or embeddings of its own, without a mask. What is recalled has no gradient and needs none.
        """
        self.bottom.still()
        hook = self.bottom.owner.register_forward_pre_hook(self._recall, with_kwargs=True)
        try:
            with self.bottom.replaced():
                yield
        finally:
            hook.remove()
            if self.states is not None:
                self.states.flush()

    def _recall(self, owner: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Before the owner of the stack runs: say what its bottom blocks return."""
        self.bottom.states = None
        given = dict(zip(self._names, args, strict=False)) | kwargs
        others = (value for name, value in given.items() if name not in (*_INPUTS, *_NO_MATTER))
        if any(value is not None and value is not False for value in others):
            return None
        inputs = {name: given[name] for name in _INPUTS if given.get(name) is not None}
        self.bottom.states = self._states_of(inputs)
        if self.bottom.states is None or len(args) > len(_INPUTS):
            return None
        return args, kwargs | self.bottom.options

    def _states_of(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Return a batch's states, zero in padding at the end; None where it is to be computed as usual."""
        rows = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        lengths = _lengths(rows)
        if lengths is None:
            return None
        made = np.zeros((*rows["input_ids"].shape, self.bottom.width), np.float32)
        for row, length in enumerate(lengths):
            alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs.items()}
            self._fill(made[row, :length], _key(rows, row, length), alone)
        return torch.from_numpy(made).to(inputs["input_ids"].device)

    def _fill(self, into: np.ndarray, key: bytes, alone: Mapping[str, Tensor]) -> None:
        """Write a row's states: those that are kept, or else newly computed ones."""
        place = None if self.states is None else self.states.find(key)
        if self.states is not None and place is not None and self.states.read(place, into):
            return
        into[:] = self.bottom.compute(alone)[0].cpu().numpy()
        if self.states is not None:
            self.states.add(key, into)


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
