"""Texts as the scripts of Moses prepare them: punctuation is normalised, and tokens stand between blanks.

The scripts are ``normalize-punctuation.perl``, ``tokenizer.perl -no-escape`` and ``detokenizer.perl``, in the Python of
sacremoses (Koehn et al. 2007, "Moses: Open Source Toolkit for Statistical Machine Translation").
"""

import functools
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import Any

from fednlp.errors import ConfigError, MissingDependency, install_command

STEPS = ("none", "normalise", "tokenise")
"""Values of ``task.moses``; tokenising normalises first."""
_LANGUAGES = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")


def language_pair(step: str, languages: str) -> tuple[str, str]:
    """Return the codes of the languages of source and target; two empty ones where nothing is prepared.

    Args:
        step: One of :data:`STEPS`.
        languages: Two ISO 639 codes such as ``"de-en"``.

    Raises:
        ConfigError: A value is unknown, or one of both is missing.
        MissingDependency: Texts are to be prepared, and sacremoses is not installed.

    >>> language_pair("none", "")
    ('', '')
    >>> language_pair("normalise", "german")
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: task.moses = "normalise" needs the languages of source and target: say, for example, \
task.languages = "de-en", not "german"
    """
    if step not in STEPS:
        raise ConfigError(f'task.moses is "{step}": say "none", "normalise" or "tokenise"')
    if step == "none":
        if languages:
            raise ConfigError('task.languages is for task.moses = "normalise" or "tokenise": leave it out')
        return "", ""
    found = _LANGUAGES.fullmatch(languages)
    if found is None:
        raise ConfigError(
            f'task.moses = "{step}" needs the languages of source and target: say, for example, '
            f'task.languages = "de-en", not "{languages}"'
        )
    _library()
    return found[1], found[2]


def prepared(texts: Iterable[str], step: str, language: str) -> list[str]:
    """Return texts with normal punctuation and, if they are to be tokenised, with a blank between tokens.

    Args:
        texts: In one language.
        step: One of :data:`STEPS`.
        language: Its code; rules for abbreviations are those of English where Moses has none for it.

    Raises:
        MissingDependency: sacremoses is not installed.
    """
    if step == "none":
        return list(texts)
    normal = [_tool("MosesPunctNormalizer", language).normalize(text) for text in texts]
    if step == "normalise":
        return normal
    tokenizer = _tool("MosesTokenizer", language)
    return [tokenizer.tokenize(text, return_str=True, escape=False) for text in normal]


def restored(texts: Iterable[str], step: str, language: str) -> list[str]:
    """Return texts that a model wrote as they are read: their tokens are joined again.

    Args:
        texts: In one language.
        step: How the texts that the model learnt from were prepared.

    Raises:
        MissingDependency: sacremoses is not installed.
    """
    if step != "tokenise":
        return list(texts)
    tool = _tool("MosesDetokenizer", language)
    return [tool.detokenize(text.split(), unescape=False) for text in texts]


def column_preparation(step: str, languages: str) -> dict[str, Callable[[Iterable[str]], list[str]]]:
    """Return what prepares the texts of each column of a translation set; nothing where they stay as they are.

    Args:
        step: One of :data:`STEPS`.
        languages: Two ISO 639 codes such as ``"de-en"``.

    Raises:
        ConfigError: A value is unknown, or the languages are missing.
        MissingDependency: sacremoses is not installed.

    >>> column_preparation("none", "")
    {}
    """
    pair = language_pair(step, languages)
    if step == "none":
        return {}
    return {
        column: functools.partial(prepared, step=step, language=language)
        for column, language in zip(("source", "target"), pair, strict=True)
    }


def library_version(step: str) -> str:
    """Return the version of sacremoses where texts are prepared by it, else nothing.

    Raises:
        MissingDependency: sacremoses is not installed.
    """
    if step == "none":
        return ""
    _library()
    return version("sacremoses")


def _library() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise MissingDependency(f"task.moses needs sacremoses: run {install_command('moses')}") from None
    return sacremoses


@functools.cache
def _tool(name: str, language: str) -> Any:
    return getattr(_library(), name)(lang=language)
