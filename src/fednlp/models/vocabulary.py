"""A vocabulary trained from scratch: byte-level byte-pair encoding, trained on the training texts."""

from collections.abc import Callable, Iterable
from pathlib import Path

from fednlp.disk import writing
from fednlp.errors import ModelError
from fednlp.models.folder_cache import make_once
from fednlp.models.loading import explain_load_errors

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
