"""Chats: a decoder learns the answers of conversations, in the words of its tokenizer's chat template."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from fednlp.data.features import Features
from fednlp.errors import ModelError
from fednlp.tasks.base import Batch, Row
from fednlp.tasks.blocks import vocabulary_of
from fednlp.tasks.generation import decode_texts, generate_ids
from fednlp.tasks.inputs import padded_inputs, padding_of, ratio, to_device
from fednlp.tasks.language_modeling import LanguageModeling
from fednlp.tasks.whole_sums import fraction, quotient

_TEMPLATE = (
    "its tokenizer has no chat template: take a model that was tuned on chats, such as smollm2, or write one as "
    "task.chat_template (Jinja, as tokenizer_config.json has it)"
)


@dataclass(frozen=True)
class Chat(LanguageModeling):
    """Next-token prediction of the assistant's words and of the token that ends each of its turns, and of no other.

    A conversation is what ``apply_chat_template`` makes of it, token for token. One that is longer than the model
    reads loses its first exchanges; the last one loses the beginning of what the user says, and an answer that is too
    long by itself its end. The loss is a mean over the answers' tokens of a batch.

    Args:
        padding: The id to pad with; it may be that of a word, since the mask alone marks the padding.
        vocabulary: Tokens that the tokenizer knows.
        chat_template: Jinja; by default the tokenizer's own.
        end: The token that ends an answer.
        max_new_tokens: Tokens of an answer that is generated, at most.
    """

    padding: int = 0
    vocabulary: int = 1
    chat_template: str = ""
    end: int = 0
    max_new_tokens: int = 256
    name: str = "chat"
    metric: str = "log_likelihood"
    model_class: str = "AutoModelForCausalLM"
    uses_only_input_ids: bool = True
    decoder: ClassVar[bool] = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer, which has the template from now on.

        Raises:
            ModelError: There is no chat template, or it does not end an answer with a token of its own.
        """
        options["chat_template"] = options.get("chat_template") or _own_template(tokenizer)
        tokenizer.chat_template = options["chat_template"]
        task = cls(padding_of(tokenizer), vocabulary_of(tokenizer), **options)
        ids, learnt = task.tokens(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], tokenizer
        )
        end = ids[int(np.flatnonzero(learnt)[-1])] if learnt.any() else None
        if end is None or end not in tokenizer.all_special_ids:
            raise ModelError(
                f"{tokenizer.name_or_path}: its chat template ends an answer with no special token, so that a model "
                "does not learn to stop: write the token at the end of each assistant's message"
            )
        return replace(task, end=end)

    def settings(self) -> dict[str, Any]:
        """Return the padding."""
        return {"pad_token_id": self.padding}

    def rendered(self, messages: Sequence[dict[str, str]], tokenizer: Any, *, answer: bool = False) -> str:
        """Return a conversation as the template writes it.

        Args:
            answer: Whether the assistant's next message is to begin at its end.

        Raises:
            ModelError: The template refuses it.
        """
        from jinja2 import TemplateError

        try:
            text: str = tokenizer.apply_chat_template(
                messages,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=answer,
            )
        except TemplateError as error:
            raise ModelError(
                f"{tokenizer.name_or_path}: its chat template refuses messages: {error}"
            ) from None
        return text

    def tokens(self, messages: Sequence[dict[str, str]], tokenizer: Any) -> tuple[list[int], np.ndarray]:
        """Return the token ids of a conversation, and which of them are learnt, bool.

        Raises:
            ModelError: The template writes the beginning of a conversation in another way than the whole, so that
                answers have no place.
        """
        text = self.rendered(messages, tokenizer)
        encoded = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        ids, starts = encoded["input_ids"], np.array([start for start, _ in encoded["offset_mapping"]])
        special, learnt = np.isin(ids, tokenizer.all_special_ids), np.zeros(len(ids), dtype=bool)
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin = self.rendered(messages[:number], tokenizer, answer=True)
            upto = self.rendered(messages[: number + 1], tokenizer)
            if not (text.startswith(begin) and text.startswith(upto)):
                raise ModelError(
                    f"{tokenizer.name_or_path}: its chat template writes an earlier message in another way once there "
                    "is a later one, so that the assistant's tokens cannot be told: give another as task.chat_template"
                )
            inside = (starts >= len(begin)) & (starts < len(upto))
            ends = np.flatnonzero(inside & special)
            inside[int(ends[-1]) + 1 if len(ends) else len(ids) :] = (
                False  # what the template writes between turns
            )
            learnt |= inside
        return ids, learnt

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each conversation's ``input_ids``, and ``learnt``: 1 for tokens that are, else 0."""
        encoded = []
        for row in rows:
            messages = json.loads(row["messages"] or "[]")
            ids, learnt = self.tokens(messages, tokenizer)
            while len(ids) > max_length and (shorter := _without_first(messages)) is not None:
                messages = shorter
                ids, learnt = self.tokens(messages, tokenizer)
            if len(ids) > max_length:
                first = int(np.flatnonzero(learnt)[0])
                start = min(
                    len(ids) - max_length, first - 1
                )  # a token of the prompt is read before the answer
                ids, learnt = ids[start : start + max_length], learnt[start : start + max_length]
            encoded.append({"input_ids": ids, "learnt": learnt.astype(int).tolist()})
        return encoded

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each conversation."""
        return features.all_lengths

    def generation(self, model: nn.Module) -> Any:
        """Return how answers are generated: by the likeliest token, up to the one that ends a turn."""
        from transformers import GenerationConfig

        return GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            eos_token_id=self.end,
            pad_token_id=self.padding,
            suppress_tokens=None if self.padding == self.end else [self.padding],
        )

    def replies(
        self, model: nn.Module, rows: Sequence[Row], tokenizer: Any, max_length: int, device: torch.device
    ) -> list[str]:
        """Return the assistant's next message of each conversation, whose last message is the user's.

        Args:
            max_length: Tokens that the model reads at most; of a longer conversation the beginning is left out.
        """
        answers = []
        for row in rows:
            text = self.rendered(json.loads(row["messages"] or "[]"), tokenizer, answer=True)
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][:, -max_length:]
            batch = to_device({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, device)
            with torch.inference_mode():
                written = generate_ids(model, batch, self.generation(model))
            answers += decode_texts(tokenizer, written)
        return answers

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids``, ``attention_mask`` (batch, longest), ``places``, ``labels`` and ``owners``."""
        batch = padded_inputs(features, indices, self.padding, torch.device("cpu"))
        ids = batch["input_ids"]
        learnt = torch.from_numpy(features.padded("learnt", indices, 0)[0]).bool()
        learnt[:, 0] = False  # nothing stands before the first token
        # Each token is predicted from the place before it.
        places = learnt.flatten().nonzero().squeeze(1) - 1
        owners = learnt.nonzero()[:, 0]
        return to_device(batch | {"places": places, "labels": ids[learnt], "owners": owners}, device)

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return the mean log-likelihood of an answer's token in nats, perplexity, and the share of right tokens."""
        found = self.statistics(predictions, features, indices).sum(0)
        return {"log_likelihood": float(self.score(found))} | super().metrics(predictions, features, indices)

    @property
    def num_sums(self) -> int:
        """Right tokens, learnt tokens, negative log-likelihood."""
        return super().num_sums

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the same three, summed over conversations."""
        return super().sums(predictions, features, indices)

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return the same from sums over conversations."""
        _, count, loss = sums
        return {"log_likelihood": -quotient(fraction(loss), count)} | super().metrics_of_sums(sums)

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return each conversation's log-likelihood, and the number of its answers' tokens."""
        sums = np.asarray(predictions, np.float64).reshape(-1, 3)
        return np.stack([-sums[:, 2], sums[:, 1]], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the mean log-likelihood of a token."""
        return ratio(sums[..., 0], sums[..., 1])


def _own_template(tokenizer: Any) -> str:
    found = tokenizer.chat_template
    template = found.get("default") if isinstance(found, dict) else found
    if not template:
        raise ModelError(f"{tokenizer.name_or_path}: {_TEMPLATE}")
    return str(template)


def _without_first(messages: Sequence[dict[str, str]]) -> list[dict[str, str]] | None:
    """Return a conversation without its first exchange; None where it is the only one. The system's message stays."""
    opening = [message for message in messages[:1] if message["role"] == "system"]
    rest = messages[len(opening) + 2 :]
    return [*opening, *rest] if rest else None
