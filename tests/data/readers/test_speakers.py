"""Who says what: plays as text and XML, and LEAF's files."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fednlp.data.readers import language as module
from fednlp.data.readers.language import leaf_reddit, leaf_shakespeare, play_text, play_xml, speeches
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]


def test_speeches(write: Write) -> None:
    path = write("t.txt", "First Citizen:\nHear me: speak.\nNow.\n\nAll:\nSpeak.\n\nNone:\n\n\nAll:\nAy:\n")
    assert list(speeches(path)) == [
        ("Hear me: speak.\nNow.", "First Citizen"),
        ("Speak.", "All"),
        ("Ay:", "All"),
    ]
    with pytest.raises(DataError, match=r"b\.txt:4: not a line 'Speaker:'"):
        list(speeches(write("b.txt", "All:\nSpeak.\n\nno speaker\n")))


def test_tinyshakespeare(real: Path) -> None:
    path = real / "shakespeare" / "tinyshakespeare.txt"
    rows = list(speeches(path))
    blocks = path.read_text().strip().split("\n\n")
    filled = [block.partition(":\n") for block in blocks if block.partition(":\n")[2].strip()]
    assert (len(blocks), len(rows)) == (7222, 7097)
    said = [("\n".join(map(str.rstrip, text.split("\n"))).strip(), name.strip()) for name, _, text in filled]
    assert rows == said
    assert Counter(row[1] for row in rows).most_common(2) == [("GLOUCESTER", 211), ("DUKE VINCENTIO", 189)]


PLAY = """THE TRAGEDY

by William Shakespeare

PERSONS REPRESENTED.

A Priest.
Marcellus, Officer.

ACT I.

SCENE I. Elsinore.
A platform.

[Enter Bernardo
and Francisco.]

Ber.
Who's there? [Aside] Ay me.

FIRST LORD.
Nay, answer me:
Stand. [Exit
a ghost.]

[Flourish.]

Peace, break thee off. Look where it comes again.
So it goes on.

Ros and Guil.
He.

ACT II.

THESEUS
In himself he is.

III.
Look you
"""


def test_a_play_as_text(write: Write) -> None:
    assert list(play_text(write("hamlet_gut.txt", PLAY.replace("\n", "\r\n")))) == [
        ("Who's there?  Ay me.", "Ber", "hamlet_gut"),
        (
            "Nay, answer me:\nStand. \nPeace, break thee off. Look where it comes again.\nSo it goes on.",
            "FIRST LORD",
            "hamlet_gut",
        ),
        ("He.", "Ros and Guil", "hamlet_gut"),
        ("In himself he is.\nIII.\nLook you", "THESEUS", "hamlet_gut"),
    ]


def test_a_poem_is_no_play(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"poem\.txt: no speech found"):
        list(play_text(write("poem.txt", "From off a hill\nwhose concave womb\n")))
    monkeypatch.setattr(module, "MOST_LINES", 5)
    with pytest.raises(DataError, match=r"long\.txt:1: more than 5 lines without a blank one"):
        list(play_text(write("long.txt", "line\n" * 6)))
    with pytest.raises(DataError, match="a speech of more than 5 lines"):
        list(play_text(write("on.txt", "ACT I.\n\nBer.\na\n" + "\nb c\n" * 6)))


XML = """<?xml version="1.0"?><play><titleStmt><title type="main">The Tragedy</title>
<title type="common">Hamlet</title></titleStmt><act><scene>
<sp><speaker long="Barnardo">BAR.</speaker><l n="1">Who&#8217;s <foreign>là</foreign>
 there?</l><stage><dir>Exit.</dir></stage><l>Nay.</l></sp>
