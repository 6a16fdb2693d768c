"""A site's labels under ``[fewshot]``: its gold labels, and the pseudo labels that it has given. Neither leaves it.

A labelling is known by its round, and what the site labelled in it is a file of its own. The server says by which
labelling the site trains. So the labels of a round that came to nothing are never used, and a search for a pace goes
back to earlier ones.
"""

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config.sections import Fewshot
from fednlp.data import TextData
from fednlp.disk import atomic, private_folder, write_private
from fednlp.errors import RunError
from fednlp.fewshot.filtering import representative
from fednlp.fewshot.pacing import LabelQuota, most_confident, rounded_up
from fednlp.formatting.units import plural
from fednlp.partition.embed import embed
from fednlp.partition.npz import read_arrays
from fednlp.simulation.components import Log
from fednlp.training.requests.predict import Labels

Numbers = NDArray[np.int64]
_REMEDY = "then run fednlp join again; no work is lost"
_DATA = "data.json"
_KINDS = {"texts": ("i", 1), "labels": ("i", 1)}


class SiteLabels:
    """The labels of one site in one run.

    Args:
        folder: The site's own; made if missing.
        data: The site's examples; one without a label is a text that may be given one.
        encoder: Folder of the model whose embeddings filter the texts.
        log: Called with a message before each slow step.

    Raises:
        RunError: The folder cannot be made, or the site's data have changed since it labelled.
    """

    def __init__(
        self, folder: Path, run: str, fewshot: Fewshot, data: TextData, encoder: Path, log: Log
    ) -> None:
        self.folder, self.fewshot, self.data, self.encoder, self.log = folder, fewshot, data, encoder, log
        labels, examples = data.labels("train"), np.sort(data.train_numbers)
        known = labels[examples] >= 0
        self.gold: tuple[Numbers, Numbers] = examples[known], labels[examples[known]]
        self.unlabelled: Numbers = examples[~known]
        private_folder(folder, _REMEDY)
        self._require_same_data(run)

    @cached_property
    def candidates(self) -> Numbers:
        """The texts that may be given a pseudo label, by rising number: all without a label, or what filtering leaves.

        Raises:
            FednlpError: The texts cannot be embedded.
        """
        fewshot, texts = self.fewshot, self.unlabelled
        if fewshot.filter_ratio is None:
            return texts
        self.log(f"embedding {plural(len(texts), 'text')} for filtering (once; kept in the cache)")
        vectors = embed(self.data.input_texts("train", texts), str(self.encoder))
        keep = rounded_up(fewshot.filter_ratio * len(texts))
        return np.sort(texts[representative(vectors, keep, fewshot.neighbours, fewshot.rho)])

    def labelled(self, labelling: int) -> tuple[Numbers, Numbers]:
        """Return the examples that have a label, and their labels: gold, then pseudo.

        Args:
            labelling: Round of the labelling whose pseudo labels count; 0 for none.

        Raises:
            RunError: This site has not labelled in that round.
        """
        if labelling == 0:
            return self.gold
        try:
            found = read_arrays(self._file(labelling), _KINDS)
        except (FileNotFoundError, ValueError):
            raise RunError(f"the labels of round {labelling} are not at this site") from None
        numbers, labels = self.gold
        return np.concatenate([numbers, found["texts"]]), np.concatenate([labels, found["labels"]])

    def with_labels(self, request: Any) -> Any:
        """Return a request with the examples that have a label, and their labels, if the site is to train by them.

        Raises:
            RunError: This site has not labelled in the round that the request names.
        """
        if request.labelling is None:
            return request
        examples, labels = self.labelled(request.labelling)
        return replace(request, examples=examples.tolist(), labels=labels.tolist())

    def keep(self, round_number: int, found: Labels, quota: LabelQuota) -> int:
        """Keep the labels of the most confident candidates as those of a round, on the disk; return their number.

        Args:
            round_number: Round of the labelling.
            found: What the model says to :attr:`candidates`.
            quota: How many get a label.
        """
        labels = np.array(found.labels, dtype=np.int64)
        among = labels if self.fewshot.class_balanced else None
        best = np.sort(most_confident(np.array(found.confidences), quota.of(len(labels)), among))
        with atomic(self._file(round_number), _REMEDY, mode=0o600) as file:
            np.savez(file, texts=self.candidates[best], labels=labels[best])
        return len(best)

    def _file(self, round_number: int) -> Path:
        return self.folder / f"{round_number}.npz"

    def _require_same_data(self, run: str) -> None:
        """Note which data the numbers of texts are of; labels of an earlier run are removed."""
        path, now = self.folder / _DATA, {"run": run, "data": self.data.fingerprint}
        before = json.loads(path.read_text()) if path.is_file() else {}
        given = [*self.folder.glob("*.npz")]
        if before.get("run") != run:
            for old in given:
                old.unlink()
        elif given and before != now:
            raise RunError(
                "this site's data have changed since it gave texts pseudo labels: put the earlier file back, and join "
                "again"
            )
        if before != now:
            write_private(path, json.dumps(now).encode(), _REMEDY)
