"""Examples and where they come from: known data sets, users' own files, pinned sources, and the cache."""

from fednlp.data.catalogue import CATALOGUE, Entry, data_names, describe
from fednlp.data.export import export_data
from fednlp.data.info import info
from fednlp.data.load import load_data
from fednlp.data.source import Source
from fednlp.data.sources import MODEL_NAMES, fetch, named_model
from fednlp.data.textdata import TextData

__all__ = [
    "CATALOGUE",
    "MODEL_NAMES",
    "Entry",
    "Source",
    "TextData",
    "data_names",
    "describe",
    "export_data",
    "fetch",
    "info",
    "load_data",
    "named_model",
]
