"""Load a model and its tokenizer with the right head, or build the same architecture to be filled in."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from fednlp.clock import IMPORTS, timed
from fednlp.disk import writing_tensors
from fednlp.errors import ModelError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import plural
from fednlp.models.adapters import is_adapted, save_adapted, with_adapter
from fednlp.models.folder_bounds import require_tokenizer, require_weights
from fednlp.models.label_head import fit_outputs
from fednlp.models.loading import (
    empty_model,
    explain_load_errors,
    guarded,
    has_weights,
    load_pretrained,
    refuse_unusable,
    refuse_weights,
    silence_transformers,
    without_draws,
    without_memory,
)
from fednlp.models.origins import name_origins
from fednlp.models.settings import apply_overrides, cloze_class, load_config, position_limit
from fednlp.seeds import torch_stream
from fednlp.startup.quick_import import import_modelling

_AS_LOADED = "_fednlp_as_loaded"
"""The attribute of a tokenizer with how it cut and padded when it was loaded."""
_TARGET = "target"
_READABLE = "fednlp_longest_text"
"""The setting in which the tokenizer of a run's model keeps the model_max_length that it had before the run."""
_SIZED_BY_LABELS = (
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
)


def load_tokenizer(source: str) -> Any:
    """Load a model's fast tokenizer.

    Raises:
        ModelError: It cannot be found or loaded.
    """
    with explain_load_errors(source):
        with timed(IMPORTS):
            from transformers import AutoTokenizer

        require_tokenizer(source)
        tokenizer = guarded(load_pretrained(AutoTokenizer, source), source)
        if not tokenizer.is_fast:
            raise ValueError("its tokenizer has no fast version (tokenizer.json)")
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("it has no vocabulary: tokenizer.json is missing")
        backend = tokenizer.backend_tokenizer
        setattr(tokenizer, _AS_LOADED, (backend.truncation, backend.padding))
        return tokenizer


def target_tokenizer(source: str) -> Any | None:
    """Load the tokenizer of a model's targets, in its folder ``target``; None where they share that of its sources.

    Raises:
        ModelError: It is there and cannot be loaded.
    """
    folder = Path(source) / _TARGET
    return load_tokenizer(str(folder)) if (folder / "tokenizer.json").is_file() else None


def prompt_class(source: str) -> str:
    """Return the auto class of a model for prompts: of masked language models, or of decoders.

    Raises:
        ModelError: The model's configuration cannot be loaded.
    """
    with explain_load_errors(source):
        import_modelling()
        from transformers import AutoConfig

        return cloze_class(load_pretrained(AutoConfig, source))


def longest_text(source: str, tokenizer: Any, overrides: Mapping[str, Any] | None = None) -> int:
    """Return how many tokens a model can read at most, as its configuration and its tokenizer state.

    The tokenizer of a run's model cuts texts as the run did (:func:`save_model`). What counts is what it was before.

    Args:
        source: From :func:`resolve_model`.
        tokenizer: From :func:`load_tokenizer`.
        overrides: ``[model.config]`` of the experiment.
    """
    with explain_load_errors(source):
        with timed(IMPORTS):
            from transformers import AutoConfig

        config = load_pretrained(AutoConfig, source)
        apply_overrides(config, overrides or {})
        _refuse_vocabulary(tokenizer, config, source)
        positions = position_limit(config)
    return int(min(limit for limit in (_own_limit(tokenizer), positions) if limit and limit > 0))


def _refuse_vocabulary(tokenizer: Any, config: Any, source: str) -> None:
    """Refuse a tokenizer with tokens beyond the model's table of embeddings, but for special ones that no text gets.

    Raises:
        ModelError: It has some.
    """
    rows = getattr(getattr(config, "encoder", config), "vocab_size", None)
    if not isinstance(rows, int):
        return
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special -= {tokenizer.pad_token_id, *tokenizer("", "")["input_ids"]}
    beyond = sorted(number for number in {*tokenizer.get_vocab().values()} - special if number >= rows)
    if beyond:
        raise ModelError(
            f"the tokenizer in {source} has {len(tokenizer):,} tokens, such as "
            f"{tokenizer.convert_ids_to_tokens(beyond[0])!r}, and its model a table of {rows:,}: give the tokenizer of "
            "this model, or call resize_token_embeddings(len(tokenizer)) and save both"
        )


def _own_limit(tokenizer: Any) -> int:
    return int(tokenizer.init_kwargs.get(_READABLE, tokenizer.model_max_length))


