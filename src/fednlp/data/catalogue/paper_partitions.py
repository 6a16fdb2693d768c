"""What papers on federated learning make of published data sets: clients, partitions, numbers of examples.

Lin et al. 2021, "FedNLP: A Research Platform for Federated Learning in Natural Language Processing"
(arXiv:2104.08815v1); Lin et al. 2022, its later version with benchmarks; Li et al. 2022, "Federated Split BERT for
Heterogeneous Text Classification" (arXiv:2205.13299); Passban et al. 2022, "Training Mixed-Domain Translation Models
via Federated Learning" (arXiv:2205.01557); Cai et al. 2023, "Federated Few-Shot Learning for Mobile NLP"
(arXiv:2212.05974).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal


@dataclass(frozen=True)
class PaperPartition:
    """A row of the table: what a paper makes of a data set.

    Attributes:
        clients: Number of clients.
        train: Number of training examples of all clients, as the paper writes it; None where it does not.
        test: Number of test examples, likewise.
        method: The partition method; None where the whole data set is one client.
        alpha: Concentration of the shift; None where the paper does not state it.
        clusters: Number of clusters of texts that stand for labels; None where the paper does not state it.
        natural: Whether the data have a natural field for the clients (for ``ploner``: for the clusters).
        proportions: The name of the label shares, which come with fednlp.
        note: What else the paper says.
    """

    paper: str
    clients: int
    train: int | str | None = None
    test: int | str | None = None
    method: Literal["label", "cluster", "natural", "uniform", "proportions"] | None = "label"
    alpha: float | None = None
    clusters: int | None = None
    natural: bool = False
    proportions: str | None = None
    note: str = ""

    def options(self, field: str | None) -> str:
        """Return the options of ``fednlp partition`` for it; empty where the whole data set is one client.

        Args:
            field: The natural field of the data set here; None where it has none.

        >>> PaperPartition("", 300, 97_680, 24_645, "cluster", clusters=30).options("title")
        '--method cluster --clients 300 --clusters 30'
        """
        if self.method is None:
            return ""
        if self.method == "natural":
            return f"--method natural --field {field}"
        if self.method == "proportions":
            return f"--method proportions --proportions {self.proportions}"
        alpha = 1.0 if self.method == "label" and self.alpha is None else self.alpha
        given = {"method": self.method, "clients": self.clients, "clusters": self.clusters, "alpha": alpha}
        return " ".join(f"--{key} {value}" for key, value in given.items() if value is not None)

    def describe(self, name: str, field: str | None) -> str:
        """Return it in words, with the command that makes one of this kind here.

        Args:
            field: As for :meth:`options`.
        """
        kind = [
            f"{self.clients:,} clients" if self.method else f"one of {self.clients} clients",
            *([f"{self.method} shift with alpha = {self.alpha:g}"] if self.alpha is not None else []),
            *([f"{self.clusters} clusters"] if self.clusters is not None else []),
            *(["natural"] if self.natural else []),
            *(["uniform"] if self.method == "uniform" else []),
            *([f"label shares {self.proportions}"] if self.proportions else []),
        ]
        command = f": fednlp partition {name} {self.options(field)}" if self.method else ""
        parts = filter(None, (", ".join(kind), self._sizes(), self.note))
        return f"{'; '.join(parts)} ({self.paper}){command}"

    def _sizes(self) -> str:
        counts = {"training": self.train, "test": self.test}
        shown = [
            f"{count:,} {part}" if isinstance(count, int) else f"{count} {part}"
            for part, count in counts.items()
            if count is not None
        ]
        return f"{' and '.join(shown)} examples" if shown else ""


_PLATFORM = partial(PaperPartition, "Lin et al. 2021, Table 1")
_BENCHMARK = partial(PaperPartition, "Lin et al. 2022, Tables 1 and 2")
_CORPORA = partial(PaperPartition, "Passban et al. 2022, Table 1 and section 5.1", 5)
_FEWSHOT = partial(PaperPartition, "Cai et al. 2023, Table 2")


def _split(name: str, *clients: int) -> tuple[PaperPartition, ...]:
    """Return the rows of FedSplitBERT's Table I, with 3 clients, and of Table II, with 10."""
    return tuple(
        PaperPartition(
            f"Li et al. 2022, Table {'I' if count == 3 else 'II'}",
            count,
            method="proportions",
            proportions=f"{name}-{count}",
            note="80 % of each client's examples for training, 20 % for its test",
        )
        for count in clients
    )


