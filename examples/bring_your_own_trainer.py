"""Federate a trainer that was written for one process, with four methods and one call.

    python examples/bring_your_own_trainer.py

The trainer uses a linear classifier of scikit-learn. fednlp calls its methods and does not look inside.
"""

from typing import Any

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import SGDClassifier

import fednlp

LABELS = np.arange(5)
HASHED = HashingVectorizer(n_features=2**12, alternate_sign=False)


class NewsTrainer:
    """A classifier of news, without any code for clients, rounds or servers."""

    def __init__(self) -> None:
        self.model = SGDClassifier(
            loss="log_loss", alpha=1e-6, learning_rate="constant", eta0=2.0, random_state=0
        )
        self.model.partial_fit(HASHED.transform(["start"]), [0], classes=LABELS)
        self.model.coef_[:], self.model.intercept_[:] = 0, 0

    def get_model_params(self) -> dict[str, Any]:
        return {"coef": self.model.coef_, "intercept": self.model.intercept_}

    def set_model_params(self, params: dict[str, Any]) -> None:
        self.model.coef_ = params["coef"].numpy()
        self.model.intercept_ = params["intercept"].numpy()

    def train(self, data: list[tuple[str, int]]) -> None:
        texts, labels = zip(*data, strict=True)
        self.model.partial_fit(HASHED.transform(texts), labels)

    def test(self, data: list[tuple[str, int]]) -> dict[str, float]:
        texts, labels = zip(*data, strict=True)
        return {"accuracy": float(self.model.score(HASHED.transform(texts), labels))}


def main(rounds: int = 10) -> float:
    """Partition BBC News over 20 clients under label shift and federate the trainer; return the last accuracy."""
    data = fednlp.load_data("bbc")
    labels = data.labels("train")
    examples = list(zip(data.train["text"].to_pylist(), labels.tolist(), strict=True))
    train, test = data.train_numbers, data.test_numbers
    spec = fednlp.PartitionSpec("label", clients=20, alpha=1.0)
    split = fednlp.make_partition(spec, labels[train], labels[test], num_labels=5, train_numbers=train)
    clients = [[examples[number] for number in split.train(client)] for client in range(20)]
    held_out = [examples[number] for number in test]

    result = fednlp.federate(NewsTrainer(), clients, fednlp.fedavg(10), num_rounds=rounds, test_data=held_out)

    for number, metrics in result.tests.items():
        print(f"round {number:2d}  accuracy {metrics['accuracy']:.3f}")
    return result.tests[rounds]["accuracy"]


if __name__ == "__main__":
    main()
