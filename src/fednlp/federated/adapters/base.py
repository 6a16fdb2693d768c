"""What a rule for low-rank adapters is, and the adapters of a run: their rule, their tensors, the clients' ranks.

An adapted weight is W + s B A, with s = alpha / r. The server's model has the largest rank R of any client. A client
of rank r computes with the first r rows of A and columns of B alone. The others are zero there, so that their gradients
are zero too: it trains what a client with matrices of rank r trains.

The scale rides on B. A client of rank r has its own scale s_r = alpha / r, so it begins with B s_R / s_r, and the
server makes the same of what comes back, the other way round. So s B A is the same for both, and A begins as it was
drawn.

Nothing here needs torch until a round begins, so that an experiment is checked before it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fednlp.errors import ConfigError
from fednlp.federated.sent import Piece
from fednlp.federated.server import ServerUpdate
from fednlp.section import Reason

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fednlp.federated.aggregators.base import AggregatedUpdate
    from fednlp.federated.params import Entry, Layout
    from fednlp.federated.state import State


@dataclass(frozen=True)
class LoraPair:
    """One adapter: the names of its two matrices and of the weight that it is added to.

    Attributes:
        a: Name of A, (r, inputs).
        b: Name of B, (outputs, r).
        base: Name of W, (outputs, inputs); (inputs, outputs) where ``transposed``, as in GPT-2.
        scaling: s, LoRA's alpha / r.
        transposed: True if the product is transposed before it is added.
    """

    a: str
    b: str
    base: str
    scaling: float
    transposed: bool = False

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return s B A in the shape of the base weight, float64.

        >>> import torch
        >>> pair = LoraPair("a", "b", "w", scaling=2.0)
        >>> pair.product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]])).tolist()
        [[6.0, 12.0], [8.0, 16.0]]
        """
        made = b.double() @ a.double() * self.scaling
        return made.T if self.transposed else made


class Rule:
    """What a server makes of its clients' factors A and B, and what of these its clients train and send.

    A subclass is one file of this folder. What it leaves out is as in plain averaging.
    """

    name: ClassVar[str] = "plain"
    needs: ClassVar[Mapping[str, Reason]] = {}
    """What it needs of an experiment, by :data:`fednlp.section.TRAITS`, each with why."""
    breaks: ClassVar[Mapping[str, Reason]] = {}
    """What it breaks for others, each with how."""
    remedy: ClassVar[str] = 'say averaging = "ffa" or "plain"'
    personal: ClassVar[str] = ""
    """The factor, ``"a"`` or ``"b"``, that stays with each client."""
    pairs: ClassVar[bool] = True
    """Whether it treats the factors of an adapter otherwise than tensors that are averaged."""
    products: ClassVar[bool] = True
    """Whether the products s B A are summed, in the places of the weights W: then W is among what the server sets."""
    moves_base: ClassVar[bool] = False
    """Whether W changes, so that the adapters alone do not describe the trained model."""
    by_products: ClassVar[bool] = True
    """Whether it goes by the products s B A in any way."""
    unequal: ClassVar[bool] = True
    """Whether clients may have different ranks."""

    def held(self, number: int) -> str:
        """Return the factor that nobody trains in a round; empty for none.

        Args:
            number: Of the round, from 1.
        """
        return ""

    def weight(self, factors: Sequence[tuple[LoraPair, Tensor, Tensor]]) -> float:
        """Return what a client's weight is multiplied by.

        Args:
            factors: Its adapters, each with A and B.
        """
        return 1.0

    def step(self, state: State, update: AggregatedUpdate, pairs: Sequence[LoraPair]) -> dict[str, Any]:
        """Make of the averaged factors what the rule makes of them, in place, after the server's own step.

        Args:
            state: With the averaged A and B, and the old W.
            update: The mean update; in the places of W, where products are summed, their mean.

        Returns:
            What the round's line says of it.
        """
        return {}

    def change_rank(self, ranks: Sequence[int], lossy: bool) -> int:
        """Return the maximum rank of a round's change of the weights W.

        Args:
            ranks: Those of the clients whose updates were averaged; none for a round without a step.
            lossy: Whether ``exchange.down`` had rounded what they began with.
        """
        return 0


class Plain(Rule):
    """A and B are averaged apart, as all other tensors: FedIT (Zhang et al. 2023, arXiv:2305.05644).

    With unequal ranks the averages are over factors that are padded with zeros.
    """

    pairs = products = by_products = False


_PLAIN = Plain()