def _corpus(
    train: int, test: int | None, german: tuple[int, int], english: tuple[int, int], note: str = ""
) -> tuple[PaperPartition]:
    """Return the row of a corpus that is one client; of each language the numbers of all and of different words."""
    words = ", ".join(
        f"{count:,} words of {language} ({unique:,} different)"
        for language, (count, unique) in {"German": german, "English": english}.items()
    )
    return (_CORPORA(train, test, None, note=f"{note}; {words}" if note else words),)


PAPER_PARTITIONS: Mapping[str, tuple[PaperPartition, ...]] = {
    "20news": (_BENCHMARK(100, "11.3k", "7.5k", alpha=1.0), _PLATFORM(100, 15_037, 3_805)),
    "agnews": (
        _PLATFORM(1000, 101_480, 26_120),
        _FEWSHOT(100, "120k", "7.6k", alpha=1.0, note="64 labels, skewed"),
    ),
    "sst2": (_PLATFORM(30, 6_969, 1_772),),
    "sentiment140": (_PLATFORM(10_000, "1,280k", "320k"),),
    "yahoo": (_FEWSHOT(1000, "1.4M", "60k", alpha=1.0, note="64 labels, skewed"),),
    "yelp-full": (_FEWSHOT(1000, "650k", "50k", alpha=1.0, note="64 labels, skewed"),),
    "cola": _split("cola", 3),
    "glue-sst2": _split("sst2", 3, 10),
    "mrpc": _split("mrpc", 3, 10),
    "stsb": _split("stsb", 3),
    "qqp": _split("qqp", 3, 10),
    "mnli": (
        *_split("mnli", 3),
        _FEWSHOT(1000, "392.7k", "9.8k", "uniform", note="64 labels, uniform"),
    ),
    "mnli-mm": _split("mnli", 3),
    "qnli": _split("qnli", 3, 10),
    "rte": _split("rte", 3),
    "wnli": _split("wnli", 3),
    "ontonotes": (_BENCHMARK(30, "50k", "5k", alpha=0.1, note="train_size = 50000, test_size = 5000"),),
    "ploner": (_PLATFORM(50, 14_000, 3_501, "cluster", clusters=7, natural=True),),
    "wnut17": (_PLATFORM(30, 3_721, 960, "cluster", clusters=10),),
    "wikiner": (_PLATFORM(1000, 228_396, 58_099, "cluster", clusters=10),),
    "squad": (_PLATFORM(300, 97_680, 24_645, "cluster", clusters=30),),
    "mrqa": (
        _BENCHMARK(6, "53.9k", "3k", "natural", natural=True, note="train_size = 53900, test_size = 3000"),
    ),
    "gigaword": (_BENCHMARK(100, "10k", "2k", "cluster", alpha=0.1, note="train_size = 10000"),),
    "cnn-dailymail": (_PLATFORM(100, 249_588, 62_497, "cluster", clusters=50),),
    "cornell": (_PLATFORM(617, 177_292, 44_324, "natural", natural=True),),
    "wmt": _corpus(
        4_468_841, None, (119_920_225, 1_529_872), (126_731_132, 691_150), "tested on newstest-14"
    ),
    "opensubtitles": _corpus(
        4_500_000, 2_000, (33_502_036, 339_627), (37_373_751, 174_670), "drawn at random"
    ),
    "ted": _corpus(143_837, 2_000, (2_710_904, 99_221), (2_861_006, 45_364)),
    "php": _corpus(39_708, 2_000, (322_546, 13_001), (318_788, 8_521)),
    "ubuntu": _corpus(13_246, 2_000, (96_355, 13_515), (90_839, 9_234)),
    "domains": (
        _CORPORA(9_165_632, method="natural", natural=True, note="WMT, OpenSubtitles, TED, PHP and Ubuntu"),
    ),
    "shakespeare": (_PLATFORM(1129, 3_803_542, 422_616, "natural", natural=True),),
    "reddit": (_PLATFORM(1_660_820, 50_928_609, 5_658_734, "natural", natural=True),),
}
"""What the papers have, by the names of the catalogue, in its order."""


def paper_partition(name: str, field: str | None) -> str | None:
    """Return what the papers make of a data set, in words, a line each; None where they do not use it.

    Args:
        field: As for :meth:`PaperPartition.options`.
    """
    return "\n".join(row.describe(name, field) for row in PAPER_PARTITIONS.get(name, ())) or None
