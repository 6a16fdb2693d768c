"""A text that becomes another: summaries and replies."""

from pathlib import Path

from fednlp.data.catalogue.entries import Entry, Hub, Pair, files, first_of, found, two_files, watching
from fednlp.data.files import reader_rows
from fednlp.data.readers import dialogue, summaries

_TASK = "sequence-to-sequence"
_LINES = two_files(
    [("train.source", "train.target"), ("train.txt.src", "train.txt.tgt.tagged")],
    [("test.source", "test.target"), ("test.txt.src", "test.txt.tgt.tagged")],
)


def _stories_folder(path: Path) -> Pair | None:
    """Open the folder of ``*.story`` files; lists of URLs next to it make the published split."""
    folder = path / "stories" if (path / "stories").is_dir() else path
    if not folder.is_dir() or not any(one.suffix == ".story" for one in folder.iterdir()):
        return None
    lists = [found(path, [f"all_{split}.txt"]) for split in ("train", "test")]
    if None in lists:
        return reader_rows(folder, summaries.stories, summaries.STORY_COLUMNS), None
    train, test = (
        reader_rows(folder, summaries.stories, summaries.STORY_COLUMNS, also=[one])
        for one in lists
        if one is not None
    )
    return train, test


def _cornell_folder(path: Path) -> Pair | None:
    both = [path / "movie_lines.txt", path / "movie_conversations.txt"]
    if not all(one.is_file() for one in both):
        return None
    return watching(reader_rows(path, dialogue.cornell, dialogue.COLUMNS), both), None


GENERATION = (
    Entry(
        "gigaword",
        "Gigaword: headlines of news",
        _TASK,
        None,
        3_803_957,
        1_951,
        "Graff et al. (2003), as prepared by Rush, Chopra and Weston (2015)",
        "of the Linguistic Data Consortium, LDC2012T21",
        "train.article.txt and train.title.txt, and input.txt and task1_ref0.txt; or train.src.txt and train.tgt.txt",
        _from_folder=two_files(
            [("train.article.txt", "train.title.txt"), ("train.src.txt", "train.tgt.txt")],
            [("input.txt", "task1_ref0.txt"), ("test.src.txt", "test.tgt.txt")],
        ),
    ),
    Entry(
        "cnn-dailymail",
        "CNN/DailyMail: highlights of news",
        _TASK,
        None,
        287_113,
        11_490,
        "Hermann et al. (2015), See, Liu and Manning (2017)",
        "unstated; used for research",
        "a folder of *.story files with all_train.txt and all_test.txt next to it; or train.source and train.target",
        _from_folder=first_of(_LINES, _stories_folder),
        _hub=Hub("abisee/cnn_dailymail", {"article": "source", "highlights": "target"}, "3.0.0"),
    ),
    Entry(
        "xsum",
        "XSum: one sentence for an article",
        _TASK,
        None,
        204_045,
        11_334,
        "Narayan, Cohen and Lapata (2018)",
        "unstated; all rights of the articles are the BBC's",
        "train.source, train.target, test.source and test.target; or BIG-bench's xsum_1k.json",
        _from_folder=first_of(
            _LINES,
            files(["xsum_1k.json", "xsum.json"], [], summaries.bigbench, summaries.COLUMNS),
        ),
    ),
    Entry(
        "dialogsum",
        "DialogSum: summaries of dialogues",
        _TASK,
        None,
        12_460,
        500,
        "Chen, Liu, Chen and Zhang (2021); three references in the test set",
        "CC BY-NC-SA 4.0",
        "dialogsum.train.jsonl (or dialogsum.dev.jsonl) and dialogsum.test.jsonl",
        "topic",
        _from_folder=files(
            ["dialogsum.train.jsonl", "dialogsum.dev.jsonl"],
            ["dialogsum.test.jsonl"],
            summaries.dialogsum,
            summaries.DIALOGSUM_COLUMNS,
        ),
        _hub=Hub("knkarthick/dialogsum", {"dialogue": "source", "summary": "target"}),
    ),
    Entry(
        "cornell",
        "Cornell Movie-Dialogs: a reply to what was said",
        _TASK,
        None,
        221_616,
        None,
        "Danescu-Niculescu-Mizil and Lee (2011)",
        "unstated; used for research",
        "movie_lines.txt and movie_conversations.txt",
        "movie",
        _from_folder=_cornell_folder,
    ),
)
"""The data sets for summaries and replies."""
