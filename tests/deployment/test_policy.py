"""A site's file: what is written loads to the defaults, and what is mistyped is named."""

import string
import tomllib
from datetime import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fednlp.deployment.site.policy import Device, SitePolicy, load_policy, parse_policy
from fednlp.deployment.site.template import write_template
from fednlp.errors import ConfigError, RunError
from fednlp.section import Section

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


KEYS = {
    name: list(type(section).model_fields)
    for name in SitePolicy.model_fields
    if isinstance(section := getattr(SitePolicy(), name), Section)
}
"""The keys of each section; the names of labels are any."""


def opened(line: str) -> str:
    """Return a line of a file without the sign of a comment, if a key stands behind it."""
    text = line.removeprefix("# ")
    return text if text.split(" = ")[0] in {key for keys in KEYS.values() for key in keys} else line


def test_the_file_that_is_written_is_the_default(tmp_path: Path) -> None:
    write_template(tmp_path / "site.toml")
    assert load_policy(tmp_path / "site.toml") == SitePolicy()
    (tmp_path / "site.toml").write_text("\ufeff" + (tmp_path / "site.toml").read_text())
    assert load_policy(tmp_path / "site.toml") == SitePolicy(), "some editors begin a file with this mark"


def test_every_key_stands_in_the_file_below_its_meaning(tmp_path: Path) -> None:
    write_template(tmp_path / "site.toml")
    lines = [opened(line) for line in (tmp_path / "site.toml").read_text().splitlines()]
    for name, keys in KEYS.items():
        start = lines.index(f"[{name}]")
        for key in keys:
            (at,) = [n for n, line in enumerate(lines[start:], start) if line.startswith(f"{key} = ")][:1]
            assert lines[at - 1].startswith("# ")
            start = at


def test_a_key_without_a_value_has_a_valid_example(tmp_path: Path) -> None:
    """Without the sign of a comment it is read, and says something."""
    write_template(tmp_path / "site.toml")
    lines = [opened(line) for line in (tmp_path / "site.toml").read_text().splitlines()]
    policy = parse_policy(tomllib.loads("\n".join(lines)))
    for name in KEYS:
        assert None not in getattr(policy, name).model_dump().values()


@given(st.dictionaries(st.sampled_from(["text", "label", "delimiter"]), TEXTS), st.dictionaries(TEXTS, TEXTS))
@example({"text": 'a"b\\\x7f'}, {'"': "\n", "": "x"})
@pytest.mark.whole
def test_any_text_is_written_as_it_is(
    tmp_path_factory: Any, given_: dict[str, str], columns: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("site") / "site.toml"
    write_template(path, given_ | {"columns": columns})
    assert load_policy(path) == parse_policy({"data": given_ | {"columns": columns}})


def test_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("# mine")
    with pytest.raises(RunError, match="is there already: edit it, or name another file"):
        write_template(path)
    assert path.read_text() == "# mine"


def test_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    """Wherever the command is typed; absolute ones stay."""
    path = tmp_path / "site.toml"
    write_template(path, {"path": ["a.csv", "/b.csv"], "test_path": "tests/c.csv"})
    data = load_policy(path).data
    assert (data.path, data.test_path) == ([str(tmp_path / "a.csv"), "/b.csv"], str(tmp_path / "tests/c.csv"))


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"alow": {}}, "unknown key alow; did you mean allow?"),
        (
            {"allow": {"largest_epsilom": 4}},
            "unknown key allow.largest_epsilom; did you mean allow.largest_epsilon?",
        ),
        ({"allow": {"threads": 4}}, "unknown key allow.threads; did you mean device.threads?"),
        ({"data": {"name": "20news"}}, "unknown key data.name; "),
        ({"allow": {"tell_size": 1}}, "allow.tell_size = 1: input should be a valid boolean"),
        ({"allow": {"largest_epsilon": 0}}, "allow.largest_epsilon = 0: input should be greater than 0"),
        (
            {"allow": {"smallest_cohort": 2}},
            "allow.smallest_cohort = 2: input should be greater than or equal to 3",
        ),
        (
            {"allow": {"algorithms": ["fedagv"]}},
            'allow.algorithms: there is no algorithm "fedagv": did you mean \'fedavg',
        ),
        ({"allow": {"tasks": ["tag*"]}}, 'allow.tasks: there is no task "tag*": '),
        ({"allow": {"averaging": ["fedex"]}}, 'allow.averaging: there is no averaging "fedex": '),
        ({"allow": {"code": ["mine"]}}, 'allow.code: "mine" is no code: write it in full'),
        ({"allow": {"tensors": ["haed"]}}, 'allow.tensors: "haed" is no part of a model: did you mean head?'),
        ({"allow": {"tensors": {"personal": "head"}}}, 'allow.tensors: say "all", a part of a model'),
        ({"device": {"device": "gpu"}}, 'device.device: there is no device "gpu": say "auto"'),
        (
            {"device": {"hours": "8-18"}},
            'device.hours: "8-18" is no part of a day: write it as "20:00-06:00"',
        ),
        ({"device": {"hours": "08:00-08:00"}}, "is no part of a day"),
        ({"labels": {"a": 1}}, "labels.a = 1: input should be a valid string"),
    ],
)
def test_mistakes_are_named(document: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(document, "site.toml")
    assert str(caught.value).startswith(f"site.toml: {line}") or line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy({"allow": {"tell_size": "no"}, "limits": {"upload": 3}})
    assert len(caught.value.problems) == 2


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"there is no site file .*: write one with fednlp join site --init --policy .*site.toml --data",
    ):
        load_policy(tmp_path / "site.toml")
    (tmp_path / "site.toml").write_text("[allow\n")
    with pytest.raises(ConfigError, match="is not readable as TOML"):
        load_policy(tmp_path / "site.toml")
    (tmp_path / "site.toml").write_text('[device]\nprofile = "none.toml"\n')
    with pytest.raises(ConfigError, match=r"device\.profile: there is no device profile"):
        load_policy(tmp_path / "site.toml")


MINUTES = st.builds(lambda minute: time(minute // 60, minute % 60), st.integers(0, 24 * 60 - 1))


@given(first=MINUTES, last=MINUTES, now=MINUTES)
def test_a_site_is_open_after_it_waited(first: time, last: time, now: time) -> None:
    """It waits for no longer than it is closed, and a device without hours never waits."""
    assert Device().seconds_until_open(now) == 0
    if first == last:
        return
    device = Device(hours=f"{first:%H:%M}-{last:%H:%M}")
    wait = device.seconds_until_open(now)
    then = (now.hour * 60 + now.minute + wait // 60) % (24 * 60)
    assert device.seconds_until_open(time(then // 60, then % 60)) == 0
    minutes = [(one.hour * 60 + one.minute - now.hour * 60 - now.minute) % (24 * 60) for one in (first, last)]
    assert wait == (60 * minutes[0] if 0 < minutes[0] < (minutes[1] or 24 * 60) else 0)


def test_words_without_letters_are_keys(tmp_path: Path) -> None:
    """A label may be any text."""
    labels = dict.fromkeys(string.punctuation, "x")
    assert parse_policy({"labels": labels}).labels == labels
