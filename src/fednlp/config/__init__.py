"""A typed experiment, from and to TOML: unknown keys get their nearest match, all mistakes come at once."""

from fednlp.config.files import canonical, differences, dump, load, parse, with_algorithm, with_method
from fednlp.config.schema import Experiment

__all__ = ["Experiment", "canonical", "differences", "dump", "load", "parse", "with_algorithm", "with_method"]
