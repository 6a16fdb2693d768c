"""Examples and where they come from: known data sets, users' own files, pinned sources, and the cache."""

from fednlp.data.catalogue import CATALOGUE, Entry, data_names, describe
from fednlp.data.export import export_data
from fednlp.data.info import info
from fednlp.data.load import load_data
from fednlp.data.textdata import TextData
from fednlp.hubs.package_index import MODEL_NAMES, fetch, named_model
from fednlp.hubs.source import Source

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
