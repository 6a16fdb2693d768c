"""A text that becomes another: summaries and replies."""

from pathlib import Path

from fednlp.data.catalogue.entries import Opener, Pair, files, first_of, found, two_files, watching
from fednlp.data.files import reader_rows
from fednlp.data.readers import summaries

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
    return watching(reader_rows(path, summaries.cornell, summaries.CORNELL_COLUMNS), both), None


GENERATION: dict[str, Opener] = {
    "gigaword": Opener(
        two_files(
            [("train.article.txt", "train.title.txt"), ("train.src.txt", "train.tgt.txt")],
            [("input.txt", "task1_ref0.txt"), ("test.src.txt", "test.tgt.txt")],
        )
    ),
    "cnn-dailymail": Opener(first_of(_LINES, _stories_folder)),
    "xsum": Opener(
        first_of(
            _LINES,
            files(["xsum_1k.json", "xsum.json"], [], summaries.bigbench, summaries.COLUMNS),
        )
    ),
    "dialogsum": Opener(
        files(
            ["dialogsum.train.jsonl", "dialogsum.dev.jsonl"],
            ["dialogsum.test.jsonl"],
            summaries.dialogsum,
            summaries.DIALOGSUM_COLUMNS,
        )
    ),
    "cornell": Opener(_cornell_folder),
}
"""The data sets for summaries and replies."""
