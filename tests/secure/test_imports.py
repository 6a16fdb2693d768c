"""What secure aggregation and privacy may import: protocols know nothing of experiments, training or workers.

Their section of an experiment, ``config``, lies as high as the other sections (tests/test_imports.py).
"""

import ast
from pathlib import Path

import pytest

import fednlp

SOURCE = Path(fednlp.__file__).parent
ALLOWED = {
    "secure": ("errors", "seeds", "secure", "privacy.noise", "federated", "runtime.messages"),
    "privacy": ("errors", "seeds", "formatting.units", "privacy", "federated"),
}


def imported(path: Path) -> set[str]:
    """Return the modules of fednlp that a file imports anywhere in it, without the leading ``fednlp.``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{one.name}" for one in node.names]
        else:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        found |= {name.removeprefix("fednlp.") for name in names if name.split(".")[0] == "fednlp"}
    return found


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_what_it_may(room: str) -> None:
    files = [path for path in sorted((SOURCE / room).glob("*.py")) if path.name != "config.py"]
    assert len(files) > 3
    for path in files:
        strangers = {
            n for n in imported(path) if not f"{n}.".startswith(tuple(f"{a}." for a in ALLOWED[room]))
        }
        assert not strangers, f"{path.name} imports {sorted(strangers)}"
    everything = set().union(*map(imported, files))
    assert any(name.startswith("errors.") for name in everything), "the imports were not read"
