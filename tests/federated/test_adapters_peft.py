"""Whole runs with clients of unequal rank against PEFT alone: each client is a PEFT model of its own rank.

What the server does is written out here from the papers, without padded matrices on the clients and without the
library's own rules.
"""

import copy
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fednlp
from fednlp.config import Experiment
from fednlp.models.pretrained import pretrained_model
from fednlp.seeds import generator

peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]

LABELS = ("arts", "economy", "science", "sports")
RANKS, LARGEST, ALPHA, RATE, STEPS, ROUNDS = (1, 2, 4), 4, 8, 1.0, 2, 3
SIZES = {"a": 5, "b": 8, "c": 12}
"""Training examples of each client."""
SHARES = [size / sum(SIZES.values()) for size in SIZES.values()]
LAYERS = [
    f"bert.encoder.layer.{layer}.attention.self.{name}" for layer in (0, 1) for name in ("query", "value")
]
"""In the order of the model, by which FLoRA draws A."""
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

Named = dict[str, Tensor]


def started(model: Path, options: dict[str, Any] | None) -> nn.Module:
    """The checkpoint with the head, and with the adapters, that the seed draws."""
    settings = {"num_labels": 4, "id2label": dict(enumerate(LABELS))}
    settings |= {"label2id": {label: number for number, label in enumerate(LABELS)}}
    return pretrained_model(
        str(model), "AutoModelForSequenceClassification", settings, WITHOUT_DROPOUT, 0, options
    )


class Server:
    """W, A, B and the head, float64; A and B have the largest rank."""

    scale = ALPHA / LARGEST

    def __init__(self, model: Path) -> None:
        self.base = started(model, None)
        adapted = started(model, {"method": "lora", "r": LARGEST, "lora_alpha": ALPHA})
        begun = {name: tensor.double() for name, tensor in peft.get_peft_model_state_dict(adapted).items()}
        self.head = {
            part: begun[f"base_model.model.classifier.{part}"].clone() for part in ("weight", "bias")
        }
        self.a = {layer: begun[f"base_model.model.{layer}.lora_A.weight"].clone() for layer in LAYERS}
        self.b = {layer: begun[f"base_model.model.{layer}.lora_B.weight"].clone() for layer in LAYERS}
        self.w = {layer: self.base.get_submodule(layer).weight.detach().double() for layer in LAYERS}

    def client(self, rank: int, batch: Named, held: str) -> tuple[Named, Named, Named]:
        """Train a PEFT model of a client's rank; return its A, its B and its head."""
        base = copy.deepcopy(self.base)
        config = peft.LoraConfig(
            r=rank, lora_alpha=ALPHA, target_modules=["query", "value"], task_type="SEQ_CLS"
        )
        model = peft.get_peft_model(base, config)
        layers = {layer: model.base_model.model.get_submodule(layer) for layer in LAYERS}
        head = model.base_model.model.classifier.modules_to_save["default"]
        with torch.no_grad():
            for layer, module in layers.items():
                module.base_layer.weight.copy_(self.w[layer])
                module.lora_A["default"].weight.copy_(self.a[layer][:rank])
                module.lora_B["default"].weight.copy_(self.b[layer][:, :rank] * rank / LARGEST)
            for part, values in self.head.items():
                head.get_parameter(part).copy_(values)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not (held and f"lora_{held}" in name))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
        model.train()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        a, b = (
            {layer: module.get_submodule(f"lora_{factor}.default").weight.detach().double()
             for layer, module in layers.items()}
            for factor in ("A", "B")
        )  # fmt: skip
        return a, b, {part: head.get_parameter(part).detach().double() for part in self.head}

    def round(self, rule: str, number: int, batches: list[Named]) -> None:
        """Train all clients, and average by a rule."""
        held = ("B", "A")[number % 2] if rule == "rolora" else ""
        clients = [self.client(rank, batch, held) for rank, batch in zip(RANKS, batches, strict=True)]
        products = [
            {layer: ALPHA / rank * b[layer] @ a[layer] for layer in LAYERS}
            for rank, (a, b, _) in zip(RANKS, clients, strict=True)
        ]
        shares = SHARES
        if rule == "hetlora":
            norms = [math.sqrt(sum(float(p.square().sum()) for p in one.values())) for one in products]
            weights = [share * norm for share, norm in zip(SHARES, norms, strict=True)]
            shares = [weight / sum(weights) for weight in weights]

        def mean(values: list[Tensor]) -> Tensor:
            return torch.stack([share * one for share, one in zip(shares, values, strict=True)]).sum(0)

        for place, layer in enumerate(LAYERS):
            product = mean([one[layer] for one in products])
            rows = torch.zeros(len(RANKS), *self.a[layer].shape, dtype=torch.float64)
            columns = torch.zeros(len(RANKS), *self.b[layer].shape, dtype=torch.float64)
            for client, (rank, (a, b, _)) in enumerate(zip(RANKS, clients, strict=True)):
                rows[client, :rank] = a[layer]
                columns[client, :, :rank] = b[layer] * LARGEST / rank
            match rule:
                case "flora":
                    self.w[layer] = self.w[layer] + product
                    most = 1 / math.sqrt(rows.shape[2])
                    drawn = generator(0, "adapters", number, place).uniform(-most, most, rows.shape[1:])
                    self.a[layer], self.b[layer] = torch.from_numpy(drawn), torch.zeros_like(self.b[layer])
                case "flexlora":
                    u, values, v = torch.linalg.svd(product)
                    self.a[layer] = v[:LARGEST]
                    self.b[layer] = u[:, :LARGEST] * values[:LARGEST] / self.scale
                case _:
                    self.a[layer] = self.a[layer] if held == "A" else mean(list(rows))
                    self.b[layer] = self.b[layer] if held == "B" else mean(list(columns))
        self.head = {part: mean([head[part] for _, _, head in clients]) for part in self.head}

    def effective(self) -> Named:
        """The weights that the server's model computes with."""
        adapted = {
            f"{layer}.weight": self.w[layer] + self.scale * self.b[layer] @ self.a[layer] for layer in LAYERS
        }
        return adapted | {f"classifier.{part}": values for part, values in self.head.items()}


