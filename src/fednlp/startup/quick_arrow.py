"""Import Arrow without pandas: Arrow asks of each value whether it is a frame, and imports pandas to find out."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from fednlp.startup.quick_import import SWITCH

_PANDAS = "pandas"


@cache
def import_arrow() -> None:
    """Import Arrow; where quick imports are asked for, have it take pandas for absent until anything imports it.

    Arrow looks for pandas once, and again when it is to make a frame, as it is asked to do here once pandas is there.
    Where pandas has been imported, or Arrow has looked for it, all stays as it is.
    """
    import pyarrow

    if os.environ.get(SWITCH) != "1" or _PANDAS in sys.modules:
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        pyarrow.array([])
    finally:
        sys.meta_path.remove(absent)
    sys.meta_path.insert(0, _Awaited())


class _Absent(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError(f"No module named {_PANDAS!r}", name=_PANDAS)


class _Awaited(MetaPathFinder):
    """Finds pandas where it is, and has Arrow know of it once it is imported."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _PANDAS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(_PANDAS)
        if spec is not None and spec.loader is not None:
            vars(spec.loader)["exec_module"] = partial(_then_tell_arrow, spec.loader.exec_module)
        return spec


def _then_tell_arrow(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    import pyarrow

    execute(module)
    with suppress(ImportError):  # a pandas that is too old for Arrow
        pyarrow.array([], pyarrow.int8()).to_pandas()
