"""GLUE's tables: every row of the published files, with the names of its labels."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fednlp.data.readers.glue import GLUE, STSB_CSV_COLUMNS, glue, stsb_csv
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

_PARSES = [f"sentence{number}_{kind}" for kind in ("binary_parse", "parse") for number in (1, 2)]
MNLI = "\t".join(
    ["index", "promptID", "pairID", "genre", *_PARSES, "sentence1", "sentence2", "label1", "gold_label"]
)
# Tables in the published layout, and the rows that they hold.
TABLES: dict[str, tuple[str, list[tuple[str | None, ...]]]] = {
    "cola": (
        'gj04\t1\t\tThe "book" sank.\ngj04\t0\t*\tSank book.\n',
        [('The "book" sank.', "acceptable"), ("Sank book.", "unacceptable")],
    ),
    "sst2": ('sentence\tlabel\nhide \t0\na "b \t1\n', [("hide", "negative"), ('a "b', "positive")]),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\tHe said "x.\tHe said x.\r\n',
        [('He said "x.', "He said x.", "equivalent")],
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane.\tAn air plane.\t5.000\n",
        [("A plane.", "An air plane.", "5.000", "main-captions")],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t3\t4\tWhat?\tHow?\t0\n2\t5\t6\ttorn\n3\t7\t8\tA?\tA?\t1\n",
        [("What?", "How?", "not_duplicate"), ("A?", "A?", "duplicate")],
    ),
    "mnli": (
        f"{MNLI}\n0\t1\t1n\tgovernment\t(\t(\t(\t(\tA b.\tB.\tneutral\tneutral\n",
        [("A b.", "B.", "neutral", "government")],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWhen?\tNow.\tentailment\n",
        [("When?", "Now.", "entailment")],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tnot_entailment\n",
        [("A.", "B.", "not_entailment")],
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n", [("A.", "B.", "entailment")]),
}


@pytest.mark.parametrize("task", GLUE)
def test_published_layouts(write: Write, task: str) -> None:
    content, rows = TABLES[task]
    assert list(glue(write("train.tsv", content), task)) == rows
    assert all(len(row) == len(GLUE[task].columns) for row in rows)


@pytest.mark.parametrize(
    ("task", "content", "said"),
    [
        (
            "rte",
            "index\tsentence1\tsentence2\n0\tA.\tB.\n",
            ":1: not the columns sentence1, sentence2, label of rte: GLUE keeps",
        ),
        ("cola", "index\tsentence\n0\tA.\n", ":1: not the columns sentence, label of cola: GLUE keeps"),
        ("cola", "gj04\t1\t\tA.\ngj04\t2\t\tB.\n", ":2: the label is '2', where there are 0, 1"),
        (
            "rte",
            TABLES["rte"][0] + "1\tA.\tB.\tC.\tentailment\n",
            ":3: 5 tab-separated cells, and there should be 4 columns",
        ),
        ("rte", TABLES["rte"][0] + "1\tA.\tB.\n", ":3: 3 tab-separated cells"),
        ("rte", TABLES["rte"][0] + "1\t \tB.\tentailment\n", ":3: the sentence is missing"),
        ("mnli", TABLES["qnli"][0], ":1: not the columns sentence1, sentence2, gold_label of mnli"),
        ("qqp", TABLES["qqp"][0] + "1\t2\t3\tA\tB\tC\t0\n", ":5: 7 tab-separated cells"),
        ("stsb", TABLES["stsb"][0].replace("5.000", "five"), ":2: the score is 'five'"),
        ("stsb", TABLES["stsb"][0].replace("5.000", "nan"), ":2: the score is 'nan'"),
    ],
)
def test_faults_name_the_line(write: Write, task: str, content: str, said: str) -> None:
    path = write("train.tsv", content)
    with pytest.raises(DataError) as caught:
        list(glue(path, task))
    assert str(caught.value).startswith(f"{path}{said}")


def test_stsb_as_csv(write: Write) -> None:
    path = write("a.csv", 'A plane.,"A ""plane"", off.",4.75\r\nB.,C.,0\r\n')
    assert list(stsb_csv(path)) == [("A plane.", 'A "plane", off.', "4.75"), ("B.", "C.", "0")]
    with pytest.raises(DataError, match=r"b\.csv:1: the score is '5\.1'"):
        list(stsb_csv(write("b.csv", "a,b,5.1\n")))
    with pytest.raises(DataError, match=r"c\.csv:1: a sentence is missing"):
        list(stsb_csv(write("c.csv", "a,,5\n")))


REAL = {
    "cola/CoLA/train.tsv": {"acceptable": 6023, "unacceptable": 2528},
    "cola/CoLA/dev.tsv": {"acceptable": 365, "unacceptable": 162},
    "rte/RTE/train.tsv": {"entailment": 1249, "not_entailment": 1241},
    "rte/RTE/dev.tsv": {"entailment": 146, "not_entailment": 131},
    "wnli/WNLI/train.tsv": {"not_entailment": 288, "entailment": 277},
    "wnli/WNLI/dev.tsv": {"not_entailment": 35, "entailment": 35},
    "mrpc/MRPC/msr-para-train.tsv": {"equivalent": 2407, "not_equivalent": 1169},
    "mrpc/MRPC/msr-para-val.tsv": {"equivalent": 346, "not_equivalent": 154},
    "mrpc/MRPC/msr-para-test.tsv": {"equivalent": 1147, "not_equivalent": 578},
}


@pytest.mark.parametrize("name", REAL)
def test_glue_as_published(real: Path, name: str) -> None:
    task, _, file = name.partition("/")
    rows = list(glue(real / "glue" / file, task))
    assert Counter(row[GLUE[task].columns.index("label")] for row in rows) == REAL[name]


@pytest.mark.parametrize(("split", "count"), [("train", 5749), ("dev", 1500), ("test", 1379)])
def test_stsb_as_published(real: Path, split: str, count: int) -> None:
    rows = list(stsb_csv(real / "glue" / "STS-B" / f"stsb-en-{split}.csv"))
    assert len(rows) == count
    scores = [float(str(row[STSB_CSV_COLUMNS.index("score")])) for row in rows]
    assert (min(scores), max(scores)) == (0.0, 5.0)


@pytest.mark.parametrize(("split", "count"), [("train", 6920), ("dev", 872), ("test", 1821)])
def test_sst2_without_a_header(real: Path, split: str, count: int) -> None:
    assert len(list(glue(real / "sst2" / f"{split}.tsv", "sst2"))) == count
