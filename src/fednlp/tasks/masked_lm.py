"""Masked language modelling: a text with some tokens hidden, which are predicted from all the others."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.tasks.base import Batch, Row
from fednlp.tasks.blocks import pad_rows, split_into_rows, vocabulary_of
from fednlp.tasks.cloze import frame, mask_of
from fednlp.tasks.inputs import padding_of, to_device
from fednlp.tasks.language_modeling import LanguageModeling

_EVALUATION = 0x6D6C6D
"""Seeds, with the digest of a text's tokens, what is hidden of it in evaluation."""


@dataclass(frozen=True)
class MaskedLM(LanguageModeling):
    """Prediction of hidden tokens with cross-entropy (Devlin et al. 2019, *BERT*, section 3.1, Task 1).

    Each token is chosen with probability ``mlm_probability``, special tokens never, and at least one of a
    text. In training a chosen token becomes the mask token (80 %), a random one (10 %), or stays (10 %); in
    evaluation it becomes the mask token, and the choice is a function of the text's tokens.

    Args:
        mask: Id of the mask token.
        vocabulary: Tokens that the tokenizer knows.
        mlm_probability: Share of tokens that are chosen, in (0, 1].
    """

    mask: int
    special: tuple[int, ...] = ()
    padding: int = 0
    vocabulary: int = 1
    mlm_probability: float = 0.15
    name: str = "masked-lm"
    metric: str = "accuracy"
    model_class: str = "AutoModelForMaskedLM"
    uses_only_input_ids: bool = False
    decoder: ClassVar[bool] = False
    draws_inputs: ClassVar[bool] = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer.

        Raises:
            ModelError: The tokenizer has no mask token.
            ConfigError: The probability is none.
        """
        probability = options.get("mlm_probability", cls.mlm_probability)
        if not 0 < probability <= 1:
            raise ConfigError(
                f"task.mlm_probability is {probability}: say more than 0 and at most 1, e.g. 0.15"
            )
        special = tuple(sorted(set(tokenizer.all_special_ids)))
        return cls(
            mask_of(tokenizer, "masked-lm"),
            special,
            padding_of(tokenizer),
            vocabulary_of(tokenizer),
            **options,
        )

    def settings(self) -> dict[str, Any]:
        """Return the padding."""
        return {"pad_token_id": self.padding}

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each text's blocks end to end, ``input_ids``, each with its special tokens, and ``block``."""
        texts = [row["text"] or "" for row in rows]
        encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        before, after = frame(tokenizer)
        room = max(1, max_length - len(before) - len(after))
        made = []
        for tokens in encoded["input_ids"]:
            blocks = [tokens[start : start + room] for start in range(0, len(tokens), room)] or [[]]
            ids = [token for block in blocks for token in (*before, *block, *after)]
            made.append({"input_ids": ids or [self.padding], "block": room + len(before) + len(after)})
        return made

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return a row a block: ``input_ids``, ``attention_mask``, ``places``, ``labels`` and ``owners``."""
        words, lengths = features.words(indices), features.lengths(indices)
        draws = torch.rand(len(words)).numpy() if training else _fixed(words, lengths)
        hidden = self._chosen(words, lengths, draws)
        read = self._replaced(words, hidden) if training else np.where(hidden, self.mask, words)
        starts, widths, owners = split_into_rows(lengths, features.values("block")[indices], overlap=0)
        ids = pad_rows(read, starts, widths, self.padding)
        predicted = pad_rows(hidden, starts, widths, 0).astype(bool)
        batch = {
            "input_ids": ids,
            "attention_mask": (np.arange(ids.shape[1]) < widths[:, None]).astype(np.int64),
            "places": np.flatnonzero(predicted),
            "labels": pad_rows(words, starts, widths, 0)[predicted],
            "owners": np.repeat(owners, predicted.sum(1)),
        }
        return to_device({name: torch.from_numpy(array) for name, array in batch.items()}, device)

    def _chosen(self, words: np.ndarray, lengths: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Return the mask of hidden tokens: those with a low draw, and a text's lowest if none is low enough."""
        draws = np.where(np.isin(words, self.special), 2.0, draws)
        chosen = draws < self.mlm_probability
        ends = np.cumsum(lengths)
        for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
            lowest = start + int(draws[start:end].argmin())
            if draws[lowest] < 1 and not chosen[start:end].any():
                chosen[lowest] = True
        return chosen

    def _replaced(self, words: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """Hide 80 % of the chosen tokens, exchange 10 % for random ones, and leave 10 % as they are."""
        draws = torch.rand(len(words)).numpy()
        others = torch.randint(self.vocabulary, (len(words),)).numpy()
        kinds = [hidden & (draws < 0.8), hidden & (draws >= 0.8) & (draws < 0.9)]
        replaced: np.ndarray = np.select(kinds, [np.full(len(words), self.mask), others], words)
        return replaced


def _fixed(words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return draws in [0, 1) for every token, the same for a text whatever its batch, its number and its file."""
    ends = np.cumsum(lengths)
    texts = [words[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate([_generator(text).random(len(text)) for text in texts])


def _generator(words: np.ndarray) -> np.random.Generator:
    digest = hashlib.blake2b(words.astype("<i4").tobytes(), digest_size=16).digest()
    return np.random.default_rng([_EVALUATION, int.from_bytes(digest, "little")])
