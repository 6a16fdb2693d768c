"""Words and tags in whatever columns a file has them: the same sentences come out, or the question which is which."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fednlp.data import load_data
from fednlp.data.files import file_rows
from fednlp.data.readers.conll import is_tagged, layout_of
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

WORDS = [["Anna", "Berg", "sleeps"], ["In", "Rome"]]
TAGS = [["B-PER", "I-PER", "O"], ["O", "B-LOC"]]
UPOS = [["PROPN", "PROPN", "VERB"], ["ADP", "PROPN"]]

CONLLU = """# newdoc
# sent_id = 1
# text = Anna Berg sleeps
1\tAnna\tanna\tPROPN\tN\t_\t3\tnsubj\t_\t_
2-3\tBergsleeps\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
2\tBerg\tberg\tPROPN\tN\t_\t1\tflat\t_\t_
2.1\tgone\tgo\tVERB\tV\t_\t_\t_\t_\t_
3\tsleeps\tsleep\tVERB\tV\t_\t0\troot\t_\t_

# sent_id = 2
1\tIn\tin\tADP\tP\t_\t2\tcase\t_\t_
2\tRome\trome\tPROPN\tN\t_\t0\troot\t_\t_
"""
GERMEVAL = """#\thttp://de.example.org/x [2009-10-17]
1\tAnna\tB-PER\tB-LOC
2\tBerg\tI-PER\tO
3\tsleeps\tO\tO

