"""The pinned archives of the package index, read from ``checksums.toml`` beside this file."""

import tomllib
from pathlib import Path

from fednlp.hubs.archives import PinnedArchive

_PINNED = {
    name: PinnedArchive(**table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}

BERT_TINY = _PINNED["bert-tiny"]
MINILM = _PINNED["minilm"]
SMOLLM2 = _PINNED["smollm2"]
NEWSGROUPS = _PINNED["newsgroups"]
BBC = _PINNED["bbc"]
REUTERS = _PINNED["reuters"]
ROTTEN_TOMATOES = _PINNED["rotten-tomatoes"]
SHAKESPEARE = _PINNED["shakespeare"]
INTERFACES = tuple(_PINNED[name] for name in ("django", "wagtail", "plone", "pretix", "gramps"))
"""Interface strings in English and German, a domain a package."""
PRETIX, GRAMPS = INTERFACES[-2:]
