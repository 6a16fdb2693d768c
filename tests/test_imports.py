"""Imports run one way: a room knows those below it and none above, and no module reaches itself again.

Rooms are the packages and modules of ``fednlp``. An import for type checkers alone counts for their order, and makes no
circle.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import fednlp

ROOT = Path(__file__).parents[1]
SOURCE = Path(fednlp.__file__).parent

ROOMS = (
    "errors",
    "startup",
    "seeds",
    "clock",
    "disk",
    "processor",
    "plugins",
    "python_words",
    "registry",
    "section",
    "option_types",
    "checked_json",
    "formatting",
    "formulations",
    "hubs",
    "models",
    "data",
    "tasks",
    "partition",
    "federated",
    "runtime",
    "privacy",
    "secure",
    "training",
    "costs",
    "fewshot",
    "prompts",
    "config",
    "reports",
    "simulation",
    "studies",
    "reproduction",
    "inference",
    "deployment",
    "",
    "cli",
    "__main__",
)
"""From low to high; "" is the package itself, which names what Python users have; the commands stand on it."""

FEATURES = ("fewshot", "prompts", "privacy", "secure")
"""Folders of a feature each. What one is in another room has that room's name there."""

DEPLOYMENT = ("", "session", "identity", "links", "site", "server", "operate")
"""The rooms within ``deployment``, from low to high; "" is the package itself."""


def modules() -> dict[str, Path]:
    """Return every module's file by its name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def only_for_checkers(test: ast.expr) -> bool:
    """Return whether a condition is ``TYPE_CHECKING``."""
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def statements(
    body: list[ast.stmt], for_checkers: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield the imports of a module, also those within functions, and whether they are for type checkers alone."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, for_checkers
            continue
        guarded = isinstance(node, ast.If) and only_for_checkers(node.test)
        yield from statements(getattr(node, "body", []), for_checkers or guarded)
        for name in ("orelse", "finalbody"):
            yield from statements(getattr(node, name, []), for_checkers)
        for part in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            yield from statements(part.body, for_checkers)


@cache
def imports() -> dict[str, dict[str, bool]]:
    """Return what each module imports of fednlp, and whether it does so for type checkers alone."""
    known, found = modules(), {}
    for name, path in known.items():
        there: dict[str, bool] = {}
        for node, for_checkers in statements(ast.parse(path.read_text(encoding="utf-8")).body):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                assert not node.level, f"{name} imports by a relative name"
                module = node.module or ""
                inner = [f"{module}.{alias.name}" for alias in node.names]
                names = [one if one in known else module for one in inner]
            for one in names:
                if one.partition(".")[0] == "fednlp" and one != name:
                    there[one] = there.get(one, True) and for_checkers
        found[name] = there
    return found


def room(module: str) -> str:
    """Return the room of a module: of a feature's folder for another room, such as ``fewshot.simulation``, that one."""
    own, _, rest = module.partition(".")[2].partition(".")
    inner = rest.partition(".")[0]
    return inner if own in FEATURES and inner in ROOMS else own


def test_every_module_is_in_a_room() -> None:
    assert {room(module) for module in imports()} == set(ROOMS)
    assert len(set(ROOMS)) == len(ROOMS)


def test_rooms_import_only_those_below() -> None:
    """Within functions too: a late import is as much of an arrow."""
    wrong = [
        f"{module} -> {other}"
        for module, there in imports().items()
        for other in there
        if ROOMS.index(room(other)) > ROOMS.index(room(module))
    ]
    assert not wrong, "\n".join(wrong)


def test_rooms_of_a_deployment_import_only_those_below() -> None:
    def place(module: str) -> int:
        return DEPLOYMENT.index(module.partition("deployment")[2].lstrip(".").partition(".")[0])

    wrong = [
        f"{module} -> {other}"
        for module, there in imports().items()
        for other in there
        if room(module) == room(other) == "deployment" and place(other) > place(module)
    ]
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, list[str]]) -> list[list[str]]:
    """Return one circle for each module that reaches itself again."""
    found, done = [], set[str]()

    def visit(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for other in graph[module]:
                visit(other, [*way, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found


def test_no_module_reaches_itself_again() -> None:
    """Not within a room either. A method's file and its folder's __init__ are a plugin and its registry: by name."""
    graph = {
        module: [other for other, for_checkers in there.items() if not for_checkers]
        for module, there in imports().items()
    }
    wrong = [" -> ".join(circle) for circle in circles(graph)]
    assert not wrong, "\n".join(wrong)


def test_circles_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c", "b"]]
    assert circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_late_and_conditional_imports_are_seen() -> None:
    checked = "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
    body = f"{checked}def f():\n    try:\n        import c\n    finally:\n        import d\n"
    found = [(node.names[0].name, for_checkers) for node, for_checkers in statements(ast.parse(body).body)]
    assert found == [("a", True), ("b", False), ("c", False), ("d", False)]


def test_the_page_draws_the_rooms_in_this_order() -> None:
    """Each row of the drawing is above the next; rooms of one row are side by side."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    drawing = page.partition("```text\n")[2].partition("```")[0]
    parts = [re.split(r" {2,}| ─ ", line.strip()) for line in drawing.splitlines()]
    rows = [[ROOMS.index(part) for part in row if part in ROOMS and part] for row in parts]
    drawn = [row for row in rows if row]
    assert sorted(place for row in drawn for place in row) == [
        n for n, name in enumerate(ROOMS) if name not in ("", "__main__")
    ]
    for upper, lower in pairwise(drawn):
        assert min(upper) > max(lower), [ROOMS[place] for place in (*upper, *lower)]
