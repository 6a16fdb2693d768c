"""One model a worker: weights swapped in place through one flat buffer, and words loaded only as needed.

All trainable tensors of the model but the word embedding are views of one flat buffer, and so are
their gradients. Loading the global model is one copy, an update is one subtraction, and an optimiser
sees two or three long tensors in place of a hundred short ones.

Frozen parameters (``requires_grad`` is False) have no place in the buffer and no gradient: they stay as
the model was built with them, and so do the buffers of frozen parts.

The word embedding is most of a small model, and a client uses few of its rows. When rows that are not
used cannot change (no weight decay, an optimiser that does nothing on a zero gradient, an embedding
that is not tied to the output), the embedding holds those rows alone. Token ids keep their numbers
everywhere in the model; they are translated where the embedding looks them up. The result is the same
as with the whole table; see tests/training/test_replica.py.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fednlp.federated.params import Kind, Layout
from fednlp.federated.sums import ExactSum, count_bad

_NOT_DECAYED = re.compile(
    r"bias|layernorm|layer_norm|rmsnorm|(?:^|\.)ln_|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE
)


def is_decayed(name: str) -> bool:
    """Say whether weight decay applies: not to biases and norms, as in Hugging Face's Trainer."""
    return _NOT_DECAYED.search(name) is None


def _word_embedding(model: nn.Module) -> tuple[str, nn.Embedding] | None:
    """Return the input embedding's name and module if it is trained and no other module uses its weight."""
    get = getattr(model, "get_input_embeddings", None)
    embedding = get() if callable(get) else None
    if not isinstance(embedding, nn.Embedding) or embedding.max_norm is not None:
        return None
    if not embedding.weight.requires_grad:
        return None
    owners = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter is embedding.weight
    ]
    return (owners[0], embedding) if len(owners) == 1 else None


def _is_trained(model: nn.Module, buffer: str) -> bool:
    """Say whether the innermost module around a buffer that has parameters is trained as a whole."""
    path = buffer
    while path:
        path = path.rpartition(".")[0]
        trained = [parameter.requires_grad for parameter in model.get_submodule(path).parameters()]
        if trained:
            return all(trained)
    return True


def _buffers(model: nn.Module) -> tuple[list[str], list[str]]:
    """Return the names of the floating-point persistent buffers: those that travel, and those of frozen parts."""
    persistent = model.state_dict().keys()
    names = [n for n, b in model.named_buffers() if b.is_floating_point() and n in persistent]
    travel = [n for n in names if _is_trained(model, n)]
    return travel, [n for n in names if n not in travel]


def layout_of(model: nn.Module) -> Layout:
    """Lay out a model's trainable parameters and floating-point persistent buffers, by name.

    Decayed parameters come first, then the others, then buffers, and the untied word embedding last.
    """
    shapes: dict[str, tuple[tuple[int, ...], Kind]] = {}
    parameters = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for wanted in (True, False):
        shapes |= {n: (tuple(p.shape), "parameter") for n, p in parameters if is_decayed(n) is wanted}
    buffers = dict(model.named_buffers())
    shapes |= {n: (tuple(buffers[n].shape), "buffer") for n in _buffers(model)[0]}
    words = _word_embedding(model)
    return Layout.of(shapes, table=words[0] if words else None)


def flat_weights(model: nn.Module) -> Tensor:
    """Return a model's tensors that travel as one flat float32 tensor in its layout, copied."""
    return layout_of(model).flatten(dict(model.named_parameters()) | dict(model.named_buffers()))


def _special_words(model: nn.Module, words: int) -> list[int]:
    """Return the token ids that a model may put into its input by itself, by its own configuration."""
    config = getattr(model, "config", None)
    kinds = ("pad", "bos", "eos", "sep", "cls", "mask", "decoder_start")
    found = (getattr(config, f"{kind}_token_id", None) for kind in kinds)
    return sorted({number for number in found if isinstance(number, int) and 0 <= number < words})


@dataclass(frozen=True)
class Group:
    """A stretch of parameters that an optimiser treats alike."""

    parameter: Tensor
    decayed: bool