@dataclass(frozen=True)
class Adapters:
    """The low-rank adapters of a run.

    Attributes:
        pairs: Those that are treated otherwise than other tensors; none for plain averaging with one rank.
        rank: The server's: that of the largest client.
        ranks: Of the clients, dealt in turn by their numbers; empty where all have the server's.
    """

    rule: Rule = _PLAIN
    pairs: tuple[LoraPair, ...] = ()
    rank: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def derived(self) -> list[str]:
        """Names of the weights W in whose places products are summed."""
        return [pair.base for pair in self.pairs] if self.rule.products else []

    def rank_of(self, client: int) -> int:
        """Return a client's rank; the server's for -1."""
        return self.ranks[client % len(self.ranks)] if self.ranks and client >= 0 else self.rank

    @property
    def weighs(self) -> bool:
        """Whether the rule multiplies the clients' weights."""
        return bool(self.pairs) and type(self.rule).weight is not Rule.weight

    def held(self, number: int) -> frozenset[str]:
        """Return the names of the tensors that nobody trains in a round.

        Args:
            number: From 1.
        """
        factor = self.rule.held(number)
        return frozenset(getattr(pair, factor) for pair in self.pairs) if factor else frozenset()

    def change_rank(self, clients: Sequence[int], lossy: bool = False) -> int:
        """Return the maximum rank of a round's change of the weights W, by the clients that were averaged."""
        return self.rule.change_rank([self.rank_of(client) for client in clients], lossy)

    def change_shapes(self, layout: Layout, rank: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return the shapes of the message of the weights' change: two factors, or W itself where that is shorter.

        Args:
            layout: The layout of the shared tensors.
            rank: Sum of :meth:`change_rank` over the rounds since the client received its last model.

        >>> shapes = {"a": ((1, 9), "parameter"), "b": ((9, 1), "parameter"), "w": ((9, 9), "derived")}
        >>> from fednlp.federated.params import Layout
        >>> adapters = Adapters(Rule(), (LoraPair("a", "b", "w", 1.0),), 1)
        >>> [list(adapters.change_shapes(Layout.of(shapes), rank)) for rank in (0, 1, 8)]
        [[], ['w.B', 'w.A'], ['w']]
        """
        import torch

        shapes = {entry.name: entry.shape for entry in layout.entries}
        sent: dict[str, tuple[int, ...]] = {}
        for pair in self.pairs if rank else ():
            whole = shapes[pair.base]
            factors = {
                f"{pair.base}.B": (shapes[pair.b][0], rank),
                f"{pair.base}.A": (rank, shapes[pair.a][1]),
            }
            cheaper = sum(map(math.prod, factors.values())) < math.prod(whole)
            sent |= factors if cheaper else {pair.base: whole}
        return {name: (shape, torch.float32) for name, shape in sent.items()}

    def pieces(self, pieces: Sequence[Piece], layout: Layout, client: int, number: int) -> list[Piece]:
        """Return what of some tensors travels between the server and a client.

        Args:
            pieces: All that would.
            client: By its number; -1 for one of the largest rank.
            number: Of the round, from 1, for the way up; 0 for the way down, where the server has every factor.
        """
        held = self.held(number) if number else frozenset()
        rank = self.rank_of(client)
        if not held and rank == self.rank:
            return list(pieces)
        entries = {entry.name: entry for entry in layout.entries}
        rows = {pair.a: (rank, None) for pair in self.pairs}
        corners: dict[str, tuple[int | None, int | None]] = rows | {
            pair.b: (None, rank) for pair in self.pairs
        }
        narrow = rank < self.rank
        return [
            _Corner.of(entries[piece.name], *corners[piece.name])
            if narrow and piece.name in corners
            else piece
            for piece in pieces
            if piece.name not in held
        ]

    def start(self, layout: Layout, x: Tensor, client: int) -> Tensor:
        """Return the model that a client begins with: the server's, cut to its rank.

        Args:
            x: The server's, flat; it is returned itself where the ranks are the same.
        """
        rank = self.rank_of(client)
        if rank == self.rank:
            return x
        start = x.clone()
        views = layout.views(start)
        for pair in self.pairs:
            views[pair.a][rank:] = 0
            views[pair.b][:, rank:] = 0
            views[pair.b].mul_(rank / self.rank)
        return start

    def arrived(self, layout: Layout, x: Tensor, update: Tensor, client: int) -> None:
        """Make of a client's update what it is to the server: its factors in the server's rank and scale, and s B A.

        The products are those of the update as it arrived, after compression, so that the two agree. A product is the
        value itself, not its change.

        Args:
            x: float32, the server's model, flat, with or without the table.
            update: float32, the client's update of what it began with, flat, with or without the table; changed in
                place.
        """
        rank = self.rank_of(client)
        began, moved = _named(layout, x), _named(layout, update)
        for pair in self.pairs:
            a, b = moved[pair.a], moved[pair.b]
            if rank < self.rank:
                factor = rank / self.rank
                b[:, :rank] = (began[pair.b][:, :rank] * factor + b[:, :rank]) / factor - began[pair.b][
                    :, :rank
                ]
                a[rank:], b[:, rank:] = -began[pair.a][rank:], -began[pair.b][:, rank:]
            if self.rule.products:
                both = (began[name].double() + moved[name].double() for name in (pair.a, pair.b))
                moved[pair.base].copy_(pair.product(*both))

    def weight(self, layout: Layout, x: Tensor, update: Tensor) -> float:
        """Return what a client's weight is multiplied by.

        Args:
            x: The server's model, flat.
            update: What :meth:`arrived`.

        Raises:
            NonFiniteUpdate: The weighted update is beyond what the sum of updates can hold.
        """
        from fednlp.federated.sums import LARGEST, NonFiniteUpdate

        began, moved = _named(layout, x), _named(layout, update)
        factors = [
            (pair, began[pair.a] + moved[pair.a], began[pair.b] + moved[pair.b]) for pair in self.pairs
        ]
        factor = self.rule.weight(factors)
        low, high = (float(value) for value in update.aminmax())
        if not factor * max(-low, high) <= LARGEST:
            raise NonFiniteUpdate(
                f"its update is too large to be multiplied by {factor:.3g}, its weight by {self.rule.name}: training "
                "diverged"
            )
        return factor

    def check(self, layout: Layout) -> None:
        """Check that the server has what the rule is about.

        Args:
            layout: The layout of the shared tensors.

        Raises:
            ConfigError: A factor is not shared.
        """
        there = {entry.name for entry in layout.entries}
        lacking = [name for pair in self.pairs for name in (pair.a, pair.b) if name not in there]
        if lacking:
            what = f'averaging = "{self.rule.name}"' if self.rule.pairs else "ranks"
            raise ConfigError(
                f"[model.peft] {what} needs every adapter shared, and {lacking[0]} is not: leave [model] train out, or "
                f"{self.rule.remedy if self.rule.pairs else 'leave ranks out'}"
            )

    def scale(self, client: int) -> float:
        """Return what LoRA's scale of the model is multiplied by for a client."""
        return self.rank / self.rank_of(client) if self.rank else 1.0


@dataclass(frozen=True)
class AdaptingServer(ServerUpdate):
    """A method's server, with what the rule of the adapters does besides."""

    inner: ServerUpdate
    adapters: Adapters

    def init(self, layout: Layout) -> dict[str, Tensor]:
        """Return the server's vectors before the first round."""
        return self.inner.init(layout)

    def first_models(self, layout: Layout, x: Tensor, seed: int) -> dict[str, Tensor]:
        """Return the server's models beside the first."""
        return self.inner.first_models(layout, x, seed)

    def model(self, state: State, staleness: int) -> Tensor:
        """Return the model that clients get."""
        return self.inner.model(state, staleness)

    def step(self, state: State, update: AggregatedUpdate) -> dict[str, Any]:
        """Move the model; what nobody trained stays, whatever the optimiser or noise would do to it."""
        model, adapters = state.layout.views(state.params), self.adapters
        before = {name: model[name].clone() for name in adapters.held(state.round + 1)}
        told = self.inner.step(state, update)
        for name, values in before.items():
            model[name].copy_(values)
        return dict(told or {}) | adapters.rule.step(state, update, adapters.pairs)


@dataclass(frozen=True)
class _Corner(Piece):
    """The first rows and columns of a matrix, as they travel; the stretch is that of all of it."""

    matrix: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, entry: Entry, rows: int | None, columns: int | None) -> _Corner:
        """Return some of the rows or columns of an entry; None for all."""
        height, width = entry.shape
        return cls(
            entry.name, (rows or height, columns or width), ((entry.start, entry.stop),), (height, width)
        )

    def read(self, flat: Tensor) -> Tensor:
        """Return its values in a flat vector, in its shape."""
        return self._view(flat).contiguous()

    def write(self, flat: Tensor, values: Tensor) -> None:
        """Write values of its shape to their places in a flat vector."""
        self._view(flat).copy_(values)

    def _view(self, flat: Tensor) -> Tensor:
        ((start, stop),) = self.stretches
        return flat[start:stop].view(self.matrix)[: self.shape[0], : self.shape[1]]


def _named(layout: Layout, flat: Tensor) -> dict[str, Tensor]:
    """Return the named tensors of a flat buffer, as views; the buffer may end before the table."""
    return {e.name: flat[e.start : e.stop].view(e.shape) for e in layout.entries if e.stop <= flat.numel()}
