"""The replica: one flat buffer, words by rows, and the same steps as plain PyTorch."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.federated.sums import ExactSum
from fednlp.training.optimizers import LocalTraining, make_optimizer
from fednlp.training.replica import Replica, flat_weights, layout_of

WORDS = 23


class Toy(nn.Module):
    """An embedding, a norm with statistics, biases, and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4, padding_idx=3)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("positions", torch.arange(5))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.words(ids).mean(1)))


def toy(seed: int = 0) -> Toy:
    torch.manual_seed(seed)
    return Toy()


def steps(ids: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(ids.split(4), labels.split(4), strict=True))


def plain(
    model: Toy, options: LocalTraining, ids: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The same training in PyTorch as everybody writes it."""
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias"))]
    rest = [p for n, p in model.named_parameters() if n.endswith("bias")]
    groups = [{"params": decay, "weight_decay": options.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": options.momentum} if options.optimizer == "sgd" else {}
    if options.optimizer == "adagrad":
        optimizer: torch.optim.Optimizer = torch.optim.Adagrad(groups, lr=options.learning_rate)
    else:
        optimizer = makers[options.optimizer](groups, lr=options.learning_rate, **more)
    start = copy.deepcopy(dict(model.named_parameters()))
    model.train()
    for batch, label in steps(ids, labels):
        loss = nn.functional.cross_entropy(model(batch), label)
        if options.mu:
            gap = sum(((p - start[n].detach()) ** 2).sum() for n, p in model.named_parameters())
            loss = loss + options.mu / 2 * gap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def federated(
    model: Toy, options: LocalTraining, ids: torch.Tensor, labels: torch.Tensor, by_rows: bool
) -> torch.Tensor:
    """The same training through the replica; returns the flat update by way of an exact sum."""
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), by_rows)
    replica.load(x, ids.flatten() if by_rows else None)
    optimizer = make_optimizer(options, replica.groups)
    replica.model.train()
    for batch, label in steps(ids, labels):
        loss = nn.functional.cross_entropy(replica.model(batch), label)
        replica.zero_grad()
        loss.backward()
        if options.mu:
            replica.pull_back(options.mu)
        optimizer.step()
    total = ExactSum(replica.layout)
    replica.add_update(total, 1.0)
    return x + total.mean(1.0)[0]


OPTIONS = [
    LocalTraining("sgd", 0.3),
    LocalTraining("sgd", 0.1, momentum=0.9),
    LocalTraining("adam", 0.01),
    LocalTraining("adamw", 0.01),
    LocalTraining("adagrad", 0.05),
    LocalTraining("sgd", 0.3, mu=0.5),
    LocalTraining("adamw", 0.01, weight_decay=0.1),
]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda o: f"{o.optimizer}-{o.momentum}-{o.mu}-{o.weight_decay}"
)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), used=st.integers(6, WORDS))
def test_training_equals_plain_pytorch(options: LocalTraining, seed: int, used: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    words = torch.randperm(WORDS, generator=rng)[:used]
    ids = words[torch.randint(0, used, (16, 5), generator=rng)]
    labels = torch.randint(0, 2, (16,), generator=rng)
    expected = plain(toy(seed), options, ids, labels)
    for by_rows in {False, options.leaves_zero_gradients_alone}:
        model = toy(seed)
        layout = layout_of(model)
        got = layout.views(federated(model, options, ids, labels, by_rows))
        for name, value in got.items():
            torch.testing.assert_close(
                value, expected[name], rtol=2e-5, atol=2e-6, msg=f"{name}, by rows {by_rows}"
            )


def test_untouched_words_do_not_move_and_are_not_reported() -> None:
    model = toy()
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(x, torch.tensor([7, 9]))
    assert torch.equal(replica.model.words(torch.tensor([7, 9, 3])), replica.layout.rows(x)[[7, 9, 3]])
    assert replica.model.words.weight.shape == (3, 4)
    total = ExactSum(replica.layout)
    replica.add_update(total, 1.0)
    assert total.touched.nonzero().flatten().tolist() == [3, 7, 9]


def test_layout_handles_every_tensor_by_name() -> None:
    layout = layout_of(toy())
    kinds = {entry.name: entry.kind for entry in layout.entries}
    assert kinds == {
        "norm.weight": "parameter",
        "out.weight": "parameter",
        "norm.bias": "parameter",
        "out.bias": "parameter",
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
        "words.weight": "parameter",
    }
    assert layout.entries[-1].name == layout.table == "words.weight"


def test_a_tied_embedding_is_never_taken_by_rows() -> None:
    class Tied(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, WORDS, bias=False)
            self.head.weight = self.words.weight

    torch.manual_seed(0)
    assert layout_of(Tied()).table is None


def test_evaluation_sees_the_global_model() -> None:
    model, other = toy(1), toy(2)
    ids = torch.randint(0, WORDS, (6, 5))
    expected = copy.deepcopy(other).eval()(ids)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(flat_weights(other), torch.tensor([1, 2]))
    replica.load_for_evaluation(flat_weights(other))
    assert torch.equal(replica.model.eval()(ids), expected)
