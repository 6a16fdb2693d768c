"""Import Arrow without pandas: Arrow asks of each value whether it is a frame, and imports pandas to find out."""

import os
import sys
from functools import cache
from importlib.abc import MetaPathFinder
from types import ModuleType

from fednlp.models.quick_import import SWITCH

_PANDAS = "pandas"


@cache
def import_arrow() -> None:
    """Import Arrow; where quick imports are asked for, have it take pandas for absent until a frame is asked of it.

    Arrow looks for pandas once, and again when it is to make or read a frame. Where pandas has been imported, or Arrow
    has looked for it, all stays as it is.
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


class _Absent(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError(f"No module named {_PANDAS!r}", name=_PANDAS)
