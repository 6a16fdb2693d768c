"""Prompt tuning through PEFT: trained vectors before each text, and nothing else of the model but a new head.

PEFT puts the vectors before the embedded tokens and lengthens the mask. The output then has positions that are
no tokens of the text. They are cut off here, so that token i has its logits at position i, as without a prompt.
"""

import json
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fednlp.disk import read_whole
from fednlp.errors import MissingDependency, ModelError, install_command
from fednlp.models.folder_bounds import LONGEST_CONFIG, without_hub
from fednlp.models.settings import position_limit

_READ_BY_POSITION = ("TOKEN_CLS", "QUESTION_ANS", "CAUSAL_LM")
_POSITIONED = ("logits", "start_logits", "end_logits")
_PROMPT = "PROMPT_TUNING"


def with_prompt(model: Any, options: Mapping[str, Any], kind: str | None, whole: list[str]) -> nn.Module:
    """Return a model with a trained prompt.

    Lester et al. 2021, "The Power of Scale for Parameter-Efficient Prompt Tuning".

    Args:
        model: A pretrained model; it becomes part of the result, frozen.
        options: ``num_virtual_tokens`` and ``prompt_tuning_init``.
        kind: PEFT's name of the task; None where it has none.
        whole: Paths of the modules that are trained as a whole.

    Raises:
        ModelError: The task or the architecture cannot be prompted this way; the message says why.
    """
    import peft

    if kind is None:
        raise ModelError(
            '[model.peft] method = "prompt-tuning": PEFT prompts no masked language model; use "lora" or "ia3"'
        )
    number = int(options["num_virtual_tokens"])
    positions = position_limit(model.config)
    if positions is not None and number >= positions:
        raise ModelError(
            f"[model.peft] num_virtual_tokens = {number} leaves no room for a text: the model has {positions} "
            "positions"
        )
    try:
        config = peft.PromptTuningConfig(
            task_type=kind,
            num_virtual_tokens=number,
            prompt_tuning_init="RANDOM",
            num_transformer_submodules=1,  # PEFT prompts the encoder alone, yet would make vectors for two halves
            token_dim=model.get_input_embeddings().embedding_dim,
            num_layers=getattr(model.config, "num_hidden_layers", 1),
            num_attention_heads=getattr(model.config, "num_attention_heads", 1),
            modules_to_save=whole or None,
        )
        prompted: nn.Module = peft.get_peft_model(model, config)
        fault = _fault(prompted, kind)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        fault = " ".join(str(error).split()).rstrip(".")
    if fault is not None:
        raise ModelError(
            f'[model.peft] method = "prompt-tuning" does not go with {type(model).__name__}: {fault}; use "lora"'
        )
    return _cut(prompted, kind, number)


def is_prompted(model: Any) -> bool:
    """Return whether a model came from :func:`with_prompt`, or is PEFT's own of that kind."""
    configs = getattr(model, "peft_config", None)
    return isinstance(configs, dict) and any(c.peft_type == _PROMPT for c in configs.values())


def _cut(prompted: nn.Module, kind: str, number: int) -> nn.Module:
    if kind in _READ_BY_POSITION:
        prompted.register_forward_hook(partial(_without_prompt, number))
    return prompted


def _without_prompt(number: int, module: nn.Module, inputs: Any, output: Any) -> Any:
    """Cut the prompt's positions off a model's output."""
    for name in _POSITIONED:
        if output.get(name) is not None:
            output[name] = output[name][:, number:]
    return output


