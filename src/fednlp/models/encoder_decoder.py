"""An encoder-decoder made of two pretrained models, as one ordinary checkpoint."""

from pathlib import Path
from typing import Any

from fednlp.disk import sha256_of, writing
from fednlp.errors import ModelError
from fednlp.models.folder_cache import cache_key, make_once, model_cache_folder
from fednlp.models.loading import explain_load_errors, load_pretrained
from fednlp.models.settings import check_head


def encoder_decoder_folder(encoder: str, decoder: str) -> Path:
    """Return a folder with an encoder-decoder whose halves start from two checkpoints.

    The folder (kept in the cache, by content) holds the halves' weights and no others: what neither has, which is
    above all the attention of the decoder to the encoder, is drawn from the seed when the model is loaded.
    Rothe, Narayan and Severyn 2020, "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks".

    Args:
        encoder: From :func:`fednlp.models.resolve_model`.
        decoder: Likewise; its architecture must know how to be a decoder (BERT, RoBERTa, GPT-2 ...).

    Raises:
        ModelError: One cannot be loaded or be a decoder, or their vocabularies differ.
    """
    folder = model_cache_folder(f"pair-{cache_key(source_identity(encoder), source_identity(decoder))}")
    return make_once(folder, lambda work: _join(encoder, decoder, work))


def source_identity(source: str) -> Any:
    """Return what tells one checkpoint from another: its files' digests, or its commit at the hub.

    Args:
        source: From :func:`fednlp.models.resolve_model`.

    Raises:
        ModelError: The hub does not have it.
    """
    folder = Path(source)
    if folder.is_dir():
        return [[path.name, sha256_of(path)] for path in sorted(folder.iterdir()) if path.is_file()]
    with explain_load_errors(source):
        from transformers import AutoConfig

        return [source, load_pretrained(AutoConfig, source)._commit_hash]


def _join(encoder: str, decoder: str, folder: Path) -> None:
    from fednlp.models.pretrained import load_tokenizer

    tokenizer, other = load_tokenizer(encoder), load_tokenizer(decoder)
    if tokenizer.get_vocab() != other.get_vocab():
        raise ModelError(
            f"{encoder} and {decoder} have different vocabularies: give two models that share one, "
            f'as "bert-tiny+bert-tiny" do'
        )
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, EncoderDecoderConfig

    with explain_load_errors(encoder):
        first, weights = _half(AutoModel, encoder, "encoder", {})
    with explain_load_errors(decoder):
        check_head(load_pretrained(AutoConfig, decoder), "AutoModelForCausalLM")
        ways = {"is_decoder": True, "add_cross_attention": True}
        second, others = _half(AutoModelForCausalLM, decoder, "decoder", ways)
        config = EncoderDecoderConfig.from_encoder_decoder_configs(first, second, **_special(tokenizer))
    with writing(folder):
        save_file(weights | others, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _half(auto: Any, source: str, name: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Load one half; return its configuration and the tensors that its checkpoint really has, under its name."""
    import torch

    model, report = load_pretrained(auto, source, dtype=torch.float32, output_loading_info=True, **settings)
    missing = set(report["missing_keys"])
    tensors: dict[str, Any] = {}
    seen: set[int] = set()
    for key, tensor in model.state_dict().items():
        if key not in missing and tensor.data_ptr() not in seen:  # a tied tensor is stored once
            seen.add(tensor.data_ptr())
            tensors[f"{name}.{key}"] = tensor.contiguous()
    return model.config, tensors


def _special(tokenizer: Any) -> dict[str, int]:
    """Return the token ids that generation needs: where a decoder begins, where it ends, and padding."""
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end
    if begin is None or end is None:
        raise ValueError("its tokenizer names no token that a text begins and ends with")
    return {
        "decoder_start_token_id": begin,
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": padding,
    }
