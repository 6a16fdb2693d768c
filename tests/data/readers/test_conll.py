"""Words and tags in columns, in any scheme: the same entities come out, in IOB2."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.checks import tags_fault
from fednlp.data.readers import conll as module
from fednlp.data.readers.conll import conll, inline, to_iob2
from fednlp.data.store import Row
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

marked = st.builds("{}-{}".format, st.sampled_from("BIES"), st.sampled_from(["PER", "LOC", "creative-work"]))
tags = st.lists(st.one_of(marked, st.just("O")), max_size=12)


def read(rows: list[Row]) -> list[tuple[list[str], list[str]]]:
    return [(json.loads(words or ""), json.loads(found or "")) for words, found in rows]


def entities(found: list[str]) -> list[tuple[str, int, int]]:
    """Entities of IOB2 tags, written down from its definition: (kind, first, last)."""
    spans: list[tuple[str, int, int]] = []
    for place, tag in enumerate(found):
        if tag.startswith("B-"):
            spans.append((tag[2:], place, place))
        elif tag.startswith("I-"):
            kind, first, last = spans.pop()
            assert (kind, last) == (tag[2:], place - 1), "I- goes on with what is before it"
            spans.append((kind, first, place))
    return spans


@given(tags)
def test_what_comes_out_is_iob2_and_stays(found: list[str]) -> None:
    once = to_iob2(found)
    entities(once)
    assert to_iob2(once) == once
    assert [tag == "O" for tag in once] == [tag == "O" for tag in found]


@given(tags)
def test_the_entities_are_those_that_seqeval_sees(found: list[str]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert entities(to_iob2(found)) == seqeval.get_entities(found)


@given(st.lists(st.tuples(st.sampled_from(["PER", "LOC", None]), st.integers(1, 3)), max_size=8))
def test_every_scheme_says_the_same(spans: list[tuple[str | None, int]]) -> None:
    iob1, iob2, iobes, bilou = [], [], [], []
    before = None
    for kind, length in spans:
        if kind is None:
            for made in (iob1, iob2, iobes, bilou):
                made += ["O"] * length
        else:
            middle = [f"I-{kind}"] * (length - 2)
            iob1 += [f"{'B' if before == kind else 'I'}-{kind}"] + [f"I-{kind}"] * (length - 1)
            iob2 += [f"B-{kind}"] + [f"I-{kind}"] * (length - 1)
            iobes += [f"S-{kind}"] if length == 1 else [f"B-{kind}", *middle, f"E-{kind}"]
            bilou += [f"U-{kind}"] if length == 1 else [f"B-{kind}", *middle, f"L-{kind}"]
        before = kind
    assert to_iob2(iob1) == to_iob2(iob2) == to_iob2(iobes) == to_iob2(bilou) == iob2


def test_tags_of_no_such_scheme_stay() -> None:
    assert to_iob2(["NN", "-LRB-", "B", "I", "O", "I"]) == ["NN", "-LRB-", "B", "I", "O", "B"]


CONLL2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
German JJ B-NP I-MISC

-DOCSTART- -X- -X- O
Peter NNP B-NP I-PER
Blackburn NNP I-NP I-PER
Paris NNP I-NP B-PER
"""


