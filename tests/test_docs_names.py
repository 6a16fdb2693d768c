"""What pages name exists: pages and their sections, files, modules, keys, options, run directories."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from fednlp import config
from fednlp.cli import app
from fednlp.simulation.run_dir import settings_hash

from .docs_blocks import PAGES, ROOT, leaf

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
SECTIONS = re.compile(r"^## \[(\w+)\]$(.*?)(?=^## )", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", one) for one in re.findall(r"^#+ (.*)$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", TEXTS[page]):
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(to), (
            f"{page.name} links to {target}, which has no such section"
        )


def test_files_of_the_project_exist() -> None:
    """``\\`models/groups.py\\``` is a file below the root, or below ``src/fednlp``; "save it as" makes one."""
    named = {
        (page.name, path)
        for page, text in TEXTS.items()
        for path in re.findall(r"(?<!as )`((?:[a-z_]+/)+[a-z_]+\.(?:py|toml))`", text)
    }
    bases = (ROOT, ROOT / "src/fednlp")
    missing = sorted(
        (page, path) for page, path in named if not any((base / path).exists() for base in bases)
    )
    assert not missing


def test_every_key_has_its_row() -> None:
    """The tables of configuration.md have the keys of each section, all of them and no other."""
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for section, text in SECTIONS.findall(page):
        cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.M)
        found[section] = {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
        if not found[section]:  # keys in a sentence, which has a page of its own for their meaning
            found[section] = set(re.findall(r"`(\w+)`", text))
    for name, field in config.Experiment.model_fields.items():
        section_of: Any = next(
            (one for one in _types(field.annotation) if hasattr(one, "model_fields")), None
        )
        if section_of is not None:
            keys = set(section_of.model_fields)
            open_ended = section_of.model_config.get("extra") == "allow"  # methods have keys of their own
            assert found[name] >= keys if open_ended else found[name] == keys, f"[{name}]"


def _types(annotation: Any) -> list[Any]:
    return list(getattr(annotation, "__args__", ())) or [annotation]


def commands(group: Any) -> list[Any]:
    """Return all commands below a group."""
    below = getattr(group, "commands", {}).values()
    return [group, *(one for child in below for one in commands(child))]


def test_options_exist() -> None:
    known = {
        name for one in commands(typer.main.get_command(app)) for option in one.params for name in option.opts
    }
    for page, text in TEXTS.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        for code in re.findall(r"`((?:fednlp [^`]*)?--[^`]+)`", prose):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", code))
            assert named <= known | {"--help"}, f"{page.name}: {code}"


def test_every_option_of_a_command_is_told() -> None:
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^## fednlp (\w+)$(.*?)(?=^## |\Z)", page, re.M | re.S):
        command = leaf([name])[0]
        told = set(re.findall(r"--[a-z-]+", text))
        options = {max(option.opts, key=len) for option in command.params if option.opts[0].startswith("-")}
        assert options <= told, f"fednlp {name}: nothing is said of {sorted(options - told)}"


def test_pages_name_the_runs_that_fednlp_makes() -> None:
    found = {
        (page.name, name, digest)
        for page, text in TEXTS.items()
        for name, digest in re.findall(r"runs/([a-z-]+)-([0-9a-f]{8})\b", text)
    }
    assert found
    for page, name, digest in sorted(found):
        made = settings_hash(config.load(ROOT / "experiments" / f"{name}.toml").resolved())
        assert digest == made, f"{page} names runs/{name}-{digest}, and fednlp makes runs/{name}-{made}"


def test_the_glossary_has_every_term_once_with_a_page() -> None:
    rows = re.findall(
        r"^\| (\*\*.*) \| (.*) \|$", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.M
    )
    terms = [term for cell, _ in rows for term in re.findall(r"\*\*([^*]+)\*\*", cell)]
    assert len(terms) == len(set(terms)) > 50
    for cell, meaning in rows:
        assert "](" in meaning, f"nothing says where to read on about {cell}"


@pytest.mark.parametrize("retired", ["procedure", "guard", "engine", "worst tenth", "remembered", "vanish"])
def test_retired_words_head_no_section(retired: str) -> None:
    for page, text in TEXTS.items():
        headings = re.findall(r"^#+ .*", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
        assert not any(re.search(rf"\b{retired}", heading, re.I) for heading in headings), page.name
