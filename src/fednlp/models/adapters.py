"""Low-rank adapters (LoRA) through PEFT: the base stays as it is, the adapters and the new head are trained."""

import copy
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fednlp.errors import MissingDependency, ModelError

_KINDS = {
    "AutoModelForSequenceClassification": "SEQ_CLS",
    "AutoModelForTokenClassification": "TOKEN_CLS",
    "AutoModelForQuestionAnswering": "QUESTION_ANS",
    "AutoModelForSeq2SeqLM": "SEQ_2_SEQ_LM",
    "AutoModelForCausalLM": "CAUSAL_LM",
}
_ADDED_BY_PEFT = {
    "SEQ_CLS": ("classifier", "score"),
    "TOKEN_CLS": ("classifier", "score"),
    "QUESTION_ANS": ("qa_outputs",),
}
OPTIONS = ("method", "r", "lora_alpha", "lora_dropout", "target_modules")


def with_adapter(
    model: nn.Module, options: Mapping[str, Any], model_class: str, fresh: Collection[str] = ()
) -> nn.Module:
    """Return a model with LoRA adapters, in which these and fresh parts alone are trainable.

    Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".

    Args:
        model: A pretrained model; it becomes part of the result.
        options: ``method`` ("lora"), ``r``, ``lora_alpha``, ``lora_dropout``, and ``target_modules``: names of
            linear layers, ``"all-linear"``, or None for PEFT's own choice for the architecture, all linear ones where
                it has none. Parts that are trained as a whole get no adapter.
        model_class: The auto class that it was loaded with.
        fresh: Names of the parameters that its checkpoint did not have.

    Raises:
        ModelError: An option is unknown, out of its range, or does not fit the architecture.
        MissingDependency: ``peft`` is not installed.
    """
    _check(options)
    try:
        import peft
    except ImportError:
        raise MissingDependency("[model.peft] needs PEFT: run pip install 'fednlp[lora]'") from None
    kind = _KINDS.get(model_class)
    theirs = _ADDED_BY_PEFT.get(kind or "", ())
    whole = _whole_modules(model, fresh)
    chosen: dict[str, Any] = {"target_modules": None} | dict(options)
    chosen.pop("method", None)
    if chosen["target_modules"] is None and not _is_known(model):
        chosen["target_modules"] = "all-linear"
    _check_targets(model, chosen["target_modules"])
    try:
        config = peft.LoraConfig(
            task_type=kind,
            modules_to_save=[path for path in whole if path not in theirs] or None,
            exclude_modules=_paths_within(model, [*whole, *theirs]) or None,
            **chosen,
        )
        adapted: nn.Module = peft.get_peft_model(model, config)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelError(f'[model.peft] {reason}; target_modules = "all-linear" fits most models') from None
    return adapted


def _is_known(model: nn.Module) -> bool:
    """Say whether PEFT has a choice of its own for an architecture's layers."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as known

    return getattr(getattr(model, "config", None), "model_type", None) in known


def _paths_within(model: nn.Module, outer: Collection[str]) -> list[str]:
    """Return the paths of some modules and of all modules inside them."""
    return [
        path
        for path, _ in model.named_modules()
        if any(path == name or path.startswith(f"{name}.") for name in outer)
    ]


def _check(options: Mapping[str, Any]) -> None:
    unknown = [key for key in options if key not in OPTIONS]
    if unknown or options.get("method", "lora") != "lora":
        wrong = ", ".join(unknown) or f'method = "{options["method"]}"'
        raise ModelError(f'[model.peft] {wrong}: there is method = "lora" with {", ".join(OPTIONS[1:])}')
    ranges: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "r": ("a whole number from 1", lambda value: type(value) is int and value >= 1),
        "lora_alpha": (
            "a number above 0",
            lambda value: type(value) in (int, float) and 0 < value < math.inf,
        ),
        "lora_dropout": ("a number in [0, 1)", lambda value: type(value) in (int, float) and 0 <= value < 1),
        "target_modules": (
            'names of layers, or "all-linear"',
            lambda value: value is None or isinstance(value, str) or _are_names(value),
        ),
    }
    for key, (wanted, fits) in ranges.items():
        if key in options and not fits(options[key]):
            raise ModelError(f"[model.peft] {key} = {options[key]!r}: give {wanted}")


def _check_targets(model: nn.Module, targets: Any) -> None:
    if not isinstance(targets, (list, tuple)):
        return
    layers = [(f".{path}", module) for path, module in model.named_modules()]
    wrong = [name for name in targets if not any(path.endswith(f".{name}") for path, _ in layers)]
    if wrong:
        there = sorted({path.rpartition(".")[2] for path, layer in layers if isinstance(layer, nn.Linear)})
        raise ModelError(
            f"[model.peft] target_modules: the model has no layer {', '.join(wrong)}; its linear ones are "
            f'{", ".join(there)}, or say "all-linear"'
        )


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(name, str) for name in value)


def _whole_modules(model: nn.Module, fresh: Collection[str]) -> list[str]:
    """Return the largest modules that hold fresh parameters and no others, by path."""
    new = set(fresh)
    found: list[str] = []
    for path, module in model.named_modules():
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        within = any(path.startswith(f"{outer}.") for outer in found)
        if path and names and not within and new.issuperset(names):
            found.append(path)
    return found


def is_adapted(model: nn.Module) -> bool:
    """Say whether a model came from :func:`with_adapter`."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def save_adapted(model: Any, folder: Path) -> None:
    """Write a model with its adapters merged in, as an ordinary model, and the adapters beside it.

    Args:
        model: From :func:`with_adapter`; it stays as it is.
        folder: Gets the merged model; its folder ``adapter`` gets what PEFT loads.
    """
    copy.deepcopy(model).merge_and_unload().save_pretrained(folder)
    adapter = folder / "adapter"
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)  # a form to be filled in
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(config["target_modules"], list):  # a set: the same run must write the same file
        config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
