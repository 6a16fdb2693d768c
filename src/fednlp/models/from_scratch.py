"""Models made from scratch: an LSTM, or a Transformer encoder-decoder, over a vocabulary of their own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fednlp.disk import writing
from fednlp.errors import ModelError
from fednlp.models.folder_cache import cache_key, make_once, model_cache_folder
from fednlp.models.loading import explain_load_errors
from fednlp.models.registry import FROM_SCRATCH_NAMES
from fednlp.models.settings import apply_overrides

SPECIAL = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "cls_token": "<cls>",
    "sep_token": "<sep>",
}
"""The special tokens of a trained vocabulary, in the order of their ids from 0."""
SMALLEST = 256 + len(SPECIAL)
"""Every byte and every special token: with them any text can be encoded."""


def train_vocabulary(texts: Callable[[], Iterable[str]], size: int, folder: Path) -> Path:
    """Train a vocabulary and save it as the folder of a fast tokenizer, unless it is there already.

    The same texts give the same files to the byte, whatever the number of threads.
    Byte-pair encoding: Sennrich, Haddow and Birch 2016; on bytes: Radford et al. 2019.

    Args:
        texts: Gives the training texts, when they are needed.
        size: Number of tokens at most, special ones counted; at least 263.
        folder: Where to; name it after the texts and the size.

    Returns:
        The folder.

    Raises:
        ModelError: The size is too small.
    """
    if size < SMALLEST:
        raise ModelError(
            f"vocabulary_size = {size} is too small: the bytes and the special tokens alone are {SMALLEST}; "
            f"say 8000, or {SMALLEST} for bytes"
        )
    return make_once(folder, lambda work: _train(texts(), size, work))


def _train(texts: Iterable[str], size: int, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    # A space goes before every word, so that words given one by one read as in a text.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    with explain_load_errors(str(folder)), writing(folder):
        from transformers import PreTrainedTokenizerFast

        wrapped = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL
        )
        wrapped.save_pretrained(folder)


VOCABULARY_SIZE = 8000


def from_scratch_folder(
    name: str,
    config: Mapping[str, Any],
    texts: Callable[[], Iterable[str]],
    identity: Any,
    vocabulary_size: int = VOCABULARY_SIZE,
    log: Callable[[str], None] = lambda text: None,
    targets: Callable[[], Iterable[str]] | None = None,
) -> str:
    """Return the folder of a model without weights, made for the training texts and kept in the cache.

    Args:
        name: ``"lstm"``, ``"bilstm"`` or ``"transformer"``.
        config: ``[model.config]``: sizes that differ from the defaults.
        texts: Gives the training texts; called only where their vocabulary is not in the cache.
            With ``targets``: the sources alone.
        identity: JSON value that is the same for the same texts.
        vocabulary_size: Number of tokens of a vocabulary at most.
        log: Gets a message before a step that takes time.
        targets: Gives the targets, for a vocabulary of their own; None for one that both sides share.

    Raises:
        ModelError: No such model, no such setting, or too small a vocabulary.
    """

    def trained(texts: Callable[[], Iterable[str]], side: str = "") -> Path:
        key = cache_key([identity, side] if side else identity, vocabulary_size)
        folder = model_cache_folder(f"vocabulary-{key}")
        if not folder.is_dir():
            of = f" of the {side}s" if side else ""
            log(f"training a vocabulary{of} of {vocabulary_size:,} tokens (once; kept in {folder})")
        return train_vocabulary(texts, vocabulary_size, folder)

    if targets is None:
        return str(from_scratch_source(name, config, trained(texts)))
    _check_sides(name)
    return str(from_scratch_source(name, config, trained(texts, "source"), trained(targets, "target")))


def _check_sides(kind: str) -> None:
    if kind in FROM_SCRATCH_NAMES and kind != "transformer":
        raise ModelError(f"{kind} reads one text and has one vocabulary: separate ones are for transformer")


def from_scratch_source(
    kind: str, config: Mapping[str, Any], tokenizer_folder: Path, target_folder: Path | None = None
) -> Path:
    """Return a folder with the configuration and the tokenizer of a model that has no weights yet.

    Args:
        kind: ``"lstm"``, ``"bilstm"`` or ``"transformer"``.
        config: Settings that differ from the defaults (:class:`fednlp.models.lstm.LstmConfig`, or
            transformers' ``MarianConfig``).
        tokenizer_folder: From :func:`train_vocabulary`, or any fast tokenizer's.
        target_folder: Likewise, of the targets; None where they share it.

    Raises:
        ModelError: No such kind, or no such setting; or a kind without targets.
    """
    if kind not in FROM_SCRATCH_NAMES:
        raise ModelError(f"no model is built under the name {kind}: choose {', '.join(FROM_SCRATCH_NAMES)}")
    folders = [tokenizer_folder]
    if target_folder is not None:
        _check_sides(kind)
        folders.append(target_folder)
    tokenizers = [(one / "tokenizer.json").read_text(encoding="utf-8") for one in folders]
    folder = model_cache_folder(f"{kind}-{cache_key(kind, dict(config), *tokenizers)}")
    return make_once(folder, lambda work: _write(kind, config, folders, work))


def _write(kind: str, overrides: Mapping[str, Any], tokenizer_folders: Sequence[Path], folder: Path) -> None:
    from fednlp.models.pretrained import load_tokenizer, save_tokenizers

    tokenizer, *targets = (load_tokenizer(str(one)) for one in tokenizer_folders)
    with explain_load_errors(str(folder)):
        config = _transformer(tokenizer) if kind == "transformer" else _lstm(tokenizer, kind == "bilstm")
        if targets:
            config.decoder_vocab_size = len(targets[0])
            config.share_encoder_decoder_embeddings = False
        apply_overrides(config, overrides)
        if targets and config.share_encoder_decoder_embeddings:
            raise ModelError(
                "[model.config] share_encoder_decoder_embeddings: two vocabularies have no embedding in common: "
                "leave it out"
            )
        for one in (tokenizer, *targets):
            _frame(one, kind)
        with writing(folder):
            config.save_pretrained(folder)
            save_tokenizers(tokenizer, targets[0] if targets else None, folder)


def _lstm(tokenizer: Any, bidirectional: bool) -> Any:
    from fednlp.models.lstm import LstmConfig

    return LstmConfig(
        vocab_size=len(tokenizer), bidirectional=bidirectional, pad_token_id=tokenizer.pad_token_id
    )


def _transformer(tokenizer: Any) -> Any:
    """Return the base model of Vaswani et al. 2017, "Attention Is All You Need", Table 3."""
    from transformers import MarianConfig

    return MarianConfig(
        vocab_size=len(tokenizer),
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )


def _frame(tokenizer: Any, kind: str) -> None:
    """Set the special tokens around a text: an encoder-decoder's text ends with one, one separates pairs."""
    from tokenizers import processors

    end, apart = tokenizer.eos_token, tokenizer.sep_token
    if kind == "transformer":
        frame = {"single": f"$A {end}", "pair": f"$A {apart} $B {end}"}
    else:
        frame = {"single": "$A", "pair": f"$A {apart} $B"}
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (end, apart)]
    backend = tokenizer.backend_tokenizer
    template = processors.TemplateProcessing(**frame, special_tokens=special)
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
