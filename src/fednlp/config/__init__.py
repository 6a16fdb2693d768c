"""A typed experiment, from and to TOML: unknown keys get their nearest match, all mistakes come at once."""

from fednlp.config.cross_checks import own_code
from fednlp.config.files import (
    as_experiment,
    canonical,
    differences,
    dump,
    load,
    parse,
    with_algorithm,
    with_method,
    with_settings,
)
from fednlp.config.schema import Experiment

__all__ = [
    "Experiment",
    "as_experiment",
    "canonical",
    "differences",
    "dump",
    "load",
    "own_code",
    "parse",
    "with_algorithm",
    "with_method",
    "with_settings",
]
