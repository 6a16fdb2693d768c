"""A typed experiment, from and to TOML: unknown keys get their nearest match, all mistakes come at once."""

from fednlp.config.derived import with_algorithm, with_method, with_overrides, with_settings
from fednlp.config.files import as_experiment, dump, load, parse
from fednlp.config.identity import canonical, differences
from fednlp.config.own_code import own_code
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
    "with_overrides",
    "with_settings",
]
