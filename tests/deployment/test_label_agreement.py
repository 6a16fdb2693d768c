"""Labels agreed from the sites' own: the run is that in which they are given, and nobody has to tell them."""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp import config
from fednlp.config import Experiment
from fednlp.data.label_names import label_name
from fednlp.data.textdata import in_order
from fednlp.deployment.operate.shards import Shards, split_out
from fednlp.deployment.server import label_agreement
from fednlp.deployment.server.federation import FOLDER
from fednlp.deployment.server.label_agreement import agree
from fednlp.deployment.server.run_directory import open_directory
from fednlp.deployment.session.call_ids import client_of
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Call
from fednlp.deployment.site.data import UnfitSiteData, open_site_data
from fednlp.deployment.site.label_telling import LONGEST_LABEL, MOST_LABELS, examine_labels, tell_labels
from fednlp.deployment.site.policy import parse_policy
from fednlp.errors import RunError
from fednlp.simulation.precision import with_precision

from .test_federation import Member, deploy, quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
TELLS = {"tell_labels": True}


def without_labels(experiment: Experiment) -> Experiment:
    sections: dict[str, Any] = experiment.model_dump(exclude_none=True)
    del sections["data"]["labels"]
    return config.parse(sections, experiment.name).resolved()


@pytest.fixture
def shards(experiment: Make, tmp_path: Path) -> Shards:
    settings = {
        "num_rounds": 2,
        "clients_per_round": 3,
        "partition.clients": 3,
        "task.name": "text-classification",
    }
    return split_out(experiment(settings).resolved(), tmp_path / "shards", quiet)


@pytest.fixture(scope="module")
def asked(experiment: Make) -> Experiment:
    """An experiment that names no labels."""
    changes = {"data": {"name": "sites"}, "task.name": "text-classification", "partition": None}
    return experiment(changes).resolved()


def test_agreed_labels_are_given_labels(shards: Shards, tmp_path: Path) -> None:
    asked = without_labels(shards.experiment)
    given = deploy(shards, tmp_path / "given")
    agreed = deploy(replace(shards, experiment=asked), tmp_path / "agreed", TELLS)
    assert rounds(agreed) == rounds(given)
    for name in ("model/model.safetensors", "resolved.toml", "task.json"):
        assert (agreed.folder / name).read_bytes() == (given.folder / name).read_bytes(), name
    again = open_directory(asked, agreed.folder)
    assert again.experiment() == with_precision(shards.experiment)


def site(path: Path, **sections: Any) -> Any:
    return parse_policy({"data": {"path": str(path), "test_fraction": 0.0}, "allow": TELLS} | sections)


def request_of(experiment: Experiment) -> dict[str, Any]:
    return {"experiment": experiment.model_dump(exclude_none=True)}


