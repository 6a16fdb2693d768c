"""Text generation: a text is made from a text by a language model, that goes on with a prompt."""

import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.formatting.units import plural
from fednlp.tasks import moses
from fednlp.tasks.base import Batch, Predictions, Row
from fednlp.tasks.blocks import logits_at, no_cache, split_batch, vocabulary_of
from fednlp.tasks.cloze import frame, plain_ids
from fednlp.tasks.generation import Generation, cached_tokenizer, references_of
from fednlp.tasks.inputs import padded_inputs, padding_of, to_device


@dataclass(frozen=True)
class TextGeneration(Generation):
    """Generation with a decoder alone, trained with cross-entropy over the target's tokens.

    What is read is one sequence: the source in a template, the target, and the end of text. The prompt is a
    function of the source alone: it leaves room for the longest target, whatever its own target is.

    Args:
        tokenizer: Folder or name of the tokenizer.
        padding: The id to pad with; it may be that of the end, since the mask alone marks the padding.
        end: What ends a target; None where the tokenizer has no such token.
        vocabulary: Tokens that the tokenizer knows.
        template: What stands around ``{source}``; the target comes behind it.
        max_target_length: Tokens of a target with its end, and of what is generated, at most.
        num_beams: Beams of the search; 1 is greedy.
        label_smoothing_factor: Share of the target that is spread over the vocabulary in training, in [0, 1).
        scorer: ``"rouge"`` or ``"bleu"``: whether ROUGE-L or BLEU stands for the task.
        moses: ``"none"``, ``"normalise"`` or ``"tokenise"``: how texts are prepared (:mod:`fednlp.tasks.moses`).
        languages: Of source and target, such as ``"de-en"``, where texts are prepared.
        moses_version: The version of the library that prepares them; empty where none does.
    """

    tokenizer: str
    padding: int = 0
    end: int | None = None
    vocabulary: int = 1
    template: str = "{source}\n\n"
    max_target_length: int = 64
    num_beams: int = 1
    label_smoothing_factor: float = 0.0
    scorer: str = "rouge"
    moses: str = "none"
    languages: str = ""
    moses_version: str = ""
    name: str = "text-generation"
    model_class: str = "AutoModelForCausalLM"
    uses_only_input_ids: bool = True

    @classmethod
    def build(cls, labels: Sequence[str], tokenizer: Any, **options: Any) -> Self:
        """Make the task for a tokenizer.

        Raises:
            ConfigError: An option has no such value.
            MissingDependency: Texts are to be prepared by Moses, whose library is not installed.
        """
        step = options.get("moses", "none")
        moses.language_pair(step, options.get("languages", ""))
        ends = (tokenizer.eos_token_id, tokenizer.sep_token_id)
        task = cls(
            str(tokenizer.name_or_path),
            padding_of(tokenizer),
            next((number for number in ends if number is not None), None),
            vocabulary_of(tokenizer),
            moses_version=moses.library_version(step),
            **options,
        ).checked()
        halves_of(task.template)
        return task

    def encode(self, rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """Return each row's ``input_ids``, how many of them are its ``prompt``, and ``references``, JSON.

        Sources without their template and targets are prepared by Moses if configured; references stay as they are.
        Source and target are cut at their ends: the target with its end token to ``max_target_length``, the
        source to what the template and the longest target leave of ``max_length``.

        Raises:
            ModelError: They leave nothing.
        """
        rows = list(rows)
        opening, closing, leads = self._around(tokenizer)
        taken = len(opening) + len(closing) + self.max_target_length
        if taken >= max_length:
            raise ModelError(
                f"task.template and task.max_target_length take {plural(taken, 'token')} and model.max_length is "
                f"{max_length}: shorten or lower the ones, or raise the other"
            )
        sources, targets = (
            plain_ids(tokenizer, [lead + text if text else "" for text in map(str.strip, column)])
            for lead, column in zip(leads, self._prepared(rows), strict=True)
        )
        last = [] if self.end is None else [self.end]
        encoded = []
        for row, source, target in zip(rows, sources, targets, strict=True):
            prompt = [*opening, *source[: max_length - taken], *closing] or [self.padding]
            written = [*target[: self.max_target_length - len(last)], *last] or [self.padding]
            encoded.append(
                {"input_ids": prompt + written, "prompt": len(prompt), "references": references_of(row)}
            )
        return encoded

    def _around(self, tokenizer: Any) -> tuple[list[int], list[int], tuple[str, str]]:
        """Return the tokens before and behind the source, and the blanks that begin source and target.

        A blank belongs to the word behind it, as in byte-level vocabularies. Special tokens may be written out
        in the template.
        """
        before, behind = halves_of(self.template)
        words = [half.rstrip(" ") for half in (before, behind)]
        own = [tokenizer(half, add_special_tokens=False)["input_ids"] if half else [] for half in words]
        leads = before[len(words[0]) :], behind[len(words[1]) :]
        return [*frame(tokenizer)[0], *own[0]], own[1], leads

    def input_lengths(self, features: Features) -> np.ndarray:
        """Return the tokens of each prompt; those of its target stand behind it."""
        return features.values("prompt")

    def collate(
        self, features: Features, indices: np.ndarray, device: torch.device, *, training: bool = False
    ) -> Batch:
        """Return ``input_ids``, ``attention_mask`` (batch, longest), and ``places`` and ``labels`` of targets."""
        batch = padded_inputs(features, indices, self.padding, torch.device("cpu"))
        ids = batch["input_ids"]
        column = torch.arange(ids.shape[1])
        begin = torch.from_numpy(features.values("prompt")[indices])[:, None]
        predicted = (column >= begin) & batch["attention_mask"].bool()
        # Each token is predicted from the place before it; a prompt has one token at least.
        places = predicted.flatten().nonzero().squeeze(1) - 1
        return to_device(batch | {"places": places, "labels": ids[predicted]}, device)

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        if not callable(getattr(model, "generate", None)):
            raise ModelError(
                f"{type(model).__name__} cannot generate texts: take a Transformer, such as smollm2 or a GPT-2"
            )
        inputs: dict[str, Any] = {name: batch[name] for name in ("input_ids", "attention_mask")}
        return logits_at(model, inputs | no_cache(model), batch["places"], batch["input_ids"].shape)

    def predict(
        self, model: nn.Module, features: Features, indices: np.ndarray, device: torch.device
    ) -> Predictions:
        """Return the texts that are generated, and the loss of the targets' tokens."""
        batch = self.collate(features, indices, device)
        lengths = torch.from_numpy(features.values("prompt")[indices]).to(device)
        batch["prompt"], batch["prompt_mask"] = _on_the_left(batch["input_ids"], lengths, self.padding)
        width = batch["input_ids"].shape[1]
        # Logits are made for targets alone; a row has this many of them.
        logits = self.vocabulary * int((features.lengths(indices) - features.values("prompt")[indices]).max())
        return self._predictions(model, indices, split_batch(batch, -(-logits // width), width))

    def _written(self, model: nn.Module, batch: Batch) -> list[str]:
        """Return the text that is generated for each prompt.

        With a trained prompt before them, prompts of different lengths are generated one length at a time: PEFT
        lets no positions through, and the padding between the two would count.
        """
        from fednlp.models.prompt_tuning import is_prompted

        prompts, mask, tokenizer = batch["prompt"], batch["prompt_mask"], cached_tokenizer(self.tokenizer)
        lengths = mask.sum(1)
        prompted = is_prompted(model)
        alike = [lengths == n for n in sorted({*lengths.tolist()})] if prompted else [lengths > 0]
        texts: dict[int, str] = {}
        for chosen in alike:
            width = int(lengths[chosen].max())
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Position ids are not supported", UserWarning)
                inputs = {"input_ids": prompts[chosen, -width:], "attention_mask": mask[chosen, -width:]}
                written = self._generated(model, inputs, tokenizer)
            texts |= zip(chosen.nonzero().squeeze(1).tolist(), written, strict=True)
        return [texts[row] for row in range(len(prompts))]

    def _target_sizes(self, features: Features, examples: np.ndarray) -> np.ndarray:
        written: np.ndarray = features.lengths(examples) - features.values("prompt")[examples]
        return written - (self.end is not None)

    def _sources(self, features: Features, indices: np.ndarray, tokenizer: Any) -> Iterator[np.ndarray]:
        special = np.array(tokenizer.all_special_ids)
        opening, closing, _ = self._around(tokenizer)
        ends = features.values("prompt")[indices] - len(closing)
        for index, end in zip(indices.tolist(), ends.tolist(), strict=True):
            ids = features.ragged("input_ids", index)[len(opening) : end]
            yield ids[~np.isin(ids, special)]


def halves_of(template: str) -> tuple[str, str]:
    r"""Return what stands before and behind the source in a template.

    Raises:
        ConfigError: It does not hold ``{source}`` once, or holds another field.

    >>> halves_of("Sum up: {source}\n\n{{}}")
    ('Sum up: ', '\n\n{}')
    """
    example = 'e.g. task.template = "{source}\\n\\nSummary: "'
    try:
        found = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"task.template {template!r}: {error}; a brace itself is written twice") from None
    halves = [""]
    for words, field, detail, conversion in found:
        halves[-1] += words
        if field is None:
            continue
        if field != "source" or detail or conversion:
            raise ConfigError(
                f"task.template {template!r} holds {{{field}}}: it may hold {{source}}, {example}"
            )
        halves.append("")
    if len(halves) != 2:
        raise ConfigError(f"task.template {template!r} must hold {{source}} once, {example}")
    return halves[0], halves[1]


def _on_the_left(ids: Tensor, lengths: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return the beginnings of rows with padding before them, and their mask, both (rows, longest).

    Args:
        ids: Tokens (rows, width).
        lengths: How many tokens of each row are its beginning, at least one.

    >>> _on_the_left(torch.tensor([[7, 8, 9], [5, 6, 4]]), torch.tensor([1, 2]), 0)[0].tolist()
    [[0, 7], [5, 6]]
    """
    longest = int(lengths.max())
    index = torch.arange(longest, device=ids.device) - (longest - lengths)[:, None]
    mask = index >= 0
    return ids.gather(1, index.clamp(min=0)).where(mask, padding), mask.long()
