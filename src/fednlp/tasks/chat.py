"""Chats: a decoder learns the answers of conversations, in the words of its tokenizer's chat template."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.units import plural
from fednlp.tasks import choices as options_of
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.blocks import vocabulary_of
from fednlp.tasks.generation import cached_tokenizer, decode_texts, generate_ids
from fednlp.tasks.inputs import padded_inputs, padding_of, ratio, to_device
from fednlp.tasks.language_modeling import LanguageModeling
from fednlp.tasks.scorers import ROUGE, rouge
from fednlp.tasks.whole_sums import fraction, quotient, total_steps

_TEMPLATE = (
    "its tokenizer has no chat template: take a model that was tuned on chats, such as smollm2, or write one as "
    "task.chat_template (Jinja, as tokenizer_config.json has it)"
)


_METRICS = ("log_likelihood", *(name for name in options_of.RATES if name != "format_rate"), "rouge_l")
_CUTS: Mapping[str, str] = {
    "cut_answer": "the end of an answer",
    "long_options": "their options, which are not scored, since one is too long",
    "cut_exchanges": "first exchanges",
    "cut_prompt": "the beginning of a prompt",
    "cut_options": "the beginning of the question that lists its options",
}
"""What a conversation may lose, by the feature that says so."""
_MOST_ADDED, _MOST_TIMES = 1 << 20, 16
"""Characters that a template may write besides, and how many for each character of a conversation."""
_SHOWN = 40


@dataclass(frozen=True)
class Chat(LanguageModeling):
    """Next-token prediction of the assistant's words and of the token that ends each of its turns, and of no other.

    A conversation is what ``apply_chat_template`` makes of it, token for token. One that is longer than the model
    reads loses its first exchanges; the last one loses the beginning of what the user says, and an answer that is too
    long by itself its end. The loss is a mean over the answers' tokens of a batch, or over its conversations.

    An example's prediction is ``[right tokens, learnt tokens, negative log-likelihood in nats]``; with options or
    generated answers, the options that are chosen and the answer besides.

    Args:
        padding: The id to pad with; it may be that of a word, since the mask alone marks the padding.
        vocabulary: Tokens that the tokenizer knows.
        chat_template: Jinja; by default the tokenizer's own.
        end: The token that ends an answer.
        max_new_tokens: Tokens of an answer that is generated, at most.
        loss_mean: ``"tokens"``, or ``"examples"``: a conversation counts once, whatever its tokens are.
        choices: By which of :data:`fednlp.tasks.choices.WAYS` an option is chosen, where examples have options.
        scorer: ``"rouge"`` where answers are generated and scored by ROUGE; None where they are not.
        metric: What stands for the task.
        tokenizer: Folder or name of the tokenizer, which reads what is generated.
    """

    padding: int = 0
    vocabulary: int = 1
    chat_template: str = ""
    end: int = 0
    max_new_tokens: int = 256
    loss_mean: str = "tokens"
    choices: tuple[str, ...] = ("text", "letter")
    scorer: str | None = None
    tokenizer: str = ""
    name: str = "chat"
    metric: str = "log_likelihood"
    model_class: str = "AutoModelForCausalLM"
    uses_only_input_ids: bool = True
    decoder: ClassVar[bool] = True
    severe_cuts: ClassVar[tuple[str, ...]] = (_CUTS["cut_answer"], _CUTS["long_options"])

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer, which has the template from now on.

        Raises:
            ConfigError: There is no such metric, or it is not computed.
            ModelError: There is no chat template, or it does not end an answer with a token of its own.
        """
        options["chat_template"] = options.get("chat_template") or _own_template(tokenizer)
        tokenizer.chat_template = options["chat_template"]
        options["choices"] = tuple(options.get("choices", cls.choices))
        name = str(tokenizer.name_or_path)
        task = cls(padding_of(tokenizer), vocabulary_of(tokenizer), tokenizer=name, **options).checked()
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

    def checked(self) -> Self:
        """Return the task itself.

        Raises:
            ConfigError: An option has no such value, or the metric needs another.
        """
        if self.scorer not in (None, "rouge"):
            raise ConfigError(f'task.scorer = "{self.scorer}" is not for chats: say "rouge", or leave it out')
        if self.metric not in (*_METRICS, type(self).metric):
            raise ConfigError(
                f'task.metric = "{self.metric}" is not for chats: say {", ".join(_METRICS[:-1])} or {_METRICS[-1]}'
            )
        way = options_of.RATES.get(self.metric)
        if way is not None and way not in self.choices:
            raise ConfigError(
                f'task.metric = "{self.metric}" needs the choice by {way}: say task.choices = '
                f"{json.dumps([*self.choices, way])}"
            )
        if self.metric == "rouge_l" and not self.scorer:
            raise ConfigError('task.metric = "rouge_l" needs generated answers: say task.scorer = "rouge"')
        return self

    def settings(self) -> dict[str, Any]:
        """Return the padding."""
        return {"pad_token_id": self.padding}

    def rendered(self, messages: Sequence[dict[str, str]], tokenizer: Any, *, answer: bool = False) -> str:
        """Return a conversation as the template writes it.

        Args:
            answer: Whether the assistant's next message is to begin at its end.

        Raises:
            ModelError: The template refuses it, fails, or writes very much.
        """
        try:
            text: str = tokenizer.apply_chat_template(
                messages,
                chat_template=self.chat_template,
                tokenize=False,
                add_generation_prompt=answer,
            )
        except Exception as error:  # a template is a program
            raise ModelError(
                f"{tokenizer.name_or_path}: its chat template refuses messages: {error}"
            ) from None
        said = sum(len(message["content"]) for message in messages)
        if len(text) > _MOST_ADDED + _MOST_TIMES * said:
            raise ModelError(
                f"{tokenizer.name_or_path}: its chat template writes {len(text):,} characters where "
                f"{plural(len(messages), 'message')} of {said:,} are said: give another as task.chat_template"
            )
        return text

    def tokens(
        self, messages: Sequence[dict[str, str]], tokenizer: Any, first: int = 0
    ) -> tuple[list[int], np.ndarray]:
        """Return the token ids of a conversation, and which of them are learnt, bool.

        A token that holds the end of a prompt and the beginning of its answer is learnt.

        Args:
            first: No message before that of this number is learnt.

        Raises:
            ModelError: The template writes the beginning of a conversation in another way than the whole, so that
                answers have no place.
        """
        return self._with_learnt(messages, *self._encoded(messages, tokenizer), tokenizer, first)

    def _encoded(self, messages: Sequence[dict[str, str]], tokenizer: Any) -> tuple[str, Any]:
        """Return a conversation as the template writes it, and its tokens with their places."""
        text = self.rendered(messages, tokenizer)
        return text, tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )

    def _with_learnt(
        self, messages: Sequence[dict[str, str]], text: str, encoded: Any, tokenizer: Any, first: int = 0
    ) -> tuple[list[int], np.ndarray]:
        ids, (starts, stops) = encoded["input_ids"], np.array(encoded["offset_mapping"]).reshape(-1, 2).T
        special, learnt = np.isin(ids, tokenizer.all_special_ids), np.zeros(len(ids), dtype=bool)
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number < first:
                continue
            begin = self.rendered(messages[:number], tokenizer, answer=True)
            upto = self.rendered(messages[: number + 1], tokenizer)
            if not (text.startswith(begin) and text.startswith(upto)):
                raise ModelError(
                    f"{tokenizer.name_or_path}: its chat template writes an earlier message in another way once there "
                    "is a later one, so that the assistant's tokens cannot be told: give another as task.chat_template"
                )
            inside = (stops > len(begin)) & (starts < len(upto))
            ends = np.flatnonzero(inside & special)
            inside[int(ends[-1]) + 1 if len(ends) else len(ids) :] = (
                False  # what the template writes between turns
            )
            learnt |= inside
        return ids, learnt

    def prompt(self, messages: Sequence[dict[str, str]], tokenizer: Any) -> list[int]:
        """Return the token ids that an answer to a conversation is generated from."""
        text = self.rendered(messages, tokenizer, answer=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def with_answer(
        self, messages: Sequence[dict[str, str]], answer: str, tokenizer: Any
    ) -> tuple[list[int], int]:
        """Return the token ids of a conversation up to the end of an answer to it, and how many are the answer's.

        The token that ends the answer is not among them. A token of both is the answer's.

        Raises:
            ModelError: The answer has no token.
        """
        begin = self.rendered(messages, tokenizer, answer=True)
        _, encoded = self._encoded([*messages, {"role": "assistant", "content": answer}], tokenizer)
        ids, stops = encoded["input_ids"], np.array([stop for _, stop in encoded["offset_mapping"]])
        first = int((stops <= len(begin)).sum())
        special = np.isin(ids, tokenizer.all_special_ids)
        special[:first] = False
        end = int(np.flatnonzero(special)[-1]) if special.any() else len(ids)
        if end <= first:
            raise ModelError(
                f"{tokenizer.name_or_path}: the answer {answer[:_SHOWN]!r} has no token, so that it has no likelihood: "
                "leave out the question with this option"
            )
        return ids[:end], end - first

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each conversation's ``input_ids``, ``learnt``: 1 for tokens that are, else 0, and what is cut off.

        ``cut_exchanges``, ``cut_prompt`` and ``cut_answer`` are the exchanges and the tokens that it loses, and
        ``cut_tokens`` all tokens together. Where the rows have options, the features of
        :func:`fednlp.tasks.choices.encode_options`; where answers are scored by ROUGE, ``prompt``, what is read before
        one, and ``reference``.
        """
        encoded = []
        for row in rows:
            given = messages = json.loads(row["messages"] or "[]")
            text, found = self._encoded(messages, tokenizer)
            start, lost, whole = 0, 0, len(found["input_ids"])
            if whole > max_length:
                messages = shortened(
                    messages, max_length, lambda some: len(self._encoded(some, tokenizer)[1]["input_ids"])
                )
                text, found = self._encoded(messages, tokenizer)
            ids, learnt = self._with_learnt(messages, text, found, tokenizer)
            answered = any(message["role"] == "assistant" for message in messages)
            first = first_learnt(learnt, tokenizer) if answered else 0
            if len(ids) > max_length:
                # A token of the prompt is read before the answer.
                start = max(0, min(len(ids) - max_length, first - 1))
                lost = int(learnt[start + max_length :].sum())
                ids, learnt = ids[start : start + max_length], learnt[start : start + max_length]
            features: dict[str, Any] = {"input_ids": ids, "learnt": learnt.astype(int).tolist()}
            features |= {
                "cut_exchanges": (len(given) - len(messages)) // 2,
                "cut_prompt": start,
                "cut_answer": lost,
                "cut_tokens": whole - len(ids),
            }
            if self.scorer:
                prompt = self.prompt(messages[:-1], tokenizer)[-max_length:]
                features |= {"prompt": prompt, "reference": given[-1]["content"]}
            if self.choices and "choices" in row:
                features |= options_of.encode_options(
                    row["choices"],
                    given,
                    self.choices,
                    max_length,
                    lambda before, answer: self.with_answer(before, answer, tokenizer),
                    lambda before: self.prompt(before, tokenizer),
                )
            encoded.append(features)
        return encoded

    def cuts(self, features: Features, indices: np.ndarray) -> dict[str, int]:
        """Return how many conversations lose what, in words."""
        there = {name: words for name, words in _CUTS.items() if name in features.arrays}
        counts = {words: int((features.values(name)[indices] > 0).sum()) for name, words in there.items()}
        return {words: count for words, count in counts.items() if count}

    def trained_tokens(self, features: Features, indices: np.ndarray) -> np.ndarray:
        """Return how many tokens of each conversation are learnt, int64."""
        return np.array([features.ragged("learnt", number).sum() for number in indices.tolist()], np.int64)

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each conversation."""
        return features.all_lengths

    def whole_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each conversation before anything was cut off."""
        whole: np.ndarray = features.all_lengths + features.values("cut_tokens")
        return whole

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
        messages = [json.loads(row["messages"] or "[]") for row in rows]
        prompts = [self.prompt(one, tokenizer)[-max_length:] for one in messages]
        return self._written(model, prompts, [self.max_new_tokens] * len(prompts), tokenizer, device)

    def _written(
        self,
        model: nn.Module,
        prompts: Sequence[Sequence[int]],
        most: Sequence[int],
        tokenizer: Any,
        device: torch.device,
    ) -> list[str]:
        """Return what is generated for each prompt, of so many tokens at most; prompts of one length go together.

        Where a model has a last position, the beginning of a prompt that leaves no room for the answer is left out.
        """
        options, texts = self.generation(model), [""] * len(prompts)
        positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        if positions is not None:
            room = [max(1, positions - tokens) for tokens in most]
            prompts = [prompt[-own:] for prompt, own in zip(prompts, room, strict=True)]
        for some, ids in options_of.by_length(prompts):
            batch = to_device({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, device)
            options.max_new_tokens = max(most[place] for place in some)
            with torch.inference_mode():
                written = generate_ids(model, batch, options)
            cut = [row[: most[place]] for place, row in zip(some, written, strict=True)]
            for place, text in zip(some, decode_texts(tokenizer, cut), strict=True):
                texts[place] = text
        return texts

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
        batch |= {"places": places, "labels": ids[learnt], "owners": owners}
        if self.loss_mean == "examples":
            batch["weights"] = 1 / torch.bincount(owners, minlength=len(ids))[owners]
        return to_device(batch, device)

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return ``[right, learnt, negative log-likelihood]`` of each conversation, with its choices and answer."""
        found = super().predict(model, features, indices, device)
        optional, scored = "gold" in features.arrays, "reference" in features.offsets
        if not (optional or scored):
            return found
        chosen = self._choices(model, features, indices, device) if optional else [[] for _ in indices]
        answers = [""] * len(indices)
        if scored:
            prompts = [features.ragged("prompt", number).tolist() for number in indices.tolist()]
            most = [self.max_new_tokens] * len(prompts)
            answers = self._written(model, prompts, most, cached_tokenizer(self.tokenizer), device)
        both = zip(found.predictions, chosen, answers, strict=True)
        return replace(found, predictions=[[*sums, *more] for sums, *more in both])

    def _choices(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> list[list[int]]:
        """Return what each example adds to the rates of choices; an empty list without options."""
        numbers = [number for number in indices.tolist() if features.values("gold")[number] >= 0]
        own = [options_of.candidates_of(features, number) for number in numbers]
        candidates = [candidate for some in own for candidate in some]
        likelihoods = np.zeros(len(candidates))
        for batch in options_of.batches_of(candidates, self.padding):
            for owners, _, losses in self._scored(model, batch, device):
                likelihoods -= np.bincount(owners, losses, len(candidates))
        written = [""] * len(numbers)
        if "generation" in self.choices:
            prompts = [features.ragged("asked", number).tolist() for number in numbers]
            longest = features.values("longest_option")[numbers].tolist()
            most = [min(self.max_new_tokens, tokens + options_of.ROOM) for tokens in longest]
            written = self._written(model, prompts, most, cached_tokenizer(self.tokenizer), device)
        found, start = {}, 0
        for number, some, text in zip(numbers, own, written, strict=True):
            values = likelihoods[start : start + len(some)]
            texts = json.loads(features.text("choices", number))
            found[number], start = options_of.chosen(texts, values, self.choices, text), start + len(some)
        return [found.get(number, []) for number in indices.tolist()]

    def metrics(
        self, predictions: Sequence[Any], features: Features, indices: np.ndarray
    ) -> dict[str, float]:
        """Return the mean log-likelihood of an answer's token in nats, perplexity, and the share of right tokens.

        Where examples have options, the rates of right choices; where answers are generated, their ROUGE.
        """
        plain = _of_tokens(predictions)
        likelihood = float(ratio(-plain[:, 2].sum(), plain[:, 1].sum()))
        found = {"log_likelihood": likelihood} | super().metrics(plain, features, indices)  # type: ignore[arg-type]
        sums = options_of.choice_sums(_choices_in(predictions), _gold(features, indices))
        found |= options_of.choice_metrics(sums, self.choices)
        if self.scorer:
            means = self._rouge(predictions, features, indices).mean(0)
            found |= zip(ROUGE, means.tolist(), strict=True)
        return {self.metric: np.nan} | found

    def _rouge(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return ROUGE-1, -2 and -L of each generated answer, float64 (examples, 3)."""
        references = [[features.text("reference", number)] for number in indices.tolist()]
        return rouge([prediction[4] for prediction in predictions], references)

    @property
    def num_sums(self) -> int:
        """Right tokens, learnt tokens, negative log-likelihood, and those of options and of ROUGE."""
        return super().num_sums + options_of.NUM_SUMS + (1 + len(ROUGE) if self.scorer else 0)

    def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
        """Return the same, summed over conversations."""
        found = super().sums(_of_tokens(predictions), features, indices)  # type: ignore[arg-type]
        found += options_of.choice_sums(_choices_in(predictions), _gold(features, indices))
        if self.scorer:
            scores = self._rouge(predictions, features, indices)
            found += [len(indices), *(total_steps(column) for column in scores.T)]
        return found

    def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
        """Return the same from sums over conversations."""
        tokens = super().num_sums
        end = tokens + options_of.NUM_SUMS
        _, count, loss = sums[:tokens]
        found = {"log_likelihood": -quotient(fraction(loss), count)} | super().metrics_of_sums(sums[:tokens])
        found |= options_of.choice_metrics(sums[tokens:end], self.choices)
        if self.scorer:
            texts, *scores = sums[end:]
            found |= {
                name: quotient(fraction(total), texts) for name, total in zip(ROUGE, scores, strict=True)
            }
        return {self.metric: np.nan} | found

    def statistics(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
        """Return what each conversation adds to the metric, and its weight.

        Those are its log-likelihood, and its answers' tokens; whether its choice is right, and 1, or zeros without
        options; or ROUGE-L, and 1.
        """
        if self.metric in options_of.RATES:
            gold = _gold(features, indices)
            right = options_of.right_of(_choices_in(predictions), gold)
            column = list(options_of.RATES).index(self.metric)
            return np.stack([right[:, column], gold >= 0], axis=1).astype(np.float64)
        if self.metric == "rouge_l":
            scores = self._rouge(predictions, features, indices)[:, ROUGE.index("rouge_l")]
            return np.stack([scores, np.ones(len(scores))], axis=1)
        sums = _of_tokens(predictions)
        return np.stack([-sums[:, 2], sums[:, 1]], axis=1)

    def score(self, sums: np.ndarray) -> np.ndarray:
        """Return the mean log-likelihood of a token, the share of right choices, or the mean ROUGE-L."""
        scores = ratio(sums[..., 0], sums[..., 1])
        return scores if self.metric == "log_likelihood" else np.where(sums[..., 1] > 0, scores, np.nan)

    def baseline(
        self, train: Features, examples: np.ndarray, test: Features, indices: np.ndarray
    ) -> tuple[str, list[Any]]:
        """Predict each token as often as in training, of options always the place that is right most often.

        That place is the best on the test examples themselves, so that no constant answer is better. In place of a
        generated answer stands the user's message.
        """
        name, found = super().baseline(train, examples, test, indices)
        optional, scored = "gold" in test.arrays, "reference" in test.offsets
        if not (optional or scored):
            return name, found
        constant = options_of.constant_choices(_gold(test, indices)) if optional else [[] for _ in found]
        answers = [""] * len(found)
        if scored:
            tokenizer = cached_tokenizer(self.tokenizer)
            answers = decode_texts(tokenizer, [test.ragged("prompt", n).tolist() for n in indices.tolist()])
        name += ", and always the same option" if optional else ""
        name += ", and the prompt as the answer" if scored else ""
        return name, [[*one, *more] for one, *more in zip(found, constant, answers, strict=True)]

    def format_prediction(self, prediction: Any) -> Any:
        """Return the letters of the options that are chosen, the answer that is generated, or the perplexity."""
        chosen, answer = _choices_in([prediction])[0], {"answer": prediction[4]} if self.scorer else {}
        if chosen:
            return options_of.letters(chosen, self.choices) | answer
        return prediction[4] if self.scorer else super().format_prediction(prediction[:3])


def _of_tokens(predictions: Sequence[Any]) -> np.ndarray:
    """Return the sums over tokens of predictions, float64 (examples, 3)."""
    return np.array([prediction[:3] for prediction in predictions], np.float64).reshape(-1, 3)


def _choices_in(predictions: Sequence[Any]) -> list[list[int]]:
    return [prediction[3] if len(prediction) > 3 else [] for prediction in predictions]


def _gold(features: Features, indices: np.ndarray) -> np.ndarray:
    """Return which option of each example is right, -1 for examples without options, int64."""
    if "gold" not in features.arrays:
        return np.full(len(indices), options_of.NO_CHOICE, np.int64)
    gold: np.ndarray = features.values("gold")[np.asarray(indices)]
    return gold


def _own_template(tokenizer: Any) -> str:
    found = tokenizer.chat_template
    template = found.get("default") if isinstance(found, dict) else found
    if not template:
        raise ModelError(f"{tokenizer.name_or_path}: {_TEMPLATE}")
    return str(template)


def shortened(
    messages: list[dict[str, str]], max_length: int, length: Callable[[list[dict[str, str]]], int]
) -> list[dict[str, str]]:
    """Return a conversation without as few of its first exchanges as make it short enough, or its last one alone.

    The system's message stays. The number is found by halving, since a conversation may have thousands of exchanges.

    Args:
        length: Returns the tokens of a conversation.

    >>> messages = [{"role": role, "content": "a"} for role in ("user", "assistant") * 9]
    >>> [len(shortened(messages, most, len)) for most in (18, 17, 6, 1)]
    [18, 16, 6, 2]
    """
    opening = [message for message in messages[:1] if message["role"] == "system"]

    def without(exchanges: int) -> list[dict[str, str]]:
        return [*opening, *messages[len(opening) + 2 * exchanges :]]

    most = max(0, (len(messages) - len(opening) - 1) // 2)
    return without(bisect_left(range(most), True, key=lambda cut: length(without(cut)) <= max_length))


def first_learnt(learnt: np.ndarray, tokenizer: Any) -> int:
    """Return the place of the first token that is learnt.

    Raises:
        ModelError: There is none.
    """
    if not learnt.any():
        raise ModelError(
            f"{tokenizer.name_or_path}: its chat template writes nothing of the answer of a conversation: give another "
            "as task.chat_template"
        )
    return int(learnt.argmax())
