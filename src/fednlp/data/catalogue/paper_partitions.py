"""The partitions that FedNLP's papers make of published data sets: clients, clusters, sizes.

Lin et al. 2021, "FedNLP: A Research Platform for Federated Learning in Natural Language Processing"
(arXiv:2104.08815v1), Table 1; Lin et al. 2022, its later version with benchmarks, Table 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PaperPartition:
    """A row of the table.

    Attributes:
        train: Number of training examples of all clients.
        test: Number of test examples.
        clients: Number of clients.
        clusters: Number of clusters of texts that stand for labels; None where labels or a natural field are used.
        natural: Whether the data have a natural field for the clients (for ``ploner``: for the clusters).
    """

    train: int
    test: int
    clients: int
    clusters: int | None = None
    natural: bool = False

    def options(self, field: str | None) -> str:
        """Return the options of ``fednlp partition`` for it.

        Args:
            field: The natural field of the data set here; None where it has none.

        >>> PaperPartition(97_680, 24_645, 300, 30).options("title")
        '--method cluster --clients 300 --clusters 30'
        """
        if self.clusters is not None:
            return f"--method cluster --clients {self.clients} --clusters {self.clusters}"
        if self.natural and field is not None:
            return f"--method natural --field {field}"
        return f"--method label --clients {self.clients} --alpha 1.0"

    def describe(self, name: str, field: str | None) -> str:
        """Return it in words, with the command that makes one of this kind here.

        Args:
            name: Of the data set.
            field: As for :meth:`options`.
        """
        clusters = "" if self.clusters is None else f", {self.clusters} clusters"
        natural = ", natural" if self.natural else ""
        return (
            f"{self.clients:,} clients{clusters}{natural}; {self.train:,} training and {self.test:,} test examples "
            f"(Lin et al. 2021, Table 1): fednlp partition {name} {self.options(field)}"
        )


PAPER_PARTITIONS: Mapping[str, PaperPartition] = {
    "agnews": PaperPartition(101_480, 26_120, 1000),
    "20news": PaperPartition(15_037, 3_805, 100),
    "sst2": PaperPartition(6_969, 1_772, 30),
    "sentiment140": PaperPartition(1_280_000, 320_000, 10_000),
    "ploner": PaperPartition(14_000, 3_501, 50, 7, natural=True),
    "wnut17": PaperPartition(3_721, 960, 30, 10),
    "wikiner": PaperPartition(228_396, 58_099, 1000, 10),
    "squad": PaperPartition(97_680, 24_645, 300, 30),
    "cornell": PaperPartition(177_292, 44_324, 617, natural=True),
    "cnn-dailymail": PaperPartition(249_588, 62_497, 100, 50),
    "shakespeare": PaperPartition(3_803_542, 422_616, 1129, natural=True),
    "reddit": PaperPartition(50_928_609, 5_658_734, 1_660_820, natural=True),
}
"""Those of the platform paper, by the names of the catalogue."""

_BENCHMARKS: Mapping[str, str] = {
    "20news": "100 clients, label shift with alpha = 1",
    "ontonotes": "30 clients, label shift with alpha = 0.1, train_size = 50000, test_size = 5000",
    "mrqa": "6 clients, natural by dataset, train_size = 53900, test_size = 3000",
    "gigaword": "100 clients, cluster shift with alpha = 0.1, train_size = 10000",
}


def paper_partition(name: str, field: str | None) -> str | None:
    """Return the partitions of the papers for a data set, in words; None where they do not use it.

    Args:
        name: Of the catalogue.
        field: As for :meth:`PaperPartition.options`.
    """
    platform, benchmark = PAPER_PARTITIONS.get(name), _BENCHMARKS.get(name)
    found = [] if benchmark is None else [f"{benchmark} (Lin et al. 2022, Table 2)"]
    found += [] if platform is None else [platform.describe(name, field)]
    return "; ".join(found) or None
