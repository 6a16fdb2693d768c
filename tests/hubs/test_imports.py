"""What data, hubs and formatting may import: data sets know nothing of partitions, tasks at work, or federation."""

import ast
from pathlib import Path

import pytest

import fednlp

SOURCE = Path(fednlp.__file__).parent
ALLOWED = {
    "data": {"data", "models", "hubs", "formatting", "formulations", "disk", "errors", "seeds", "startup"},
    "hubs": {"hubs", "disk", "errors"},
    "formatting": {"formatting"},
}


def rooms_imported(path: Path) -> set[str]:
    """Return the rooms of fednlp that a file imports from anywhere in it."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            modules |= {one.name for one in node.names}
    return {name.split(".")[1] for name in modules if name.startswith("fednlp.")}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_what_it_may(room: str) -> None:
    found = {path: rooms_imported(path) for path in (SOURCE / room).rglob("*.py")}
    assert room in set().union(*found.values()), "the imports were not read"
    strangers = {path.name: rooms - ALLOWED[room] for path, rooms in found.items() if rooms - ALLOWED[room]}
    assert not strangers
