"""Adapters through PEFT: the base stays as it is, the adapters and the new head are trained."""

import copy
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fednlp.errors import MissingDependency, ModelError, install_command
from fednlp.models.peft_methods import (
    AVERAGED_BY,
    FIXED_A,
    METHODS,
    MOVED_BASE,
    check_peft,
    method_of,
    type_of,
)
from fednlp.models.prompt_tuning import is_prompted, save_prompted
from fednlp.models.registry import LSTM

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
ADAPTER = "default"
"""PEFT's name of the only adapter of a model."""
_OURS = ("method", *AVERAGED_BY)
"""Options that PEFT is not given."""
_SETS = ("target_modules", "feedforward_modules", "exclude_modules", "modules_to_save")


def with_adapter(
    model: nn.Module, options: Mapping[str, Any], model_class: str, fresh: Collection[str] = ()
) -> nn.Module:
    """Return a model with adapters, in which these and fresh parts alone are trainable.

    Args:
        model: A pretrained model; it becomes part of the result.
        options: ``method`` (of :data:`fednlp.models.peft_methods.METHODS`) and what it takes. Where
            ``target_modules`` is left out, the layers are PEFT's own choice for the architecture. Parts that are
            trained as a whole get no adapter.
        model_class: The auto class that it was loaded with.
        fresh: Names of the parameters that its checkpoint did not have.

    Raises:
        ModelError: An option is unknown, out of its range, or does not fit the architecture.
        MissingDependency: ``peft`` is not installed.
    """
    check_peft(options)
    try:
        import peft
    except ImportError:
        raise MissingDependency(f"[model.peft] needs PEFT: run {install_command('lora')}") from None
    if type_of(model) == LSTM:
        raise ModelError("[model.peft] adapts transformers, and this is an LSTM: leave it out")
    kind = _KINDS.get(model_class)
    theirs = _ADDED_BY_PEFT.get(kind or "", ())
    whole = _whole_modules(model, fresh)
    others = [path for path in whole if path not in theirs]
    method = METHODS[method_of(options)]
    if method.adapt is not None:
        return method.adapt(model, options, kind, others)
    assert method.layers is not None
    chosen = {key: value for key, value in options.items() if key not in _OURS}
    chosen |= {"r": max(options["ranks"])} if options.get("ranks") else {}
    chosen |= method.layers(model, options)
    try:
        config = getattr(peft, method.config)(
            task_type=kind,
            modules_to_save=others or None,
            exclude_modules=_paths_within(model, [*whole, *theirs]) or None,
            **chosen,
        )
        adapted: Any = peft.get_peft_model(model, config)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ModelError(f'[model.peft] {reason}; target_modules = "all-linear" fits most models') from None
    if options.get("averaging") == FIXED_A:
        for name, parameter in adapted.named_parameters():
            if ".lora_A." in name:
                parameter.requires_grad_(False)
    adapted.base_is_trained = options.get("averaging") in MOVED_BASE
    made: nn.Module = adapted
    return made


def _paths_within(model: nn.Module, outer: Collection[str]) -> list[str]:
    """Return the paths of some modules and of all modules inside them."""
    return [
        path
        for path, _ in model.named_modules()
        if any(path == name or path.startswith(f"{name}.") for name in outer)
    ]


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


def lora_layers(model: nn.Module) -> list[Any]:
    """Return the layers of a model that low-rank adapters are on."""
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def is_adapted(model: nn.Module) -> bool:
    """Return whether a model came from :func:`with_adapter`."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def save_adapted(model: Any, folder: Path) -> None:
    """Write a model with its adapters merged in, as an ordinary model, and the adapters in a folder of their own.

    A prompt cannot be merged: the ordinary model is then without it. Where the base moved too (averaging = "exact" or
    "flora"), the adapters alone do not describe the trained base, and are not written.

    Args:
        model: From :func:`with_adapter`; it stays as it is.
        folder: Gets the merged model; its folder ``adapter`` gets what PEFT loads.
    """
    if is_prompted(model):
        save_prompted(model, folder)
    else:
        _merged(model).save_pretrained(folder)
    if getattr(model, "base_is_trained", False):
        return
    adapter = folder / "adapter"
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)  # a form to be filled in
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in _SETS:  # the same run must write the same file
        if isinstance(config.get(key), list):
            config[key] = sorted(set(config[key]))
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _merged(model: Any) -> Any:
    """Return a copy with the adapters merged in and trained modules in their places.

    PEFT puts back single layers only, for IA3: a whole head (RoBERTa's) or pooler it cannot.
    """
    from peft.utils import ModulesToSaveWrapper

    made = copy.deepcopy(model)
    for path, module in list(made.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            made.set_submodule(path, module.modules_to_save[ADAPTER])
    return made.merge_and_unload()
