"""Texts with one label in CSV: Sentiment140, Yahoo Answers, Yelp, AG News."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fednlp.data.readers.classification import (
    SENTIMENT140_COLUMNS,
    TOPICS,
    sentiment140,
    yahoo,
    yelp,
)
from fednlp.data.store import Row
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

TWEET = '"{}","146","Mon Apr 06 22:19:45 PDT 2009","NO_QUERY","_one_","{}"\n'


def test_sentiment140(write: Write) -> None:
    content = TWEET.format(0, "@b awww, it's \\xe4 bummer") + TWEET.format(4, 'my ""best"" day & all')
    content += TWEET.format(2, 'a "lone quote')
    path = write("t.csv", content.replace("\\xe4", "ä").encode("latin-1"))
    rows = [dict(zip(SENTIMENT140_COLUMNS, row, strict=True)) for row in sentiment140(path)]
    assert [(row["text"], row["label"]) for row in rows] == [
        ("@b awww, it's ä bummer", "negative"),
        ('my "best" day & all', "positive"),
        ('a lone quote"', "neutral"),
    ]
    assert {row["user"] for row in rows} == {"_one_"}
    assert rows[0]["date"] == "Mon Apr 06 22:19:45 PDT 2009"
    assert rows[0]["id"] == "146"


def test_yahoo_answers(write: Write) -> None:
    path = write(
        "a.csv",
        '"5","why doesn\'t ""it"" work?","I clicked\\n\\ntwice","Refresh, then wait."\n"10","who?","",""\n',
    )
    assert list(yahoo(path)) == [
        (
            'why doesn\'t "it" work? I clicked\n\ntwice Refresh, then wait.',
            "Computers & Internet",
            'why doesn\'t "it" work?',
            "I clicked\n\ntwice",
            "Refresh, then wait.",
        ),
        ("who?", "Politics & Government", "who?", "", ""),
    ]
    assert len(set(TOPICS)) == 10


def test_yelp(write: Write) -> None:
    path = write("a.csv.gz", '"5","dr. goldberg\\nis ""great"""\n"1","bad"\n')
    assert list(yelp(path)) == [('dr. goldberg\nis "great"', "5"), ("bad", "1")]


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (sentiment140, TWEET.format(1, "x"), ":1: the polarity is '1'"),
        (
            sentiment140,
            TWEET.format(0, "x") + "0,1,2\n",
            ":2: 3 comma-separated cells, where this data set has 6",
        ),
        (sentiment140, TWEET.format(0, " "), ":1: the text is missing"),
        (yahoo, '"11","a","b","c"\n', ":1: the class is '11', where this data set has 1 to 10"),
        (yahoo, '"1","","",""\n', ":1: the text is missing"),
        (yelp, '"0","a"\n', ":1: the class is '0'"),
        (yelp, '"1","a"\n"2","b""\n', ":2: not readable as CSV"),
    ],
)
def test_faults_name_the_line(
    write: Write, read: Callable[[Path], Iterator[Row]], content: str, said: str
) -> None:
    path = write("a.csv", content)
    with pytest.raises(DataError) as caught:
        list(read(path))
    assert str(caught.value).startswith(f"{path}{said}")