class Replica:
    """A model whose weights are loaded, trained and compared with the global model in place.

    Args:
        model: Any module; its trainable parameters become views of the replica's flat buffer.
        device: Where it lives.
        by_rows: Whether rows of the word embedding that a client does not use may be left out.
    """

    def __init__(self, model: nn.Module, device: torch.device, by_rows: bool) -> None:
        self.layout = layout_of(model)
        self.device = device
        self.by_rows = by_rows and self.layout.table is not None
        self.model = model.to(device)
        self.model.train(False)  # every module alike, whatever mode its loader left it in
        tensors = dict(self.model.named_buffers())
        self._still = [tensors[name] for name in _buffers(self.model)[1]]
        self._still_start = [tensor.clone() for tensor in self._still]
        words = _word_embedding(model)
        self._embedding = words[1] if words else None
        self._padding = self._embedding.padding_idx if self._embedding else None
        self._special = _special_words(model, self.layout.table_shape[0])
        self._numbers = torch.zeros(self.layout.table_shape[0], dtype=torch.int64, device=device)
        if self._embedding is not None:
            self._embedding.register_forward_pre_hook(self._translate)
        self._rows: Tensor | None = None
        self._live = torch.zeros(self.layout.dense, device=device)
        self._gradient = torch.zeros(self.layout.dense, device=device)
        self._start = self._live
        self._table_start: Tensor | None = None
        self._adopt()

    def _adopt(self) -> None:
        """Make every tensor of the model a view of the flat buffers."""
        tensors = dict(self.model.named_parameters(remove_duplicate=False)) | dict(self.model.named_buffers())
        stretches: dict[bool, list[int]] = {}
        for entry in self.layout.entries:
            if entry.name == self.layout.table:
                continue
            tensor, place = tensors[entry.name], slice(entry.start, entry.stop)
            tensor.data = self._live[place].view(entry.shape)
            if entry.kind == "parameter":
                tensor.grad = self._gradient[place].view(entry.shape)
                stretch = stretches.setdefault(is_decayed(entry.name), [entry.start, entry.stop])
                stretch[1] = entry.stop
        self._groups: list[Group] = []
        for decayed, (start, stop) in stretches.items():
            flat = nn.Parameter(self._live[start:stop])
            flat.grad = self._gradient[start:stop]
            self._groups.append(Group(flat, decayed))

    @property
    def groups(self) -> list[Group]:
        """What the optimiser is to train; valid until the next :meth:`load`."""
        if self._embedding is None:
            return self._groups
        return [*self._groups, Group(self._embedding.weight, True)]

    def load(self, x: Tensor, words: Iterable[int] | Tensor | None = None) -> None:
        """Take over the global model.

        Args:
            x: Flat float32 tensor in this replica's layout.
            words: Token ids that the client uses; None for all.
        """
        self._start = x[: self.layout.dense].to(self.device)  # on a CPU this is x itself, not a copy
        self._live.copy_(self._start)
        self._put_back()
        if self._embedding is None:
            return
        table = self.layout.rows(x)
        if words is None or not self.by_rows:
            self._rows = None
            self._table_start = table.to(self.device, copy=True)
        else:
            self._rows = self._number(torch.as_tensor(words))
            self._table_start = table[self._rows].to(self.device)
        self._embed(self._table_start.clone())

    def load_for_evaluation(self, x: Tensor) -> None:
        """Take over the global model to look at it only: the word embedding is not copied."""
        self._live.copy_(x[: self.layout.dense])
        self._put_back()
        if self._embedding is not None:
            self._rows = None
            self._embed(self.layout.rows(x).to(self.device))

    def _put_back(self) -> None:
        """Undo what training did to the buffers of frozen parts: no client sees another's."""
        for tensor, start in zip(self._still, self._still_start, strict=True):
            tensor.copy_(start)

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
        return inputs if self._rows is None else (self._numbers[inputs[0]], *inputs[1:])

    def _embed(self, weight: Tensor) -> None:
        assert self._embedding is not None
        self._embedding.weight = nn.Parameter(weight)
        self._embedding.num_embeddings = len(weight)
        if self._padding is not None:
            renumbered = self._rows is not None
            self._embedding.padding_idx = int(self._numbers[self._padding]) if renumbered else self._padding

    def train(self, training: bool) -> None:
        """Switch dropout and the like on or off; walking a model's modules takes long, so only at a change."""
        if self.model.training is not training:
            self.model.train(training)

    def zero_grad(self) -> None:
        """Forget the gradients, in place."""
        self._gradient.zero_()
        if self._embedding is not None:
            self._embedding.weight.grad = None

    @torch.no_grad()
    def pull_back(self, mu: float) -> None:
        """Add the gradient of (mu/2)||x - x_t||^2 (FedProx)."""
        trained = slice(0, self.layout.buffers.start or self.layout.dense)
        gap = self._live[trained] - self._start[trained]
        self._gradient[trained].add_(gap, alpha=mu)
        if self._embedding is not None and self._embedding.weight.grad is not None:
            assert self._table_start is not None
            self._embedding.weight.grad.add_(self._embedding.weight - self._table_start, alpha=mu)

    def count_bad(self) -> int:
        """Return how many of the weights as they stand are no numbers, or huge ones."""
        words = 0 if self._embedding is None else count_bad(self._embedding.weight.detach())
        return count_bad(self._live) + words

    @torch.no_grad()
    def add_update(self, total: ExactSum, factor: float) -> None:
        """Add factor * (what was trained - what was loaded) to a sum; the replica must be loaded anew after.

        Raises:
            NotFinite: Training ended in NaN, infinity or huge numbers; nothing was added.
        """
        dense = self._live.sub_(self._start).cpu()
        if self._embedding is None:
            total.add(factor, dense)
            return
        assert self._table_start is not None
        table = self._embedding.weight.sub(self._table_start).cpu()
        total.add(factor, dense, self._rows, table)

    def store(self, x: Tensor) -> None:
        """Write the weights as they stand into a flat tensor of the layout (all words must be loaded)."""
        x[: self.layout.dense].copy_(self._live)
        if self._embedding is not None:
            self.layout.rows(x).copy_(self._embedding.weight.detach())