def test_conll_2003_as_published(write: Write) -> None:
    path = write("eng.train", CONLL2003)
    expected = [
        (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"]),
        (["Peter", "Blackburn", "Paris"], ["B-PER", "I-PER", "B-PER"]),
    ]
    assert read(list(conll(path))) == read(list(conll(path, scheme="iob1"))) == expected
    assert read(list(conll(path, scheme="none")))[0][1] == ["I-ORG", "O", "I-MISC"]
    assert read(list(conll(path, tag=2, scheme="none")))[0][1] == ["B-NP", "B-VP", "B-NP"]
    with pytest.raises(DataError, match=r"eng\.train:3: the tag 'I-ORG' cannot stand here in IOB2"):
        list(conll(path, scheme="iob2"))


def test_ontonotes_in_columns(write: Write) -> None:
    path = write("onto.bio", "in\tIN\tO\nthe\tDT\tB-DATE\nfirst\tJJ\tI-DATE\n\t\n , \t,\tO\n")
    assert read(list(conll(path, scheme="iob2"))) == [
        (["in", "the", "first"], ["O", "B-DATE", "I-DATE"]),
        ([","], ["O"]),
    ]


def test_no_break_spaces_and_line_separators_are_no_blanks(write: Write) -> None:
    path = write("a", "a\u00a0b O\nc\u2028d B-X\r\n")
    assert read(list(conll(path))) == [(["a\u00a0b", "c\u2028d"], ["O", "B-X"])]


def test_a_sentence_a_line(write: Write) -> None:
    path = write("aij.txt", "\nThe|DT|I-MISC Oxford|NNP|I-MISC ||SYM|O\n\nIn|IN|O Rome|NNP|I-LOC\n")
    assert read(list(inline(path))) == [
        (["The", "Oxford", "|"], ["B-MISC", "I-MISC", "O"]),
        (["In", "Rome"], ["O", "B-LOC"]),
    ]
    slashes = write("c.txt", "The/at/at Rome/Italy/nnp\n")
    assert read(list(inline(slashes, mark="/", parts=2))) == [(["The/at", "Rome/Italy"], ["at", "nnp"])]
    with pytest.raises(DataError, match=r"b\.txt:1: .b\|O. is not word\|POS\|tag"):
        list(inline(write("b.txt", "a|DT|O b|O")))


FAULTS = {
    "EU B-ORG\nlonely\n": ":2: the line has 1 column: write the word in column 1 and its tag in the last column",
    "EU\tB-ORG\n\tO\n": ":2: the word or the tag is missing",
    "EU\t\n": ":1: the word or the tag is missing",
}


@pytest.mark.parametrize("content", FAULTS)
def test_faults_name_the_line(write: Write, content: str) -> None:
    path = write("a.conll", content)
    with pytest.raises(DataError) as caught:
        list(conll(path))
    assert str(caught.value).startswith(f"{path}{FAULTS[content]}")


def test_options_that_do_not_fit(write: Write) -> None:
    path = write("a.conll", "EU B-ORG\n")
    with pytest.raises(DataError, match="there is no tagging scheme 'bio': choose from auto"):
        list(conll(path, scheme="bio"))
    with pytest.raises(
        DataError, match=":1: the line has 2 columns: write the word in column 1 and its tag in column 6"
    ):
        list(conll(path, tag=5))
    with pytest.raises(DataError, match=":1: the word 'EU' does not begin with 'en:'"):
        list(conll(path, prefix="en:"))
    with pytest.raises(DataError, match=":1: the tag 'S-ORG' cannot stand here in IOB1"):
        list(conll(write("b.conll", "EU S-ORG\n"), scheme="iob1"))


def test_a_file_without_blank_lines_is_stopped(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_SENTENCE", 10)
    with pytest.raises(DataError, match=r"a\.conll:1: a sentence of more than 10 words"):
        list(conll(write("a.conll", "word O\n" * 11)))


# Sentences and words of Derczynski et al. (2017), Table 2; a word of the development set is not in this copy.
WNUT = {
    "wnut17train.conll": (3394, 62_730),
    "emerging.dev.conll": (1009, 15_733),
    "emerging.test.annotated": (1287, 23_394),
}


@pytest.mark.parametrize("name", WNUT)
def test_wnut_17(real: Path, name: str) -> None:
    rows = list(conll(real / "wnut17" / name, scheme="iob2"))
    assert not any(tags_fault(str(words), str(found)) for words, found in rows)
    sentences = read(rows)
    assert (len(sentences), sum(len(words) for words, _ in sentences)) == WNUT[name]
    kinds = {tag[2:] for _, found in sentences for tag in found if tag != "O"}
    assert kinds == {"corporation", "creative-work", "group", "location", "person", "product"}


@pytest.mark.parametrize(("split", "count"), [("train", 20_000), ("dev", 10_000), ("test", 10_000)])
def test_wikiann(real: Path, split: str, count: int) -> None:
    sentences = read(list(conll(real / "wikiann_en" / split, prefix="en:", scheme="iob2")))
    assert len(sentences) == count
    assert not any(word.startswith("en:") and len(word) > 20 for words, _ in sentences[:5] for word in words)
    found = Counter(tag for _, tags in sentences for tag in tags)
    assert set(found) == {"O", "B-ORG", "I-ORG", "B-PER", "I-PER", "B-LOC", "I-LOC"}
    words = (real / "wikiann_en" / split).read_text().split("\n")
    assert sum(found.values()) == sum(line.startswith("en:") for line in words)
