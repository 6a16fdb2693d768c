"""The configuration of a model: the settings of the task, and those of the user."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any

from fednlp.errors import ModelError
from fednlp.models.folder_bounds import folder_config, require_bounded
from fednlp.models.label_head import ONE_LABEL
from fednlp.models.loading import load_pretrained

_HEADS = {
    "AutoModelForSequenceClassification": ("classification", "bert-tiny, minilm, bilstm"),
    "AutoModelForTokenClassification": ("tagging", "bert-tiny, minilm, bilstm"),
    "AutoModelForQuestionAnswering": ("question answering", "bert-tiny, minilm"),
    "AutoModelForSeq2SeqLM": ("sequence to sequence", "transformer, bert-tiny+bert-tiny"),
    "AutoModelForCausalLM": ("language modelling", "smollm2, lstm"),
    "AutoModelForMaskedLM": ("masked language modelling", "bert-tiny"),
}
_LOOKS_BACK_ONLY = {"is_decoder": True, "causal": True, "attn_type": "uni"}
"""Settings that make architectures that also read both ways (BERT, XLM, XLNet) see the past alone."""
_OF_THE_TASK = ("num_labels", "id2label", "label2id", "problem_type")
_OF_THE_TOKENIZER = ("vocab_size", "decoder_vocab_size")
_POSITIONS = (
    "max_position_embeddings",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)
# Position ids of these begin at the padding id + 1, so that their tables hold more rows than a text may have tokens.
_POSITIONS_AFTER_PADDING = frozenset(
    {
        *(
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "camembert",
            "xmod",
            "longformer",
        ),
        *("mpnet", "data2vec-text", "ibert", "esm", "luke", "mluke", "markuplm", "lilt", "layoutlmv3"),
    }
)


def check_head(config: Any, model_class: str) -> None:
    """Check that an architecture has the head that a task needs.

    Args:
        config: A configuration, or its class.
        model_class: Name of an auto class, from the task.

    Raises:
        ModelError: It has none; the message says which it has, and what to use instead.
    """
    if _has_head(config, model_class):
        return
    what, instead = _HEADS.get(model_class, (model_class, "another model"))
    there = ", ".join(name for head, (name, _) in _HEADS.items() if _has_head(config, head)) or "nothing"
    raise ModelError(
        f"{config.model_type} models have no head for {what} ({model_class}): use {instead}, or another that has "
        f"one; of fednlp's tasks, {config.model_type} has heads for {there}"
    )


def cloze_class(config: Any) -> str:
    """Return the auto class with which a model fills the gap of a prompt: that of decoders where it has no other."""
    masked, causal = "AutoModelForMaskedLM", "AutoModelForCausalLM"
    return causal if _has_head(config, causal) and not _has_head(config, masked) else masked


def _has_head(config: Any, model_class: str) -> bool:
    import transformers

    auto = getattr(transformers, model_class)
    kind = config if isinstance(config, type) else type(config)
    return kind in auto._model_mapping or model_class in (getattr(config, "auto_map", None) or {})


def load_config(
    source: str, model_class: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Any:
    """Load a model's configuration for a task.

    Args:
        source: From :func:`fednlp.models.resolve_model`.
        model_class: Name of an auto class.
        overrides: ``[model.config]``.

    Raises:
        ModelError: There is no head for the task, or an override is unknown or not the user's to give.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    found = folder_config(source)
    kind = found.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING and "auto_map" not in found:
        check_head(CONFIG_MAPPING[kind], model_class)  # before anything of the configuration is looked at
    config = load_pretrained(AutoConfig, source)
    check_head(config, model_class)
    taken = [key for key in overrides if key in settings or key in _OF_THE_TASK]
    if taken:
        raise ModelError(f"[model.config] {', '.join(taken)}: leave it out: the task sets it")
    apply_overrides(config, overrides)
    for key, value in settings.items():
        setattr(config, key, value)
    if "id2label" in settings and config.problem_type not in ONE_LABEL:
        config.problem_type = None
    if model_class == "AutoModelForCausalLM":
        for key, value in _LOOKS_BACK_ONLY.items():
            if hasattr(config, key):
                setattr(config, key, value)
    return config


def apply_overrides(config: Any, overrides: Mapping[str, Any], place: str = "[model.config]") -> None:
    """Set what the user wants otherwise; a table for a part of the model goes into that part.

    Raises:
        ModelError: There is no such setting, or the tokenizer decides it.
    """
    from transformers import PretrainedConfig

    require_bounded(overrides, place)
    taken = [key for key in overrides if key in _OF_THE_TOKENIZER]
    if taken:
        raise ModelError(f"{place} {', '.join(taken)}: leave it out: the tokenizer sets it")
    unknown = [key for key in overrides if not _is_setting(config, key)]
    if unknown:
        raise ModelError(
            f"{place} {', '.join(unknown)}: {config.model_type} models have no such setting{_near(config, unknown)}; "
            f"see the model's config.json for the names, or leave all out with --set 'model.config={{}}'"
        )
    for key, value in overrides.items():
        part = getattr(config, key)
        if isinstance(part, PretrainedConfig):
            if not isinstance(value, Mapping):
                raise ModelError(f"{place} {key} is a part of the model: give a table of its settings")
            apply_overrides(part, value, f"{place} {key}:")
            continue
        try:
            setattr(config, key, value)
        except Exception as error:  # configurations check their values, each in its own way
            raise ModelError(f"{place} {key} = {value!r}: {' '.join(str(error).split())}") from None
    require_bounded(config.to_dict(), place)
    try:
        config.validate()
    except Exception as error:
        raise ModelError(f"{place} {' '.join(str(error.__cause__ or error).split())}") from None


def _near(config: Any, unknown: Iterable[str]) -> str:
    """Return what to say of the settings whose names are like those that a model does not have."""
    known = [key for key in config.to_dict() if _is_setting(config, key)]
    near = [
        [*(key for key in known if key in name), *get_close_matches(name, known, n=2, cutoff=0.6)]
        for name in unknown
    ]
    found = dict.fromkeys(chain.from_iterable(near))
    return f"; it has {', '.join(found)}" if found else ""


def _is_setting(config: Any, key: str) -> bool:
    """Return whether a configuration has a setting; names that begin with _ are private, such as kernels of the hub."""
    return not key.startswith("_") and hasattr(config, key) and not callable(getattr(config, key))


def position_limit(config: Any) -> int | None:
    """Return how many tokens a model has positions for; None where there is no limit.

    Relative positions (T5) and recurrence (LSTM) have none. The shorter of encoder and decoder counts.
    """
    parts = (config, getattr(config, "encoder", None), getattr(config, "decoder", None))
    return min((limit for part in parts for limit in _limits(part)), default=None)


def _limits(config: Any) -> list[int]:
    found = (getattr(config, name, None) for name in _POSITIONS)
    limits = [number for number in found if isinstance(number, int) and number > 0]
    if getattr(config, "model_type", None) in _POSITIONS_AFTER_PADDING:
        return [number - (config.pad_token_id or 0) - 1 for number in limits]
    return limits
