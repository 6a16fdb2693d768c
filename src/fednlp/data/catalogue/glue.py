"""The tasks of GLUE (Wang et al., 2019), and MRPC and STS-B as they were published before."""

from fednlp.data.catalogue.entries import FromFolder, Opener, files, first_of
from fednlp.data.readers.glue import GLUE as LAYOUTS
from fednlp.data.readers.glue import STSB_CSV_COLUMNS, glue, stsb_csv


def _tables(task: str, train: tuple[str, ...] = (), test: tuple[str, ...] = ()) -> FromFolder:
    columns = LAYOUTS[task].columns
    return files(["train.tsv", *train], [*test, "dev.tsv"], glue, columns, task=task)


def _mnli(dev: str) -> FromFolder:
    return files(["train.tsv"], [dev], glue, LAYOUTS["mnli"].columns, task="mnli")


GLUE: dict[str, Opener] = {
    "cola": Opener(_tables("cola", ("in_domain_train.tsv",), ("in_domain_dev.tsv",))),
    "glue-sst2": Opener(_tables("sst2")),
    "mrpc": Opener(
        _tables(
            "mrpc",
            ("msr_paraphrase_train.txt", "msr-para-train.tsv"),
            ("msr_paraphrase_test.txt", "msr-para-test.tsv"),
        )
    ),
    "stsb": Opener(
        first_of(
            _tables("stsb"),
            files(["stsb-en-train.csv"], ["stsb-en-test.csv", "stsb-en-dev.csv"], stsb_csv, STSB_CSV_COLUMNS),
        )
    ),
    "qqp": Opener(_tables("qqp")),
    "mnli": Opener(_mnli("dev_matched.tsv")),
    "mnli-mm": Opener(_mnli("dev_mismatched.tsv")),
    "qnli": Opener(_tables("qnli")),
    "rte": Opener(_tables("rte")),
    "wnli": Opener(_tables("wnli")),
}
"""The tasks of GLUE; where its test files keep their labels to themselves, the development file is the test set."""
