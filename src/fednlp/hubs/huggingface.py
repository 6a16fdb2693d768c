"""Data sets at the Hugging Face hub, loaded by the library ``datasets``."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fednlp.errors import DataError, MissingDependency, install_command

_PROBE_SECONDS = 10
_OTHERWISE = "go online, or give your own files by path"


def load_hub_dataset(name: str, rename: Mapping[str, str], config: str | None, revision: str | None) -> Any:
    """Return a data set of the hub, as ``datasets.load_dataset`` does; from its cache where the hub is unreachable.

    Args:
        name: ``owner/name``.
        rename: New names of columns, by the names at the hub; ``a.b`` is the field b of the column a.
        config: Name of the configuration, where a data set has several.
        revision: Branch or commit at the hub.

    Raises:
        DataError: The hub cannot be reached and the data set is not cached, or there is no such data set.
        MissingDependency: ``datasets`` is not installed.
    """
    datasets = datasets_library(f"the data set {name!r} is at the hub", "give your own files by path")
    with _quiet(datasets):
        reachable = _is_reachable(name)
        with _offline_unless(reachable):
            try:
                loaded = datasets.load_dataset(name, config, revision=revision)
                if any("." in column for column in rename):
                    loaded = loaded.flatten()
                return loaded.rename_columns(dict(rename))
            except Exception as error:  # the library raises whatever the data set's own reader raises
                why = first_line(error) if reachable else "it cannot be reached, and has not given it before"
                raise DataError(f"cannot load {name!r} from the hub ({why}): {_OTHERWISE}") from None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def datasets_library(why: str, otherwise: str) -> Any:
    """Return the module ``datasets``.

    Args:
        why: Why the library is needed, for the message.
        otherwise: Alternative to installing it, for the message.

    Raises:
        MissingDependency: The library is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise MissingDependency(
            f"{why}, which needs an optional library: run {install_command('hub')}, or {otherwise}"
        ) from None
    return datasets


def _is_reachable(name: str) -> bool:
    """Return whether the hub answers a single request; the library itself would retry for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        HfApi().dataset_info(name, timeout=_PROBE_SECONDS)
    except GatedRepoError:
        raise DataError(
            f"the hub keeps {name!r} behind its terms: accept them there, then run hf auth login"
        ) from None
    except RepositoryNotFoundError:
        raise DataError(f"the hub has no data set {name!r}: check the owner and the name") from None
    except Exception:  # the kinds of connection error differ between versions of the library
        return False
    return True


@contextmanager
def _offline_unless(reachable: bool) -> Iterator[None]:
    """Keep the library from using the network, where the hub is not reachable: it then reads its cache."""
    import datasets.config
    import huggingface_hub.constants

    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value or not reachable
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Silence the libraries' own log messages and progress bars."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    before = [logger.level for logger in loggers]
    bars = datasets.are_progress_bars_disabled()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