def test_a_site_tells_its_labels_by_the_experiment_s_names(asked: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    file.write_text("text,label\na,Kardiologie\nb,Chirurgie\nc,Kardiologie\n")
    policy = site(file, labels={"Kardiologie": "cardiology"})
    assert tell_labels(policy, "nord", request_of(asked)) == {"labels": ["Chirurgie", "cardiology"]}
    lines = examine_labels(policy, "nord", request_of(asked), "fl.example.org:8443")
    assert lines[1:3] == [
        "tells       Chirurgie, cardiology",
        "refused     nothing: the file of this site allows it",
    ]
    shy = site(file, allow={})
    assert "allow.tell_labels = false" in examine_labels(shy, "nord", request_of(asked), "x")[2]


@pytest.mark.parametrize(
    ("allow", "reason"),
    [
        ({}, "allow.tell_labels"),
        (TELLS | {"tasks": ["causal-lm"]}, "allow.tasks"),
        (TELLS | {"most_rounds": 1}, "most_"),
    ],
)
def test_what_a_site_refuses_it_does_not_tell(
    asked: Experiment, tmp_path: Path, allow: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RunError, match=rf"site nord refuses: .*{reason}"):
        tell_labels(site(tmp_path / "no file", allow=allow), "nord", request_of(asked))


def test_a_column_of_texts_is_not_told(asked: Experiment, tmp_path: Path) -> None:
    """Somebody named the wrong column: the server would have got the texts."""
    for number, text in ((MOST_LABELS + 1, "note {}"), (2, "{}" + "x" * LONGEST_LABEL), (3, "a\u200b{}")):
        file = tmp_path / f"{number}.csv"
        file.write_text("text,label\n" + "".join(f"a,{text.format(row)}\n" for row in range(number)))
        with pytest.raises(UnfitSiteData, match=r"name the column of the labels \(data.label\)") as caught:
            tell_labels(site(file), "nord", request_of(asked))
        assert caught.value.for_server == "its labels are not such as can be told"


def test_composed_and_decomposed_names_are_one_label(tmp_path: Path) -> None:
    """A file on one system says é in one character, and on another in two."""
    file, name = tmp_path / "notes.csv", "Présence"
    for form in ("NFC", "NFD"):
        file.write_text(f"text,label\na,{unicodedata.normalize(form, name)}\nb,no\n", encoding="utf-8")
        for wanted in ("NFC", "NFD"):
            theirs = unicodedata.normalize(wanted, name)
            data = open_site_data(site(file), "text-classification", [theirs, "no"])
            assert data.label_names == (theirs, "no")
            assert data.labels("train").tolist() == [0, 1]
        assert open_site_data(site(file), "text-classification", None).label_names == (name, "no")


def answering(
    experiment: Experiment, folder: Path, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[Experiment, list[str]]:
    """Agree with sites that answer so, without a network; an error is a text, and a site whose answer is several tries.

    A site that refused comes back at once; the server ends where one has no further answer.
    """
    directory = open_directory(experiment, folder)
    hub, lines = Hub(folder / "hub", "run"), list[str]()
    replies: list[Any] = []
    tries: dict[int, int] = {}

    class Stored:
        def __init__(self, call: Call) -> None:
            self.id, self.client = call.id, client_of(call.id)
            number = tries[self.client] = tries.get(self.client, 0) + 1
            assert call.id == f"0.{self.client}.labels" + (f"-{number}" if number > 1 else "")
            found = told[self.client]
            if isinstance(found, tuple):
                found = found[number - 1]
            elif number > 1:
                raise Ended
            self.answer, self.error = (None, found) if isinstance(found, str) else ({"labels": found}, None)

    def connected() -> dict[int, Any]:
        return {
            client: SimpleNamespace(since=tries.get(client, 0) + len(replies)) for client in range(len(told))
        }

    monkeypatch.setattr(hub, "connected", connected)
    monkeypatch.setattr(hub, "ask", lambda client, call: replies.append(Stored(call)))
    monkeypatch.setattr(hub, "take", lambda timeout: replies.pop(0) if replies else None)
    members = [Member(f"s{client}", client) for client in range(len(told))]
    try:
        found = agree(directory, directory.folder / FOLDER, hub, lambda: members, set, lines.append)
    except Ended:
        raise RunError(lines[-1]) from None
    return found, lines


class Ended(Exception):
    """A site has no further answer."""


NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9).map(
    label_name
)  # as sites tell them


@given(told=st.lists(st.lists(NAMES, max_size=5), min_size=1, max_size=4))
def test_the_union_is_in_a_data_set_s_order(
    told: list[list[str]], asked: Experiment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run") / "server"
    wanted = in_order(
        asked.task.name, {unicodedata.normalize("NFC", one) for labels in told for one in labels}
    )
    with pytest.MonkeyPatch.context() as patch:
        if len(wanted) < 2:
            with pytest.raises(RunError, match=r"2 to 1,000 can be agreed: name them in data\.labels"):
                answering(asked, folder, told, patch)
            return
        found, _ = answering(asked, folder, told, patch)
    assert found.data.labels == list(wanted)
    assert json.loads((folder / FOLDER / "labels.json").read_text()) == {"labels": list(wanted)}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (["its disk is full"], "site s0 does not tell the names of its labels: its disk is full"),
        ([["a" * (LONGEST_LABEL + 1), "b"]], "what site s0 tells is no list of labels"),
        ([["a\x1b[2J", "b"]], "what site s0 tells is no list of labels"),
        ([[" ", "b"]], "what site s0 tells is no list of labels"),
        ([[1, "b"]], "what site s0 tells is no list of labels"),
        ([[f"l{n}" for n in range(MOST_LABELS + 1)]], "what site s0 tells is no list of labels"),
        ([[f"l{n}" for n in range(MOST_LABELS)], ["one more"]], "the sites have 1,001 labels together"),
    ],
)
def test_hostile_answers(
    told: list[Any], reason: str, asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=reason) as caught:
        answering(asked, tmp_path / "server", told, monkeypatch)
    assert "data.labels" in str(caught.value)


def test_a_site_that_refuses_is_asked_again_when_it_is_back(
    asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "site s0 refuses: allow.tell_labels = false"
    found, lines = answering(asked, tmp_path / "server", [(refusal, "no disk", ["b"]), ["a"]], monkeypatch)
    assert found.data.labels == ["a", "b"]
    said = [line for line in lines if "does not tell" in line]
    assert len(said) == 2
    assert said[0].startswith(f"site s0 does not tell the names of its labels: {refusal}: ")
    assert "allow.tell_labels = true in the site's file, and fednlp join again; or remove it" in said[0]


def test_a_site_whose_data_cannot_be_read_is_not_told_to_change_what_it_allows(
    asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = "its data cannot be read as examples of the experiment's task"
    _, lines = answering(asked, tmp_path / "server", [(unread, ["b"]), ["a"]], monkeypatch)
    (said,) = [line for line in lines if "does not tell" in line]
    assert f"{unread}: let the site mend that, and fednlp join again; or remove it" in said
    assert "allow.tell_labels" not in said


def test_labels_that_differ_in_case_are_named(
    asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lines = answering(asked, tmp_path / "server", [["Sports", "arts"], ["sports"]], monkeypatch)
    assert "'Sports' and 'sports' differ in case alone" in lines[-1]


def test_a_server_that_was_killed_after_it_agreed_asks_nobody_again(
    asked: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_directory(asked, tmp_path / "server")
    with monkeypatch.context() as patch:
        patch.setattr(label_agreement, "_collect", lambda *arguments: {0: ["a", "b"]})
        patch.setattr(label_agreement.config, "dump", lambda experiment: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            answering(asked, tmp_path / "server", [], patch)
    found, lines = answering(asked, tmp_path / "server", [], monkeypatch)
    assert found.data.labels == ["a", "b"]
    assert lines == []
    assert open_directory(asked, tmp_path / "server").experiment() == found