@pytest.fixture(scope="module")
def silos(
    make_rows: Callable[..., list[tuple[str, str, str]]],
    make_csv: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with the texts of three clients, and a few to test on."""
    folder = tmp_path_factory.mktemp("silos")
    names = [site for site, size in SIZES.items() for _ in range(size)]
    rows = make_rows(len(names) + 4, seed=3)
    pairs = zip(rows, names, strict=False)
    make_csv(folder / "train.csv", [(text, label, site) for (text, label, _), site in pairs])
    make_csv(folder / "test.csv", [(text, label, "a") for text, label, _ in rows[len(names) :]])
    return folder


def batches_of(silos: Path, model: Path) -> list[Named]:
    """All examples of each client, as one batch."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    with (silos / "train.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    batches = []
    for site in SIZES:
        own = [row for row in rows if row["site"] == site]
        batch = tokenizer([row["text"] for row in own], padding=True, return_tensors="pt")
        labels = torch.tensor([LABELS.index(row["label"]) for row in own])
        kept = ("input_ids", "attention_mask")
        batches.append({**{name: batch[name] for name in kept}, "labels": labels})
    return batches


@pytest.mark.parametrize("rule", ["flora", "rolora", "plain", "flexlora", "hetlora"])
@pytest.mark.variants(2)
def test_clients_of_their_own_rank(
    rule: str,
    experiment: Callable[[dict[str, Any]], Experiment],
    tiny_model: Path,
    silos: Path,
    tmp_path: Path,
) -> None:
    changes = {
        "num_rounds": ROUNDS,
        "clients_per_round": len(RANKS),
        "data": {"path": str(silos / "train.csv"), "test_path": str(silos / "test.csv")},
        "partition": {"method": "natural", "field": "site"},
        "model.config": WITHOUT_DROPOUT,
        "model.peft": {"method": "lora", "ranks": list(RANKS), "lora_alpha": ALPHA, "averaging": rule},
        "client": {
            "optimizer": "sgd",
            "learning_rate": RATE,
            "per_device_train_batch_size": 64,
            "num_train_epochs": STEPS,
        },
        "evaluation.every": ROUNDS,
    }
    run = fednlp.run(experiment(changes), tmp_path / "run")
    server, batches = Server(tiny_model), batches_of(silos, tiny_model)
    begun = server.effective()
    for number in range(1, ROUNDS + 1):
        server.round(rule, number, batches)
    found, wanted = load_file(run.model / "model.safetensors"), server.effective()
    for name, values in wanted.items():
        assert float((values - begun[name]).abs().max()) > 1e-3, name
        assert float((values - found[name]).abs().max()) < 2e-6, name
