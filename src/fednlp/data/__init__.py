"""Data sets as examples of a task: the known data sets by name, and users' own files."""

from fednlp.data.catalogue import CATALOGUE, Entry, data_names, describe, info
from fednlp.data.fednlp_h5 import export_data
from fednlp.data.load import load_data
from fednlp.data.textdata import TextData

__all__ = [
    "CATALOGUE",
    "Entry",
    "TextData",
    "data_names",
    "describe",
    "export_data",
    "info",
    "load_data",
]
