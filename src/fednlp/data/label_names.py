"""The one spelling of a label, whatever program wrote it."""

import re
from collections.abc import Mapping
from types import MappingProxyType

# As programs write floats that are whole numbers: pandas has 1.0 for 1 once a cell of the column was empty.
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+", re.ASCII)
# A large one has a point or a plus sign, whatever writes it; "2e3" may be a code.
_LARGE = re.compile(r"-?[1-9](?:\.\d+[eE]\+?|[eE]\+)\d{1,3}", re.ASCII)
_BOOLEANS: Mapping[str, str] = MappingProxyType(
    {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "-0": "0"}
)


def label_name(label: str) -> str:
    """Return a label in its one spelling: a whole number without ``.0``, a boolean in small letters.

    It looks at the label alone, so that files, silos and sites that never see one another agree. No other label
    changes: ``"1.10"`` and ``"1.1"`` may be versions, and ``"01"`` a code.

    >>> [label_name(label) for label in ("3", "3.0", "-3.00", "True", "TRUE", "1e+16")]
    ['3', '3', '-3', 'true', 'true', '10000000000000000']
    >>> [label_name(label) for label in ("1.10", "1.1", "01", "2e3", "2.0.0", "v1.0", "tRue", "yes")]
    ['1.10', '1.1', '01', '2e3', '2.0.0', 'v1.0', 'tRue', 'yes']
    """
    if len(label) <= len("False") and label in _BOOLEANS:
        return _BOOLEANS[label]
    if not label or label[-1] not in "0123456789":
        return label
    if whole := _WHOLE.fullmatch(label):
        return "0" if whole[1] == "-0" else whole[1]
    if (
        _LARGE.fullmatch(label) and (number := float(label)).is_integer()
    ):  # false for what is beyond all floats
        return str(int(number))
    return label