<sp><speaker>FRAN.</speaker><l>He.</l></sp>
<sp><speaker>MAR.</speaker><stage><dir>Exit.</dir></stage></sp>
</scene></act></play>"""


def test_a_play_as_xml(write: Write) -> None:
    assert list(play_xml(write("ps.xml", XML))) == [
        ("Who’s là there?\nNay.", "Barnardo", "Hamlet"),
        ("He.", "FRAN.", "Hamlet"),
    ]
    with pytest.raises(DataError, match=r"b\.xml:6: a speech without a speaker"):
        list(play_xml(write("b.xml", XML.replace("<speaker>FRAN.</speaker>", "\n"))))
    with pytest.raises(DataError, match="entities are declared or used"):
        list(play_xml(write("c.xml", '<!DOCTYPE play [<!ENTITY a "b">]>' + XML[21:])))


PLAYS = {
    "hamlet": (1136, "Hamlet"),
    "king_lear": (1068, "King Lear"),
    "othello": (1185, "Othello"),
    "richard_iii": (1086, "Richard III"),
}


@pytest.mark.parametrize("name", PLAYS)
def test_plays_of_playshakespeare(real: Path, name: str) -> None:
    path = real / "shakespeare" / f"ps_{name}.xml"
    rows = list(play_xml(path))
    assert (len(rows), rows[0][2]) == PLAYS[name]
    said = list(ElementTree.parse(path).getroot().iter("sp"))
    assert [row[1] for row in rows] == [one[0].get("long") for one in said]
    assert [str(row[0]).count("\n") + 1 for row in rows] == [len(list(one.iter("l"))) for one in said]


def leaf(**changes: Any) -> dict[str, Any]:
    made = {
        "users": ["HAMLET", "OPHELIA"],
        "num_samples": [2, 1],
        "hierarchies": ["HAMLET_PLAY", "HAMLET_PLAY"],
        "user_data": {
            "OPHELIA": {"x": ["o" * 80], "y": ["!"]},
            "HAMLET": {"x": ["a" * 80, "b" * 80], "y": ["b", " "]},
        },
    }
    return {**made, **changes}


def test_leaf_shakespeare(write: Write) -> None:
    assert list(leaf_shakespeare(write("all_data.json", json.dumps(leaf())))) == [
        ("a" * 80, "b", "HAMLET"),
        ("b" * 80, " ", "HAMLET"),
        ("o" * 80, "!", "OPHELIA"),
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": ["HAMLET", "YORICK"]}, "user 'YORICK' is not in user_data"),
        ({"num_samples": [2, 2]}, "user 'OPHELIA' has 1 samples where num_samples says 2"),
        ({"num_samples": [2]}, "not users, num_samples and user_data"),
        ({"users": None}, "no list 'users'"),
        ({"users": [["HAMLET"], "OPHELIA"]}, r"user .* is not in user_data"),
        (
            {"users": ["HAMLET"], "num_samples": [1], "user_data": {"HAMLET": {"x": ["a"], "y": []}}},
            "1 x and 0 y",
        ),
        (
            {"users": ["HAMLET"], "num_samples": [1], "user_data": {"HAMLET": {"x": [1], "y": ["a"]}}},
            "an x or y that is no text",
        ),
    ],
)
def test_leaf_faults(write: Write, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=rf"a\.json: (user 'HAMLET': )?{said}"):
        list(leaf_shakespeare(write("a.json", json.dumps(leaf(**changes)))))


def test_leaf_reddit(write: Write) -> None:
    data = {
        "users": ["AutoModerator"],
        "num_samples": [3],
        "user_data": {
            "AutoModerator": {
                "x": [
                    [["<BOS>", "i", "like"], ["it", "<EOS>", "<PAD>"]],
                    ["plain", "list"],
                    [["<PAD>", "<PAD>"]],
                ],
                "y": [{"target_tokens": [["i", "like", "it"]], "count_tokens": 3}] * 3,
            }
        },
    }
    assert list(leaf_reddit(write("a.json", json.dumps(data)))) == [
        ("i like it", "AutoModerator"),
        ("plain list", "AutoModerator"),
    ]
    data["user_data"]["AutoModerator"]["x"][0] = "text"  # type: ignore[index]
    with pytest.raises(DataError, match="an x that is no list of tokens"):
        list(leaf_reddit(write("b.json", json.dumps(data))))
