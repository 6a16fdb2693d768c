"""Sentence embeddings: one vector per text, kept in the cache."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.partition.npz import read_arrays

Progress = Callable[[int, int], None]

ENCODER = "minilm"
"""The encoder by default."""
_AT_ONCE = 8192
_BATCH = 32


def embed(
    texts: Sequence[str],
    encoder: str = ENCODER,
    *,
    max_length: int = 64,
    progress: Progress | None = None,
    device: str = "cpu",
    groups: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Return the mean of the encoder's last hidden states over each text's tokens, of length 1.

    The mean pooling and normalisation of Sentence-BERT (Reimers and Gurevych, 2019, section 3), which
    all-MiniLM-L6-v2 was trained with. Earlier embeddings are read from the cache.

    Args:
        texts: One text an example (N); it may be empty.
        encoder: ``"minilm"``, the folder of an encoder in Hugging Face format, or a hub name.
        max_length: Tokens of each text that are read, from its beginning, 2 or more. 64 takes about two
            minutes for ten thousand texts on one core, and shows a text's topic.
        progress: Called with the number of texts done and N.
        device: The PyTorch device, e.g. ``"cuda"``.
        groups: How many texts each group has, in their order. The texts of a group are embedded as they would be by
            themselves, to the last bit. By default all are one group.

    Returns:
        float32 (N, width).

    Raises:
        ModelError: The encoder cannot be found or loaded.
        FetchError: A known encoder is not cached and cannot be downloaded.
        RunError: The cache cannot be written.
    """
    from fednlp.disk import atomic
    from fednlp.hubs.cache import cache_dir
    from fednlp.models.resolve import resolve_model

    source = resolve_model(encoder)
    path = cache_dir() / "embeddings" / f"{_key(texts, source, max_length, groups)}.npz"
    vectors = _cached(path, len(texts))
    if vectors is None:
        vectors = _encode(texts, source, max_length, progress, device, groups)
        with atomic(path) as file:
            np.savez(file, vectors=vectors)
    return vectors


def _key(texts: Sequence[str], source: str, max_length: int, groups: Sequence[int] | None = None) -> str:
    """Return a digest of the inputs of the vectors: the texts, the encoder's files, the length, the groups."""
    from fednlp.disk import sha256_of

    content = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        content.update(len(encoded).to_bytes(8, "little") + encoded)
    folder = Path(source)
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    parts = {path.name: sha256_of(path) for path in files} or source
    inputs = [content.hexdigest(), parts, max_length, *([] if groups is None else [[*groups]])]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]


def _cached(path: Path, rows: int) -> NDArray[np.float32] | None:
    """Return the vectors in the cache, or None where there are none or the file was damaged."""
    try:
        vectors = read_arrays(path, {"vectors": ("f", 2)})["vectors"]
    except (OSError, ValueError):
        return None
    return vectors if vectors.dtype == np.float32 and len(vectors) == rows else None


def _encode(
    texts: Sequence[str],
    source: str,
    max_length: int,
    progress: Progress | None,
    device: str,
    groups: Sequence[int] | None,
) -> NDArray[np.float32]:
    import torch

    from fednlp.models.pretrained import load_tokenizer, pretrained_model

    tokenizer = load_tokenizer(source)
    model: Any = pretrained_model(source, "AutoModel", {}, {}, seed=0).eval().to(device)
    if model.config.is_encoder_decoder:
        model = model.get_encoder()
    vectors = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    done = 0
    for start, stop in _parts([len(texts)] if groups is None else groups):
        part = list(texts[start:stop])
        tokens = tokenizer(part, truncation=True, max_length=max_length)["input_ids"]
        by_length = np.argsort([-len(ids) for ids in tokens], kind="stable")
        for first in range(0, len(part), _BATCH):
            rows = by_length[first : first + _BATCH]
            with torch.inference_mode():
                pooled = _pool(model, [tokens[row] for row in rows], tokenizer.pad_token_id or 0)
            vectors[start + rows] = pooled
            done += len(rows)
            if progress is not None:
                progress(done, len(texts))
    return vectors


def _parts(groups: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last places of the texts that are tokenised at once: some of one group.

    >>> list(_parts([2, 0, 3]))
    [(0, 2), (2, 5)]
    """
    first = 0
    for size in groups:
        for start in range(0, size, _AT_ONCE):
            yield first + start, first + min(start + _AT_ONCE, size)
        first += size


def _pool(model: Any, tokens: Sequence[Sequence[int]], padding: int) -> NDArray[np.float32]:
    """Return the normalised mean hidden state of each text; a text without tokens gives zeros."""
    import torch

    width = max(1, *(len(ids) for ids in tokens)) if tokens else 1
    ids = torch.full((len(tokens), width), padding, dtype=torch.long)
    mask = torch.zeros(len(tokens), width, dtype=torch.long)
    for row, text in enumerate(tokens):
        ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        mask[row, : len(text)] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(states.dtype)
    mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
    pooled: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=1).cpu().numpy()
    return pooled
