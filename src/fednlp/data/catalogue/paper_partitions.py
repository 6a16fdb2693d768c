"""The partitions of FedNLP's platform paper: how many clients it has for each data set.

Lin et al. 2021, "FedNLP: A Research Platform for Federated Learning in Natural Language Processing"
(arXiv:2104.08815v1), Table 1.
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
            f"(FedNLP platform, Table 1): fednlp partition {name} {self.options(field)}"
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
"""By the names of the catalogue."""