#\thttp://de.example.org/y [2009-10-17]
1\tIn\tO\tO
2\tRome\tB-LOC\tO
"""
LAYOUTS: dict[str, tuple[str, str, list[list[str]]]] = {
    "CoNLL-U": ("a.conllu", CONLLU, UPOS),
    "CoNLL-U of another name": ("a.conll", CONLLU, UPOS),
    "CoNLL-U as text": ("a.txt", CONLLU, UPOS),
    "CoNLL-U Plus": (
        "a.conllup",
        "# global.columns = ID FORM PARSEME:NE\n1 Anna B-PER\n2 Berg I-PER\n3 sleeps *\n\n1 In *\n2 Rome B-LOC\n",
        TAGS,
    ),
    "GermEval": ("a.tsv", GERMEVAL, TAGS),
    "GermEval of another name": ("a.conll", GERMEVAL, TAGS),
    "UniversalNER": (
        "a.iob2",
        "# text = Anna Berg sleeps now\n1\tAnna\tB-PER\t-\tann\n2\tBerg\tI-PER\t-\tann\n3\tsleeps\tO\t-\tann\n\n"
        "# text = a b c\n1\tIn\tO\t-\t-\n2\tRome\tB-LOC\t-\t-\n",
        TAGS,
    ),
    "an index without blank lines": (
        "a.conll",
        "0 Anna B-PER\n1 Berg I-PER\n2 sleeps O\n0 In O\n1 Rome B-LOC\n",
        TAGS,
    ),
    "CoNLL-2003": (
        "a.txt",
        "-DOCSTART-\t-X-\tO\tO\n\nAnna N I-NP I-PER\nBerg N I-NP I-PER\nsleeps V I-VP O\n\nIn P I-PP O\n"
        "Rome N I-NP I-LOC\n",
        TAGS,
    ),
    "no entity": (
        "a.conll",
        "Anna N I-NP O\nBerg N I-NP O\nsleeps V I-VP O\n\nIn P B-PP O\nRome N B-NP O\n",
        [],
    ),
    "tags first": ("a.bio", "B-PER Anna\nI-PER Berg\nO sleeps\n\nO In\nB-LOC Rome\n", TAGS),
    "tags in the middle": ("a.bio", "Anna B-PER x\nBerg I-PER y\nsleeps O z\n\nIn O x\nRome B-LOC y\n", TAGS),
    "WikiANN": (
        "a.conll",
        "en:Anna\tB-PER\nen:Berg\tI-PER\nen:sleeps\tO\n\nen:In\tO\nen:Rome\tB-LOC\n",
        TAGS,
    ),
    "blanks and line ends": (
        "a.conll",
        "Anna   B-PER \r\nBerg    I-PER\r\nsleeps  O  \r\n \t\r\n\r\nIn   O\r\nRome  B-LOC \r\n",
        TAGS,
    ),
    "a tab at the end": (
        "a.tsv",
        "Anna\tB-PER\t\nBerg\tI-PER\t\nsleeps\tO\t\n\nIn\tO\t\nRome\tB-LOC\t\n",
        TAGS,
    ),
    "tsv without names": ("a.tsv", "Anna\tB-PER\nBerg\tI-PER\nsleeps\tO\n\nIn\tO\nRome\tB-LOC\n", TAGS),
    "names of the columns": (
        "a.tsv",
        "Token\tPOS\tTag\nAnna\tN\tB-PER\nBerg\tN\tI-PER\nsleeps\tV\tO\n\nIn\tP\tO\nRome\tN\tB-LOC\n",
        TAGS,
    ),
    "names of the columns, other tags": (
        "a.conll",
        "word pos\n\nAnna PROPN\nBerg PROPN\nsleeps VERB\n\nIn ADP\nRome PROPN\n",
        UPOS,
    ),
    "a column of one number": (
        "a.conll",
        "#begin document (a 1); part 000\n"
        + "b 0 0 Anna B-PER\nb 0 1 Berg I-PER\nb 0 2 sleeps O\n\nb 0 0 In O\nb 0 1 Rome B-LOC\n\n" * 5
        + "#end document\n",
        TAGS,
    ),
    "BMEWO": ("a.bio", "Anna B-PER\nBerg E-PER\nsleeps O\n\nIn O\nRome W-LOC\n", TAGS),
    "BILOU, underscores": ("a.bio", "Anna B_PER\nBerg L_PER\nsleeps O\n\nIn O\nRome U_LOC\n", TAGS),
    "the kind first": ("a.bio", "Anna PER-B\nBerg PER-I\nsleeps O\n\nIn O\nRome LOC-B\n", TAGS),
    "another sign for none": ("a.bio", "Anna B-PER\nBerg I-PER\nsleeps _\n\nIn _\nRome B-LOC\n", TAGS),
    "sentence numbers": (
        "a.conll",
        "".join(
            f"{number} {word} {tag}\n"
            for number in range(5)
            for words, tags in zip(WORDS, TAGS, strict=True)
            for word, tag in zip(words, tags, strict=True)
        )
        .replace("Rome B-LOC\n", "Rome B-LOC\n\n")
        .replace("sleeps O\n", "sleeps O\n\n"),
        TAGS,
    ),
}


def read(path: Path, **columns: str) -> tuple[list[list[str]], list[list[str]]]:
    names, placed = file_rows(path, None, columns).read({})
    assert list(names) == [columns.get("words", "words"), columns.get("tags", "tags")]
    rows = [[json.loads(cell or "") for cell in row] for _, row in placed]  # type: ignore[union-attr]
    return [row[0] for row in rows], [row[1] for row in rows]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_and_tags_are_found_by_what_the_columns_hold(layout: str, write: Write) -> None:
    name, content, tags = LAYOUTS[layout]
    words, found = read(write(name, content))
    assert (words[:2], found[:2]) == (WORDS, tags or [["O"] * 3, ["O"] * 2])


@pytest.mark.parametrize(
    ("name", "mark", "between"),
    [("a.txt", "/", ""), ("a.txt", "_", ""), ("a.tsv", "/", ""), ("a.txt", "|", "NN|"), ("a.txt", "#", "")],
)
def test_a_sentence_a_line_with_its_tags_is_known(name: str, mark: str, between: str, write: Write) -> None:
    lines = [
        " ".join(f"{word}{mark}{between}{tag}" for word, tag in zip(words, tags, strict=True))
        for words, tags in zip(WORDS, TAGS, strict=True)
    ]
    words, found = read(write(name, "\n\n".join(lines * 9)))
    assert (words[:2], found[:2]) == (WORDS, TAGS)
    plain = "".join(f"a text and/or {number}/2 of https://example.org/{number}\n" for number in range(20))
    assert load_data(path=write("b.txt", plain)).task == "causal-lm"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"words": "2", "tags": "8"}, [["nsubj", "flat", "root"], ["case", "root"]]),
        ({"tags": "UPOS"}, UPOS),
        ({"words": "FORM", "tags": "-6"}, [["N", "N", "V"], ["P", "N"]]),
    ],
)
def test_columns_by_number_and_by_name(
    columns: dict[str, str], expected: list[list[str]], write: Write
) -> None:
    assert read(write("a.conllu", CONLLU), **columns) == (WORDS, expected)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv"])
def test_numbers_are_settings_like_names(name: str, write: Write) -> None:
    path = write(name, "".join(f"{number} Anna N x\n{number} sleeps V y\n\n" for number in range(9)))
    data = load_data(path=path, columns={"words": 2, "tags": 3})
    assert (data.task, data.columns) == ("token-classification", {"words": "2", "tags": "3"})
    assert data.column("train", "2")[0].as_py() == '["Anna", "sleeps"]'
    with pytest.raises(
        DataError, match=r"a.conll: no column 'POS': give its number, the first is 1 and the last -1"
    ):
        load_data(path=path.rename(path.with_name("a.conll")), columns={"tags": "POS"})


REFUSED = {
    "1 B-PER\n2 O\n\n1 O\n2 O\n": "a.conll:1: cannot tell which columns hold the words and their tags (1 is '1', 2 is",
    "Anna B-PER B-LOC\nBerg I-PER O\n\nRome B-LOC B-PER\n": "a.conll:1: cannot tell which columns",
    "1\tAnna\tanna\tN\tN\t_\t_\t0\n2\tsleeps\tsleep\tV\tV\t_\t_\t1\n": "a.conll:1: cannot tell which",
    "".join(f"N word{number}\nV lemma{number}\n\n" for number in range(12)): "a.conll:1: cannot tell which",
    "Anna B-PER\nBerg I-PER\nNew York B-LOC\n": "a.conll:3: 3 columns where other lines have 2 ('New York B-LOC')",
    "Anna (PER*\nBerg *)\nsleeps *\n\nIn *\nRome (LOC)\n": "a.conll: column 2 holds brackets, such as '(PER*'",
    "#begin document (a); part 0\n"
    + "a 0 0 Anna NNP (TOP(S(NP* - Jo (PERSON) (0)\na 0 1 sleeps VBZ (VP*))) - Jo * -\n\n" * 9
    + "#end document\n": "a.conll: columns 6, 9 hold brackets, such as '(PERSON)', as CoNLL-2005 and CoNLL-2012 have",
    "#begin document (a); part 0\nAnna B-PER\nBerg I-PER\nx\n#end document\n": "a.conll:4: the line has 1 column",
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_cannot_be_told_is_asked_with_the_line(content: str, write: Write) -> None:
    with pytest.raises(DataError) as caught:
        read(write("a.conll", content))
    assert REFUSED[content] in str(caught.value)


def test_a_hash_may_be_a_word(write: Write) -> None:
    content = "# O\n1 O\n\n#Rome B-LOC\n#rome O\n\n# a comment\n#\tO\n"
    assert read(write("a.conll", content))[0] == [["#", "1"], ["#Rome", "#rome"], ["#"]]


@pytest.mark.parametrize(
    "text",
    [
        "I am here\nI was there\n",
        "I go\nI stay\n",
        "text\tlabel\na b\tO\n",
        "Plan of action\n\nTo be or not O\n",
        "",
        "1 apple pie\n2 plums\n",
    ],
)
def test_texts_and_tables_are_not_words_and_tags(text: str, write: Write) -> None:
    assert not is_tagged(write("a.txt", text))


@pytest.mark.parametrize(
    ("content", "columns"),
    [("a" + " B-X" * 5000 + "\n", {}), ("# global.columns = " + "x " * 5000 + "\n1 a B-X\n", {"tags": "y"})],
)
def test_a_message_does_not_grow_with_the_columns(
    content: str, columns: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "wide.conll"
    path.write_text(content * 3 + "\n")
    with pytest.raises(DataError) as caught:
        layout_of(path, columns)
    assert len(str(caught.value)) < 1000
