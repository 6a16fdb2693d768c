"""The configurations that the laws are tried on: every method, task and feature at least once, each a few seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_SGD = {"client.optimizer": "sgd", "client.learning_rate": 0.1}
_UNIFORM = {"algorithm.weighting": "uniform"}
_LORA = {"method": "lora", "r": 2}
_RANKS = {"method": "lora", "ranks": [1, 2, 3]}
_FEW = {"gold": 24, "gamma": 1.0, "f": 1, "n": 3, "k": 20.0}
_SEARCH = {
    "pacing": "search",
    "trial_rounds": 2,
    "validation": 20,
    "candidates": 2,
    "window": 1,
    "threshold": 9.0,
}
_LOSSES = {"secure.dropout": 0.25, "secure.simulated_dropout": 0.25}
_HALVES = {"hidden_size": 16, "embedding_size": 16}
_SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
_SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}


@dataclass(frozen=True)
class Configuration:
    """A line of the table.

    Attributes:
        changes: What its experiment says beside :func:`tests.laws.material.document`, by dotted key; None
            takes one out.
        rows: The kind of its examples, a key of :data:`tests.laws.material.ROWS`.
        model: The model that it begins with, a key of :data:`tests.laws.material.MODELS`.
        deployed: ``equal`` to the simulation; ``rounded``, where the sites' own scores differ in the last digits, since
            they predict in other batches; ``refused``; or with ``another`` outcome, by real time, real losses or noise
            that nobody can foretell.
        at_sites: Whether all models are at the sites, where the server's test set is not.
    """

    changes: Mapping[str, Any]
    rows: str = "texts"
    model: str = "encoder"
    deployed: Literal["equal", "rounded", "refused", "another"] = "equal"
    at_sites: bool = False


def _simulated(changes: Mapping[str, Any], rows: str = "texts") -> Configuration:
    return Configuration(changes, rows, deployed="refused")


def _drawn(changes: Mapping[str, Any]) -> Configuration:
    return Configuration(changes, deployed="another")


def _timed(changes: Mapping[str, Any]) -> Configuration:
    devices = {"costs.device": {"jetson-tx2": 0.5, "raspberry-pi-4b": 0.5}}
    return _drawn({**changes, **devices})


ALGORITHMS: dict[str, Configuration] = {
    "fedavg": Configuration({**_SGD, "client.round_schedule": "cosine"}),
    "fedprox": Configuration({"algorithm": {"name": "fedprox", "mu": 0.5}, "client.num_train_epochs": 2}),
    "fedopt": Configuration(
        {
            "algorithm.name": "fedopt",
            "client.max_grad_norm": 1.0,
            "server.optimizer": "sgd",
            "server.momentum": 0.5,
        }
    ),
    "fedadagrad": Configuration({"algorithm.name": "fedadagrad", "server.round_schedule": "cosine"}),
    "fedadam": Configuration({"algorithm.name": "fedadam", "client.lr_scheduler_type": "linear"}),
    "fedyogi": Configuration(
        {
            "algorithm.name": "fedyogi",
            "client.weight_decay": 0.01,
            "partition": {"method": "quantity", "beta": 1.0, "alpha": None},
        }
    ),
    "fedavgm": Configuration({"algorithm.name": "fedavgm", **_SGD}),
    "feddyn": Configuration({"algorithm.name": "feddyn", **_SGD}),
    "moon": Configuration(
        {"algorithm": {"name": "moon", "mu": 5.0}, "client.gradient_accumulation_steps": 2}
    ),
    "qfedavg": Configuration({"algorithm.name": "qfedavg", **_SGD}),
    "apfl": Configuration({"algorithm.name": "apfl", "partition.alpha": 0.3}),
    "scaffold": Configuration({"algorithm.name": "scaffold", **_SGD}),
    "fednova": Configuration({"algorithm.name": "fednova", **_SGD, "partition.test_sets": "own-split"}),
    "ditto": Configuration({"algorithm.name": "ditto", "partition.alpha": 0.3}),
    "ifca": Configuration({"algorithm": {"name": "ifca", "clusters": 3}, **_SGD}),
    "fedbuff": _timed({"algorithm": {"name": "fedbuff", "buffer_size": 2}}),
    "centralised": _simulated({"algorithm.name": "centralised", "client.lr_scheduler_type": "linear"}),
    "chained": _simulated({"algorithm.name": "chained", "client.lr_scheduler_type": "linear"}),
    "local": _simulated({"algorithm.name": "local", "evaluation.local_models": 3, "clients_per_round": 2}),
}
AGGREGATORS: dict[str, Configuration] = {
    "median of flipped signs": _simulated(
        {**_UNIFORM, "aggregator.name": "median", "attack": {"name": "sign-flip", "fraction": 0.25}}
    ),
    "trimmed mean": Configuration({**_UNIFORM, "aggregator": {"name": "trimmed-mean", "fraction": 0.3}}),
    "geometric median": Configuration({"aggregator": {"name": "geometric-median"}}),
    "krum": Configuration(
        {**_UNIFORM, "aggregator": {"name": "krum", "byzantine": 1}, "clients_per_round": 5}
    ),
}
EXCHANGE: dict[str, Configuration] = {
    "8 bits with error feedback": Configuration(
        {"exchange": {"up": ["int8"], "down": ["bfloat16"], "error_feedback": True}}
    ),
    "largest tenth": Configuration({"exchange": {"up": ["topk:0.1", "int8"], "error_feedback": True}}),
    "signs": Configuration(
        {"exchange": {"up": ["sign"], "error_feedback": True}, "algorithm.name": "fedprox"}
    ),
    "16-bit weights": Configuration(
        {"exchange": {"up": ["float16"], "down": ["float16"], "send": "weights"}}
    ),
    "pull low": Configuration({"pull.rule": "low", "algorithm.name": "fedopt"}),
    "pull and push high": Configuration(
        {"pull": {"rule": "high", "share": 0.4, "push": "selected"}, "client.finetune_steps": 2},
        at_sites=True,
    ),
    "pull parameters": Configuration(
        {"pull": {"rule": "random", "of": "parameters", "push": "selected"}, "exchange.up": ["int8"]},
        at_sites=True,
    ),
    "over-selection": _timed({"rounds.over_selection": 1.5, "clients_per_round": 2}),
}
COHORTS: dict[str, Configuration] = {
    "power of choice": Configuration(
        {
            "cohort": {"name": "power-of-choice", "candidates": 4},
            "clients_per_round": 2,
            "costs.device": "jetson-tx2",
        }
    ),
    "power of choice of two vectors": Configuration(
        {
            "cohort.name": "power-of-choice",
            "clients_per_round": 2,
            "algorithm.name": "scaffold",
            **_SGD,
            "exchange.down": ["float16"],
        }
    ),
    "oort": Configuration(
        {
            "cohort": {"name": "oort", "exploration": 0.5, "seconds": 0.01},
            "clients_per_round": 2,
            "num_rounds": 4,
            "costs.device": "jetson-tx2",
        }
    ),
}
MODELS_OF_CLIENTS: dict[str, Configuration] = {
    "frozen": Configuration({"model.train": {"frozen": ["embeddings", "layer.0"]}}),
    "biases": Configuration({"model.train": ["bias", "head"], "algorithm.name": "fedadam"}),
    "split": Configuration(
        {
            "model.train": {"critical_layer": 1, "embeddings": "shared"},
            "client.finetune_steps": 2,
            "evaluation.server_model": True,
        },
        at_sites=True,
    ),
    "kept optimiser": Configuration({"client.keep_optimizer": True, "client.lr_scheduler_type": "linear"}),
    "lora": Configuration({"model.peft": _LORA}),
    "exact lora rounded": Configuration(
        {
            "model.peft": _LORA | {"averaging": "exact"},
            "exchange": {"up": ["int8"], "down": ["bfloat16"]},
            "algorithm.name": "fedprox",
        }
    ),
    "ffa lora": Configuration({"model.peft": _LORA | {"averaging": "ffa"}, "exchange.up": ["int8:64"]}),
    "fedsa lora": Configuration({"model.peft": _LORA | {"averaging": "fedsa"}}, at_sites=True),
    "rolora of unequal ranks": Configuration(
        {"model.peft": _RANKS | {"averaging": "rolora"}, "exchange.up": ["int8"], "client.weight_decay": 0.1}
    ),
    "flora": Configuration({"model.peft": _RANKS | {"averaging": "flora"}}),
    "flexlora": Configuration({"model.peft": _RANKS | {"averaging": "flexlora"}}),
    "hetlora": Configuration(
        {
            "model.peft": _RANKS | {"averaging": "hetlora"},
            "cohort": {"name": "power-of-choice", "candidates": 4},
            "clients_per_round": 2,
        }
    ),
    "prompt tuning": Configuration({"model.peft": {"method": "prompt-tuning", "num_virtual_tokens": 3}}),
    "clients at once": _simulated({"model.peft": _LORA, "runtime.clients_at_once": 3}),
    "cross-client evaluation": Configuration({"evaluation.cross_client_evaluation": True, **_SGD}),
}
PROTECTED: dict[str, Configuration] = {
    "secagg with signatures": _simulated(
        {"secure": {"protocol": "secagg", "malicious_server": True}, "algorithm.name": "fedprox"}
    ),
    "secagg with losses": _drawn({"secure.protocol": "secagg", "secure.stochastic": True, **_LOSSES}),
    "secagg+": Configuration({"secure.protocol": "secagg+", "evaluation.federated": True}),
    "lightsecagg": Configuration({"secure": {"protocol": "lightsecagg", "sum_reports": True}}),
    "lightsecagg with losses": _drawn({"secure.protocol": "lightsecagg", **_LOSSES}),
    "private by the server": _drawn(
        {**_UNIFORM, "privacy": {"clip": 0.5, "noise": 0.3, "sampling": "poisson"}, "exchange.up": ["int8"]}
    ),
    "private by the clients": _drawn(
        {**_UNIFORM, "privacy": {"clip": 0.5, "noise": 0.3}, "secure.protocol": "secagg+"}
    ),
}
FEW_LABELS: dict[str, Configuration] = {
    "gold alone": Configuration({"fewshot": _FEW | {"pacing": "none"}}),
    "curriculum": Configuration({"fewshot": _FEW, "algorithm.name": "fedopt"}),
    "wrong labels": _simulated(
        {"fewshot": _FEW | {"noisy_client_fraction": 0.5, "detect_label_noise": True}}
    ),
    "search": Configuration({"fewshot": _FEW | _SEARCH, "num_rounds": 14, "evaluation.every": 7}),
    "prompts": Configuration(
        {
            "fewshot": _FEW | {"gold": 0},
            "model.train": {"frozen": ["embeddings", "layer.0"]},
            "task": {
                "name": "prompt-classification",
                "pattern": "{text} word0 {mask} word1",
                "verbalizer": {
                    "arts": "arts0",
                    "economy": "economy0",
                    "science": "science0",
                    "sports": "sports0",
                },
            },
        },
        model="decoder",
    ),
}
_CHAT = "{% for m in messages %}{{ m['content'] + ' [SEP] ' }}{% endfor %}"
"""A template in the words of the small decoder."""
TASKS: dict[str, Configuration] = {
    "tagging": Configuration({"task.name": "token-classification"}, "tagged"),
    "answering": Configuration({"task.name": "question-answering"}, "asked", deployed="rounded"),
    "regression": Configuration({"task.name": "text-regression"}, "scored", deployed="rounded"),
    "pairs": Configuration({"evaluation.federated": True}, "paired"),
    "masked": Configuration({"task": {"name": "masked-lm", "mlm_probability": 0.3}}, "spoken", "masked"),
    "writing": Configuration(
        {"task": {"name": "text-generation", "max_target_length": 4, "template": "{source} word0"}},
        "copied",
        "decoder",
    ),
    "chats": Configuration(
        {"task": {"name": "chat", "chat_template": _CHAT}, "evaluation.federated": True},
        "chats",
        "decoder",
        deployed="rounded",
    ),
    "choices": Configuration(
        {
            "task": {
                "name": "chat",
                "chat_template": _CHAT,
                "choices": ["text", "letter", "generation"],
                "scorer": "rouge",
                "metric": "choice_accuracy_norm",
                "max_new_tokens": 3,
            },
            "evaluation.federated": True,
        },
        "choices",
        "decoder",
        deployed="rounded",
    ),
    "chats by tokens": Configuration(
        {
            "task": {"name": "chat", "chat_template": _CHAT, "loss_mean": "examples"},
            "algorithm.weighting": "tokens",
        },
        "chats",
        "decoder",
        deployed="refused",
    ),
    "preferences": Configuration(
        {
            "task": {"name": "preference", "chat_template": _CHAT, "label_smoothing": 0.1},
            "model.peft": _LORA,
            "client.gradient_accumulation_steps": 2,
            "client.per_device_train_batch_size": 4,
            "evaluation.federated": True,
        },
        "preferences",
        "decoder",
        deployed="rounded",
    ),
    "translation": _simulated(
        {
            "model": {
                "name_or_path": "transformer",
                "vocabulary_size": 320,
                "max_length": 24,
                "config": _SMALL,
            },
            "task": {"name": "sequence-to-sequence", "max_target_length": 4},
        },
        rows="copied",
    ),
    "language": _simulated(
        {
            "model": {"name_or_path": "lstm", "vocabulary_size": 320, "max_length": 16, "config": _HALVES},
            "task.name": "causal-lm",
            "partition": {"method": "natural", "field": "speaker", "clients": None},
        },
        rows="spoken",
    ),
}
CONFIGURATIONS: dict[str, Configuration] = (
    ALGORITHMS | AGGREGATORS | EXCHANGE | COHORTS | MODELS_OF_CLIENTS | PROTECTED | FEW_LABELS | TASKS
)