def pretrained_model(
    source: str,
    model_class: str,
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any],
    seed: int,
    peft: Mapping[str, Any] | None = None,
    *,
    require_head: bool = False,
    log: Callable[[str], None] = lambda text: None,
) -> nn.Module:
    """Load a checkpoint with the head of a task; what the checkpoint lacks is a function of the seed.

    Outputs of a head that it has follow the names of their labels (:func:`fednlp.models.label_head.fit_outputs`).

    Args:
        source: From :func:`resolve_model` or :func:`fednlp.models.from_scratch.from_scratch_folder`.
        model_class: Name of an auto class, from the task.
        settings: Of the configuration, from the task.
        overrides: ``[model.config]`` of the experiment.
        peft: ``[model.peft]`` of the experiment (:func:`fednlp.models.adapters.with_adapter`).
        require_head: Refuse a checkpoint without the head: prompts ask what it has learnt.
        log: Told of outputs of the head that are not kept.

    Raises:
        ModelError: It cannot be loaded, has no head for the task, or an option does not fit.
    """
    if require_head and not has_weights(source):
        raise ModelError(f"{source} has no weights: prompts need a trained model, e.g. bert-tiny")
    with explain_load_errors(source), torch_stream(seed, "model"):
        import_modelling()
        import torch
        import transformers

        config = load_config(source, model_class, settings, overrides)
        auto = getattr(transformers, model_class)
        if not has_weights(source):
            if peft is not None:
                raise ModelError(
                    f"[model.peft] adapts a pretrained model, and {source} has no weights: leave it out"
                )
            model: nn.Module = empty_model(auto, config, dtype=torch.float32)
            refuse_unusable(model, source)
            return model
        with without_memory(), torch_stream(0, "architecture"):
            plan = empty_model(auto, config)
        require_weights(plan, source)
        stored = refuse_weights(source)
        if stored not in ("", "float32"):
            log(f"the weights of the checkpoint are {stored}: they are trained and saved as float32")
        model, report = _loaded(auto, source, config)
        mismatched = [key for key, *_ in report["mismatched_keys"]]
        _refuse_resized(
            model, model_class, mismatched, "[model.config]" if overrides else f"{source}/config.json"
        )
        for line in _other_parts(model, source, report, any("layer" in key for key in overrides)):
            log(line)
        refuse_unusable(model, source, report["missing_keys"])
        if require_head:
            _refuse_headless(model, source, report["missing_keys"], model_class == "AutoModelForCausalLM")
        for name, parameter in plan.named_parameters():
            if not parameter.requires_grad:  # fixed by the architecture, which loading forgets
                model.get_parameter(name).requires_grad_(False)
        anew, lines = fit_outputs(
            model,
            auto,
            settings,
            report["missing_keys"],
            lambda: load_config(source, model_class, {}, overrides),
            lambda own: _loaded(auto, source, own)[0],
        )
        for line in lines:
            log(line)
        fresh = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"]), *anew}
        return model if peft is None else with_adapter(model, peft, model_class, fresh)


def _loaded(auto: Any, source: str, config: Any) -> tuple[Any, Any]:
    """Return a checkpoint's model, and transformers' report on what the checkpoint lacks."""
    import torch

    with without_draws(of_shapes_alone=True):
        model, report = load_pretrained(
            auto,
            source,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    return model, report


def _refuse_resized(model: Any, model_class: str, names: list[str], settings: str) -> None:
    """Refuse weights that do not fit the configuration, but for a head of another number of labels."""
    body = f"{model.base_model_prefix}."
    lost = sorted(n for n in names if n.startswith(body) or model_class not in _SIZED_BY_LABELS)
    if lost:
        raise ModelError(
            f"{settings} asks for another size of {lost[0]} than the checkpoint has: leave the setting out, "
            f"or give a folder with a config.json and no weights to begin from nothing"
        )


def _other_parts(model: Any, source: str, report: Mapping[str, Any], resized: bool) -> Iterator[str]:
    """Yield what of a model's body its checkpoint lacks, and what it has beyond it, a line each for people.

    Poolers, and the attention of a decoder to an encoder, are drawn anew without a word: many checkpoints lack them.

    Args:
        source: Where it is from.
        report: Of transformers, with the missing and the unexpected keys.
        resized: Whether the experiment changes the configuration, so that layers may be missing on purpose.

    Raises:
        ModelError: A quarter of the body's matrices, or half of its numbers, are missing.
    """
    parts = dict(model.named_parameters())
    prefix = f"{model.base_model_prefix}."
    own = {name for name in parts if name.startswith(prefix)} or {n for n in parts if not _HEADS.match(n)}
    matrices = {
        name: parts[name].numel() for name in own if parts[name].dim() > 1 and not _USUALLY_ANEW.search(name)
    }
    missing = sorted(matrices.keys() & {*report["missing_keys"]})
    there = sorted(report["unexpected_keys"])
    numbers = sum(matrices[name] for name in missing)
    many = 4 * len(missing) >= len(matrices) or 2 * numbers >= sum(matrices.values())
    if missing and many and not resized:
        named = f", and has others such as {clean(there[0])[:60]}" if there else ""
        raise ModelError(
            f"the checkpoint in {source} lacks {len(missing)} of the {len(matrices)} matrices that its config.json "
            f"asks for, such as {missing[0]}{named}: it is of another architecture or size than model_type = "
            f'"{model.config.model_type}", or not whole; give a folder that save_pretrained wrote'
        )
    if missing:
        yield (
            f"the checkpoint lacks {len(missing)} of {len(matrices)} matrices, such as {missing[0]}: they begin at "
            "random, drawn by the seed"
        )
    unread = [name for name in there if name.startswith(prefix) and name.endswith("weight")]
    unread = [name for name in unread if not _USUALLY_ANEW.search(name)]
    if unread and not resized:
        yield (
            f"the checkpoint has {plural(len(unread), 'weight')} that its config.json does not ask for, such as "
            f"{clean(unread[0])[:80]}: left out"
        )


_USUALLY_ANEW = re.compile(
    r"pooler|cross_?att|encoder_attn|enc_dec|crossattention|EncDecAttention|embed_positions"
)
_HEADS = re.compile(r"lm_head|classifier|score|qa_outputs|classification_head|cls\.|generator")


def _refuse_headless(model: Any, source: str, missing: Iterable[str], decoder: bool) -> None:
    """Refuse a checkpoint that has a body alone: a head drawn at random knows no word."""
    lacking = sorted(key for key in missing if not key.startswith(f"{model.base_model_prefix}."))
    if lacking:
        kind, known = ("causal", "smollm2") if decoder else ("masked", "bert-tiny")
        raise ModelError(
            f"{source} has no {kind}-LM head ({lacking[0]} is not in its checkpoint): prompts need a model that has "
            f"one, e.g. {known}; or train one first with the task {kind}-lm"
        )


def new_model(
    source: str,
    model_class: str,
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any],
    seed: int = 0,
    peft: Mapping[str, Any] | None = None,
    *,
    drawn: bool = True,
) -> nn.Module:
    """Build the same model as :func:`pretrained_model`, with trainable weights to be filled in by the caller.

    With ``drawn = False`` they hold whatever lies in memory, and take none until they are written. The checkpoint is
    read only where some weights are frozen, since the caller does not fill these in: adapters, and architectures with a
    fixed table of positions.
    """
    if peft is None:
        with explain_load_errors(source), torch_stream(0, "architecture"):
            import_modelling()
            import torch
            import transformers

            config = load_config(source, model_class, settings, overrides)
            with nullcontext() if drawn else without_draws():
                model: nn.Module = empty_model(
                    getattr(transformers, model_class), config, dtype=torch.float32
                )
            if all(parameter.requires_grad for parameter in model.parameters()):
                return model
    return pretrained_model(source, model_class, settings, overrides, seed, peft)


