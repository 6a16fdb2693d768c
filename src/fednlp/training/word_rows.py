"""The word embedding of a model that is trained in place: all of its rows, or those alone that a client uses.

The word embedding is most of a small model, and a client uses few of its rows. When rows that are not used cannot
change (no weight decay, an optimiser that does nothing on a zero gradient, an embedding that is not tied to the
output), the embedding holds those rows alone. Token ids keep their numbers everywhere in the model; they are
translated where the embedding looks them up. The result is the same as with the whole table; see
tests/training/test_replica.py.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fednlp.federated.pages import lazy_zeros
from fednlp.federated.params import Layout


class WordRows:
    """The rows that are loaded.

    Args:
        embedding: Its weight is the table of the layout; it is replaced with each load.
        special: Token ids that the model may put into its input by itself.
        device: Where the model lives.

    Attributes:
        rows: The numbers of the rows, int64; None for all.
    """

    def __init__(
        self, embedding: nn.Embedding, layout: Layout, special: Sequence[int], device: torch.device
    ) -> None:
        self.embedding, self.layout, self.device = embedding, layout, device
        self.rows: Tensor | None = None
        self._padding, self._special = embedding.padding_idx, special
        self._numbers = torch.zeros(layout.table_shape[0], dtype=torch.int64, device=device)
        self._start: Tensor | None = None
        embedding.register_forward_pre_hook(self._translate)
        # What the model was built with is never read: a view of the file of all weights would keep them in memory.
        embedding.weight.data = lazy_zeros(embedding.weight.numel()).view(embedding.weight.shape).to(device)

    @property
    def weight(self) -> Tensor:
        """The rows, (rows, width); valid until the next load."""
        return self.embedding.weight

    def load(self, x: Tensor, words: Iterable[int] | Tensor | None, begin: Tensor | None) -> None:
        """Take over rows to train them.

        Args:
            x: Flat tensor of the layout; changes are measured from it.
            words: Token ids that are used; None for all.
            begin: Where training begins in place of ``x``, of the same layout; all words are needed then.
        """
        table = self.layout.rows(x)
        if words is None:
            self.rows = None
            self._start = table.to(self.device, copy=True)
        else:
            self.rows = self._number(torch.as_tensor(words))
            self._start = table[self.rows].to(self.device)
        first = self._start if begin is None else self.layout.rows(begin).to(self.device)
        self._embed(first.clone())

    def load_for_evaluation(self, x: Tensor) -> None:
        """Take over all rows to look at them only: nothing is copied."""
        self.rows = None
        self._embed(self.layout.rows(x).to(self.device))

    def cut(self, vector: Tensor) -> Tensor:
        """Return the rows that are loaded, of another flat vector of the layout."""
        table = self.layout.rows(vector)
        return (table if self.rows is None else table[self.rows]).to(self.device)

    def change(self) -> Tensor:
        """Return what was trained less what was loaded, (rows, width)."""
        assert self._start is not None
        return (self.weight.detach() - self._start).cpu()

    def put(self, flat: Tensor, values: Tensor) -> None:
        """Write values of the rows that are loaded into a flat vector of the layout.

        Args:
            values: (rows, width).
        """
        table = self.layout.rows(flat)
        if self.rows is None:
            table.copy_(values)
        else:
            table[self.rows] = values.cpu()

    def _number(self, words: Tensor) -> Tensor:
        """Give the words (and padding) new numbers from 0; return the words in that order."""
        used = torch.zeros(self.layout.table_shape[0], dtype=torch.bool)
        used[words.long()] = True
        if self._padding is not None:
            used[self._padding] = True
        used[self._special] = True
        rows = used.nonzero().squeeze(1)
        self._numbers.zero_()  # no number of an earlier client may point past this one's rows
        self._numbers[rows] = torch.arange(len(rows), device=self.device)
        return rows

    def _translate(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Translate token ids to the rows that are loaded."""
        return inputs if self.rows is None else (self._numbers[inputs[0]], *inputs[1:])

    def _embed(self, weight: Tensor) -> None:
        self.embedding.weight = nn.Parameter(weight)
        self.embedding.num_embeddings = len(weight)
        if self._padding is not None:
            renumbered = self.rows is not None
            self.embedding.padding_idx = int(self._numbers[self._padding]) if renumbered else self._padding
