"""Profiles of data sets before training: statistics, and issues of texts and labels."""

from fednlp.data.profiling.profile import DataProfile, profile
from fednlp.data.profiling.text_issues import Holders, Truncation

__all__ = ["DataProfile", "Holders", "Truncation", "profile"]