def save_model(
    model: nn.Module,
    tokenizer: Any,
    folder: Path,
    card: str,
    longest: int | None = None,
    generation: Any | None = None,
    base: str | None = None,
) -> None:
    """Write a model folder that ``from_pretrained`` reads, with its tokenizer and card.

    Adapters are merged into it, and lie in its folder ``adapter`` as well. A tokenizer of targets goes with the
    one given to a folder of its own, as :func:`target_tokenizer` finds it. No file names a folder of this machine.

    Args:
        folder: Where to.
        card: The text of its ``README.md``.
        longest: The tokens after which the run cut texts. The tokenizer that is written says so, and
            ``pipeline(..., truncation=True)`` cuts there too. None to leave it as it is.
        generation: transformers' ``GenerationConfig`` that the run was scored with; None to leave the model's own.
        base: ``model.name_or_path`` of the run, which its adapters are for.
    """
    silence_transformers()
    with writing_tensors():
        if is_adapted(model):
            save_adapted(model, folder)
        else:
            model.save_pretrained(folder)  # type: ignore[operator]
        if generation is not None:
            generation.save_pretrained(folder)
    written = tokenizer if longest is None else _cutting(tokenizer, longest)
    save_tokenizers(written, target_tokenizer(tokenizer.name_or_path), folder)
    name_origins(folder, base)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _cutting(tokenizer: Any, longest: int) -> Any:
    """Return a copy of a tokenizer that cuts texts, where asked to, after so many tokens."""
    cutting = copy.deepcopy(tokenizer)
    cutting.init_kwargs[_READABLE] = _own_limit(tokenizer)
    cutting.model_max_length = longest
    return cutting


def save_tokenizers(tokenizer: Any, targets: Any | None, folder: Path) -> None:
    """Write a tokenizer to a folder, and that of its targets, if there is one, where it is found again.

    A tokenizer keeps how it cut and padded last. It is written as it was loaded, so that the files do not depend on
    whether texts were tokenised or found in the cache.
    """
    for one, place in ((tokenizer, folder), (targets, folder / _TARGET)):
        if one is not None:
            _cut_and_pad_as_loaded(one)
            one.save_pretrained(place)


def _cut_and_pad_as_loaded(tokenizer: Any) -> None:
    """Have a tokenizer cut and pad as it did when it was loaded, if :func:`load_tokenizer` loaded it."""
    as_loaded = getattr(tokenizer, _AS_LOADED, None)
    if as_loaded is None:
        return
    (truncation, padding), backend = as_loaded, tokenizer.backend_tokenizer
    if truncation is None:
        backend.no_truncation()
    else:
        backend.enable_truncation(**truncation)
    if padding is None:
        backend.no_padding()
    else:
        backend.enable_padding(**padding)
