"""The tasks of GLUE (Wang et al., 2019), and MRPC and STS-B as they were published before."""

from pathlib import Path

from fednlp.data.catalogue.entries import Entry, FromFolder, Hub, Pair, files, first_of, found
from fednlp.data.files import reader_rows
from fednlp.data.readers.glue import GLUE as LAYOUTS
from fednlp.data.readers.glue import STSB_CSV_COLUMNS, glue, stsb_csv

_CLASSES = "text-classification"
_DEV = "train.tsv and dev.tsv, as GLUE has them"
_RESEARCH = "unstated; used for research"
_PAIR = {"sentence1": "text", "sentence2": "text_pair"}


def _tables(task: str, train: tuple[str, ...] = (), test: tuple[str, ...] = ()) -> FromFolder:
    columns = LAYOUTS[task].columns
    return files(["train.tsv", *train], [*test, "dev.tsv"], glue, columns, task=task)


def _mnli(dev: str) -> FromFolder:
    return files(["train.tsv"], [dev], glue, LAYOUTS["mnli"].columns, task="mnli")


def _stsb_csv(path: Path) -> Pair | None:
    there = [
        reader_rows(one, stsb_csv, STSB_CSV_COLUMNS)
        for names in (["stsb-en-train.csv"], ["stsb-en-test.csv", "stsb-en-dev.csv"])
        if (one := found(path, names)) is not None
    ]
    return (there[0], there[1] if len(there) > 1 else None) if there else None


def _hub(config: str, rename: dict[str, str]) -> Hub:
    return Hub("nyu-mll/glue", rename, config)


GLUE = (
    Entry(
        "cola",
        "CoLA: is a sentence acceptable",
        _CLASSES,
        2,
        8_551,
        1_043,
        "Warstadt, Singh and Bowman (2019)",
        _RESEARCH,
        _DEV,
        _from_folder=_tables("cola", ("in_domain_train.tsv",), ("in_domain_dev.tsv",)),
        _hub=_hub("cola", {"sentence": "text"}),
    ),
    Entry(
        "glue-sst2",
        "SST-2 as GLUE has it, phrases as well",
        _CLASSES,
        2,
        67_349,
        872,
        "Socher et al. (2013)",
        _RESEARCH,
        _DEV,
        _from_folder=_tables("sst2"),
        _hub=_hub("sst2", {"sentence": "text"}),
    ),
    Entry(
        "mrpc",
        "MRPC: do two sentences say the same",
        _CLASSES,
        2,
        3_668,
        1_725,
        "Dolan and Brockett (2005)",
        "as Microsoft Research states with its download",
        "msr_paraphrase_train.txt and msr_paraphrase_test.txt, or train.tsv and dev.tsv as GLUE has them",
        _from_folder=_tables(
            "mrpc",
            ("msr_paraphrase_train.txt", "msr-para-train.tsv"),
            ("msr_paraphrase_test.txt", "msr-para-test.tsv"),
        ),
        _hub=_hub("mrpc", _PAIR),
    ),
    Entry(
        "stsb",
        "STS-B: how much alike are two sentences, 0 to 5",
        "text-regression",
        None,
        5_749,
        1_500,
        "Cer et al. (2017)",
        _RESEARCH,
        f"{_DEV}; or stsb-en-train.csv and stsb-en-test.csv",
        "genre",
        _from_folder=first_of(_tables("stsb"), _stsb_csv),
        _hub=_hub("stsb", _PAIR | {"label": "score"}),
    ),
    Entry(
        "qqp",
        "QQP: do two questions ask the same",
        _CLASSES,
        2,
        363_846,
        40_430,
        "Quora (2017)",
        "non-commercial use",
        _DEV,
        _from_folder=_tables("qqp"),
        _hub=_hub("qqp", {"question1": "text", "question2": "text_pair"}),
    ),
    Entry(
        "mnli",
        "MultiNLI, matched: does one sentence follow from the other",
        _CLASSES,
        3,
        392_702,
        9_815,
        "Williams, Nangia and Bowman (2018)",
        "per genre, mostly open (OANC)",
        "train.tsv and dev_matched.tsv, as GLUE has them",
        "genre",
        _from_folder=_mnli("dev_matched.tsv"),
    ),
    Entry(
        "mnli-mm",
        "MultiNLI, mismatched: tested on other genres",
        _CLASSES,
        3,
        392_702,
        9_832,
        "Williams, Nangia and Bowman (2018)",
        "per genre, mostly open (OANC)",
        "train.tsv and dev_mismatched.tsv, as GLUE has them",
        "genre",
        _from_folder=_mnli("dev_mismatched.tsv"),
    ),
    Entry(
        "qnli",
        "QNLI: does a sentence answer a question",
        _CLASSES,
        2,
        104_743,
        5_463,
        "Rajpurkar et al. (2016), recast by Wang et al. (2019)",
        "CC BY-SA 4.0",
        _DEV,
        _from_folder=_tables("qnli"),
        _hub=_hub("qnli", {"question": "text", "sentence": "text_pair"}),
    ),
    Entry(
        "rte",
        "RTE: does one sentence follow from the other",
        _CLASSES,
        2,
        2_490,
        277,
        "Dagan et al. (2005) and its successors",
        _RESEARCH,
        _DEV,
        _from_folder=_tables("rte"),
        _hub=_hub("rte", _PAIR),
    ),
    Entry(
        "wnli",
        "WNLI: what does a pronoun stand for",
        _CLASSES,
        2,
        635,
        71,
        "Levesque, Davis and Morgenstern (2012), recast by Wang et al. (2019)",
        "CC BY 4.0",
        _DEV,
        _from_folder=_tables("wnli"),
        _hub=_hub("wnli", _PAIR),
    ),
)
"""The tasks of GLUE; where its test files keep their labels to themselves, the development file is the test set."""