@torch.no_grad()
def _fault(prompted: Any, kind: str) -> str | None:
    """Try a prompted model on four tokens; return why its output is wrong, None if it is right.

    Two things go wrong silently in some architectures: another module than the word embedding is looked up,
    and a head reads a text's last token, which it finds by its id, while it is given vectors.
    """
    base = prompted.base_model
    words = base.get_input_embeddings().num_embeddings
    padding = getattr(base.config, "pad_token_id", None) or 0
    device = next(base.parameters()).device
    ids = torch.tensor(
        [[number for number in range(min(words, 12)) if number != padding][-4:]], device=device
    )
    mask, decoder = torch.ones_like(ids), {}
    if kind == "SEQ_2_SEQ_LM":
        decoder = {"decoder_input_ids": ids}
    was_training = base.training
    base.eval()
    looked_up = _logits(base(inputs_embeds=prompted.word_embeddings(ids), attention_mask=mask, **decoder))
    plain = _logits(base(input_ids=ids, attention_mask=mask, **decoder))
    alone = _logits(prompted(input_ids=ids, attention_mask=mask, **decoder))
    tail = torch.full_like(ids, padding)
    padded = _logits(
        prompted(
            input_ids=torch.cat([ids, tail], 1), attention_mask=torch.cat([mask, 0 * mask], 1), **decoder
        )
    )
    base.train(was_training)
    if not _alike(plain, looked_up):
        return "PEFT does not find its word embedding"
    if not _alike(alone, padded[:, : alone.shape[1]]):
        return "what it says of a text would depend on the padding behind it"
    return None


def _logits(output: Any) -> Tensor:
    logits: Tensor = output["start_logits"] if "start_logits" in output else output["logits"]
    return logits


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-3 * one.abs().max())


def save_prompted(model: Any, folder: Path) -> None:
    """Write the model without its prompt, with the head that was trained; PEFT's own folder is not written.

    Args:
        model: From :func:`with_prompt`; it stays as it is.
        folder: Gets an ordinary model, to which the prompt has to be put: :func:`with_saved_prompt`.
    """
    weights = {}
    for name, tensor in model.base_model.state_dict().items():
        if ".original_module." not in name:
            weights[name.replace(".modules_to_save.default.", ".")] = tensor
    model.base_model.save_pretrained(folder, state_dict=weights)


def with_saved_prompt(model: nn.Module, folder: Path) -> nn.Module:
    """Return a model from a folder with the prompt that was saved with it, if there is one.

    Args:
        model: The ordinary model of the folder; it becomes part of the result.
        folder: That :func:`fednlp.models.adapters.save_adapted` wrote.

    Raises:
        ModelError: The prompt cannot be loaded.
        MissingDependency: ``peft`` is not installed.
    """
    adapter = folder / "adapter"
    path = adapter / "adapter_config.json"
    try:
        saved = json.loads(read_whole(path, LONGEST_CONFIG))
        method, kind = saved["peft_type"], saved["task_type"]
        number = int(saved["num_virtual_tokens"]) if method == _PROMPT else 0
        numbers = (
            number * int(saved.get("num_transformer_submodules") or 1) * int(saved.get("token_dim") or 1)
        )
    except FileNotFoundError:
        return model
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ModelError(f"{path} is no configuration of PEFT: copy the whole folder of the run") from None
    if method != _PROMPT:
        return model
    if not (adapter / "adapter_model.safetensors").is_file():
        raise ModelError(f"{adapter} has no adapter_model.safetensors: copy the whole folder of the run")
    stored = (adapter / "adapter_model.safetensors").stat().st_size
    if not 0 < numbers <= stored:
        raise ModelError(
            f"the prompt in {adapter} cannot be loaded: it is of {numbers:,} numbers, and its file has {stored:,} bytes"
        )
    try:
        import peft
    except ImportError:
        raise MissingDependency(f"this model has a prompt: run {install_command('lora')}") from None
    try:
        with warnings.catch_warnings(action="ignore"), without_hub():
            prompted: nn.Module = peft.PeftModel.from_pretrained(model, str(adapter))
    except Exception as error:  # a loader of many hands raises anything
        raise ModelError(
            f"the prompt in {adapter} cannot be loaded: {' '.join(str(error).split())}"
        ) from None
    return _cut(prompted, str(kind), number)
