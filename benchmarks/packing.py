"""What computing without padding saves: a round with ``client.padding_free`` over the same round without.

    python benchmarks/packing.py             # prints JSON

The lengths are drawn as those of two data sets of short texts: SST-2 as GLUE has it (phrases, 3 to 60 words, most of
them short), and TREC's questions (4 to 30 words, of similar length). Clients hold 32 texts each, in batches of 8 that
are grouped by length. Both sides are :class:`fednlp.training.local.LocalTrainer` with AdamW and the same batches. They
alternate within one process of one torch thread, so that both meet the same machine; a figure is the median of their
ratios. The same is measured of evaluation, in batches of 64 that are sorted by length.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from bare import build

CLIENTS, TEXTS, TESTS, BOUND = 2, 32, 128, 0.8
WORDS = {"sst-2": (9.0, 0.75, 1, 58), "trec": (10.0, 0.35, 3, 32)}
"""Median and spread of the log-normal numbers of tokens, the fewest and the most, before the two special ones."""
MODELS = ("bert-tiny", "minilm")


def texts(name: str, count: int) -> Any:
    """Return features of texts of random tokens, as long as those of a data set."""
    import numpy as np

    from fednlp.data.features import Features

    rng = np.random.default_rng(0)
    median, spread, least, most = WORDS[name]
    lengths = 2 + np.clip(np.round(rng.lognormal(np.log(median), spread, count)), least, most).astype(int)
    return Features.in_memory(
        [{"input_ids": rng.integers(1000, 30_000, n).tolist(), "label": i % 2} for i, n in enumerate(lengths)]
    )


class Side:
    """A model that trains and evaluates, with padding or without.

    Args:
        size: Of the model.
        features: Of the texts.
        free: Whether it computes without padding.
        onednn: Whether oneDNN computes its linear layers.
    """

    def __init__(self, size: str, features: Any, free: bool, onednn: bool) -> None:
        import torch

        from fednlp.training.kernels.onednn import use_onednn
        from fednlp.training.kernels.padding_free import find_padding_free
        from fednlp.training.local_training import LocalTraining
        from fednlp.training.model_layout import flat_weights
        from fednlp.training.replica import Replica

        model = build(size, 0.1)
        if onednn:
            use_onednn(model)
        self.x, self.features = flat_weights(model), features
        found = find_padding_free(model) if free else None
        self.replica = Replica(model, torch.device("cpu"), True)
        if found is not None:
            found.install()
        self.options = LocalTraining(learning_rate=1e-5, padding_free=free)

    def train(self) -> None:
        """Train each client for an epoch."""
        import numpy as np

        from fednlp.tasks.text_classification import TextClassification
        from fednlp.training.local import LocalTrainer

        task = TextClassification(("0", "1"))
        for client in range(CLIENTS):
            numbers = np.arange(client * TEXTS, (client + 1) * TEXTS)
            local = LocalTrainer(
                self.replica, task, self.features, numbers, self.options, self.x, 0, 1, client
            )
            local.steps(self.x)

    def evaluate(self) -> None:
        """Predict the test texts."""
        import numpy as np
        import torch

        from fednlp.tasks.text_classification import TextClassification
        from fednlp.training.batches import evaluation_batches

        task, numbers = TextClassification(("0", "1")), np.arange(CLIENTS * TEXTS, CLIENTS * TEXTS + TESTS)
        self.replica.load_for_evaluation(self.x)
        self.replica.train(False)
        with torch.inference_mode():
            for batch in evaluation_batches(numbers, self.features.lengths(numbers), 64):
                task.predict(self.replica.model, self.features, batch, self.replica.device)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(model: str, data: str, repeats: int, onednn: bool) -> dict[str, Any]:
    """Return the ratios of a model on a data set's lengths."""
    features = texts(data, CLIENTS * TEXTS + TESTS)
    padded, free = (Side(model, features, on, onednn) for on in (False, True))
    found: dict[str, Any] = {"model": model, "texts": data, "onednn": onednn}
    for what in ("train", "evaluate"):
        ratios, plain = [], []
        for repeat in range(repeats + 1):
            seconds = [_seconds(getattr(side, what)) for side in (padded, free)]
            if repeat:
                ratios.append(seconds[1] / seconds[0])
                plain.append(seconds[0])
        found[what] = {
            "ratio": round(statistics.median(ratios), 3),
            "seconds": round(statistics.median(plain), 3),
        }
    return found


def main() -> None:
    """Measure each model on each data set's lengths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--onednn", action="store_true", help="both sides as with runtime.onednn")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    rows = [
        measured(model, data, options.repeats, options.onednn) for model in options.models for data in WORDS
    ]
    print(json.dumps({"bound": BOUND, "measured": rows}, indent=1))


if __name__ == "__main__":
    main()
