"""The experiment's file: read, checked, written back; every mistake said at once and in the user's words."""

import json
import math
import tomllib
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.experiment_paths import name_of, plain_name
from fednlp.config.renamed import RENAMED
from fednlp.config.values import algorithm_of
from fednlp.errors import ConfigError, RunError
from fednlp.reports import read_run
from fednlp.simulation.run_dir import RunDir

ALGORITHMS = ("fedavg", "fedprox", "fedopt", "fedadagrad", "fedadam", "fedyogi", "centralised", "local")

positive = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False)
decay = st.floats(min_value=0, max_value=1, exclude_max=True)
count = st.integers(1, 10**9)
words = st.text(st.characters(codec="utf-8"), max_size=20)


def table(**entries: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A table with any of its keys left out."""
    return st.fixed_dictionaries({}, optional=dict(entries))


documents = st.fixed_dictionaries(
    {"data": st.fixed_dictionaries({"name": words}, optional={"path": words, "text": words, "label": words})},
    optional={
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,79}", fullmatch=True),
        "seed": st.integers(),
        "num_rounds": count,
        "clients_per_round": count,
        "min_clients": count,
        "partition": table(
            method=st.sampled_from(["uniform", "label", "quantity", "label+quantity", "cluster", "natural"]),
            clients=count,
            alpha=positive,
            beta=positive,
            field=words,
            seed=st.integers(),
        ),
        "model": table(
            name_or_path=words,
            max_length=st.integers(4, 10**6),
            config=st.dictionaries(words, st.booleans() | st.integers() | positive | words, max_size=4),
        ),
        "algorithm": table(
            name=st.sampled_from(ALGORITHMS),
            mu=decay,
            weighting=st.sampled_from(["examples", "uniform"]),
        ),
        "client": table(
            optimizer=st.sampled_from(["sgd", "adam", "adamw", "adagrad"]),
            learning_rate=positive,
            num_train_epochs=count,
            max_steps=st.just(-1) | count,
            per_device_train_batch_size=count,
            weight_decay=positive,
            max_grad_norm=positive,
        ),
        "server": table(
            optimizer=st.sampled_from(["sgd", "adagrad", "adam", "yogi"]),
            learning_rate=positive,
            momentum=decay,
            beta1=decay,
            beta2=decay,
            tau=positive,
        ),
        "runtime": table(workers=st.integers(0, 1000), threads=count, device=words),
        "evaluation": table(every=count, personal=st.booleans(), batch_size=count),
        "report": table(report_to=st.lists(st.sampled_from(["tensorboard", "wandb", "mlflow"]))),
    },
)


@given(documents)
def test_what_is_written_is_read_back_equal(document: dict[str, Any]) -> None:
    """As TOML and as a file: the same experiment, types and all."""
    experiment = config.parse(document)
    again = config.parse(tomllib.loads(config.dump(experiment)))
    assert again == experiment
    assert again.model_dump_json() == experiment.model_dump_json()


@given(documents)
def test_every_given_value_is_kept(document: dict[str, Any]) -> None:
    experiment = config.parse(document).model_dump()
    for key, value in document.items():
        if isinstance(value, dict):
            for inner, given_value in value.items():
                assert experiment[key][inner] == given_value
        else:
            assert experiment[key] == value


@given(documents)
@settings(max_examples=200)
def test_resolving_writes_out_every_default_once(document: dict[str, Any]) -> None:
    """A resolved experiment is settled: resolving, writing and reading change nothing more."""
    try:
        resolved = config.parse(document).resolved()
    except ConfigError:
        return
    assert resolved.resolved() == resolved
    assert config.parse(tomllib.loads(config.dump(resolved))) == resolved
    assert resolved.server.optimizer is not None
    assert resolved.server.learning_rate is not None
    assert set(resolved.algorithm.function_options) >= (
        {"mu"} if resolved.algorithm.name == "fedprox" else set()
    )
    assert resolved.partition.seed is not None


NAMES_THAT_STAY = {
    "seed": "7",
    "num_rounds": "7",
    "clients_per_round": "2",
    "data.name": '"agnews"',
    "data.path": '"mine.csv"',
    "partition.method": '"label"',
    "partition.clients": "50",
    "partition.alpha": "0.5",
    "partition.beta": "2.0",
    "partition.field": '"author"',
    "partition.seed": "3",
    "model.name_or_path": '"minilm"',
    "model.max_length": "64",
    "algorithm.name": '"fedprox"',
    "algorithm.mu": "0.1",
    "client.optimizer": '"sgd"',
    "client.learning_rate": "0.1",
    "client.num_train_epochs": "2",
    "client.max_steps": "5",
    "client.per_device_train_batch_size": "16",
    "client.weight_decay": "0.01",
    "client.lr_scheduler_type": '"linear"',
    "client.max_grad_norm": "1.0",
    "server.optimizer": '"yogi"',
    "server.learning_rate": "0.1",
    "server.momentum": "0.5",
    "server.beta1": "0.5",
    "server.beta2": "0.5",
    "server.tau": "0.01",
    "runtime.workers": "2",
    "runtime.threads": "2",
    "runtime.device": '"cpu"',
    "evaluation.every": "5",
    "evaluation.personal": "false",
    "report.report_to": '["tensorboard"]',
}


def value_at(experiment: Experiment, key: str) -> Any:
    found: Any = experiment
    for part in key.split("."):
        found = getattr(found, part, None)
    return found


@pytest.mark.parametrize(("key", "text"), NAMES_THAT_STAY.items())
def test_names_that_stay(key: str, text: str, tmp_path: Path) -> None:
    """Each key is taken from a file and from --set, and what was typed is what counts."""
    head, _, last = key.rpartition(".")
    in_file = tmp_path / "in-file.toml"
    body = f"{last} = {text}\n" if not head else f"[{head}]\n{last} = {text}\n"
    in_file.write_text(body if head == "data" else f"{body}[data]\nname = '20news'\n")
    bare = tmp_path / "bare.toml"
    bare.write_text("[data]\nname = '20news'\n")
    wanted = tomllib.loads(f"value = {text}")["value"]
    assert value_at(config.load(in_file), key) == wanted
    assert value_at(config.load(bare, [f"{key}={text}"]), key) == wanted
    assert value_at(config.load(bare), key) != wanted


def test_words_need_no_quotes_in_an_override(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("[data]\nname = '20news'\n")
    changes = ["algorithm.name=fedprox", "data.path=/some/where.csv", "client.learning_rate=3e-4"]
    experiment = config.load(tmp_path / "e.toml", changes)
    assert experiment.algorithm.name == "fedprox"
    assert experiment.data.path == "/some/where.csv"
    assert experiment.client.learning_rate == 3e-4
    assert experiment.name == "e"


def test_the_mark_that_some_editors_begin_a_file_with_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("\ufeffseed = 3\n[data]\nname = '20news'\n", encoding="utf-8")
    assert config.load(tmp_path / "e.toml").seed == 3


CONSTANT = {"round_schedule": "constant", "warmup_rounds": 0, "minimum_rate": 0.0}
"""The server's learning rate over the rounds."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "fedavg": {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0},
    "fedprox": {"mu": 0.01, "optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0},
    "fedopt": {"mu": 0.0, "optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.9},
    "fedadagrad": {"mu": 0.0, "optimizer": "adagrad", "learning_rate": 0.01, "beta1": 0.0, "tau": 1e-3},
    "fedadam": {
        "mu": 0.0,
        "optimizer": "adam",
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": 1e-3,
    },
    "fedyogi": {
        "mu": 0.0,
        "optimizer": "yogi",
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.99,
        "tau": 1e-3,
    },
    "centralised": {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0},
    "local": {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_defaults_of_each_algorithm(name: str) -> None:
    """FedProx pulls, FedOpt has momentum 0.9, the adaptive ones have the paper's numbers; nothing more is set."""
    resolved = config.parse({"seed": 5, "data": {"name": "20news"}, "algorithm": {"name": name}}).resolved()
    said = resolved.server.model_dump(exclude_none=True) | resolved.algorithm.function_options
    assert said == DEFAULTS[name] | CONSTANT
    assert resolved.partition.seed == 5
    assert resolved.client.optimizer == "adamw"


@pytest.mark.parametrize("name", ["fedprox", "fedopt", "fedadagrad", "fedadam", "fedyogi"])
@pytest.mark.parametrize("mu", [-0.1, float("inf")])
def test_the_proximal_term_has_a_finite_weight_of_0_or_more(name: str, mu: float) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.mu"):
        config.parse({"data": {"name": "20news"}, "algorithm": {"name": name, "mu": mu}})


@pytest.mark.parametrize("name", ["fedopt", "fedadam"])
def test_what_is_given_stands_beside_the_defaults(name: str) -> None:
    resolved = config.parse(
        {"data": {"name": "20news"}, "algorithm": {"name": name}, "server": {"learning_rate": 0.5}}
    ).resolved()
    assert (
        resolved.server.model_dump(exclude_none=True)
        == {key: value for key, value in DEFAULTS[name].items() if key != "mu"}
        | {"learning_rate": 0.5}
        | CONSTANT
    )


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"num_round": 3}, "did you mean num_rounds?"),
        ({"clinet": {"optimizer": "sgd"}}, "did you mean client?"),
        ({"client": {"learning_rat": 1.0}}, "did you mean client.learning_rate?"),
        ({"client": {"lr_scheduler": "linear"}}, "did you mean client.lr_scheduler_type?"),
        ({"client": {"batch_size": 8}}, "did you mean"),
        ({"learning_rate": 1.0}, "did you mean client.learning_rate?"),
        ({"client": {"num_local_steps": 3}}, "did you mean client.max_steps?"),
        ({"client": {"local_steps": 3}}, "did you mean client.max_steps?"),
        ({"client": {"steps": 3}}, "did you mean client.max_steps?"),
        ({"partition": {"method": "dirichlet"}}, "did you mean 'label'?"),
        ({"partition": {"method": "Non-IID"}}, "did you mean 'label'?"),
        ({"partition": {"method": "noniid"}}, "did you mean 'label'?"),
        ({"partition": {"method": "iid"}}, "did you mean 'uniform'?"),
        ({"partition": {"alhpa": 1.0}}, "did you mean partition.alpha?"),
        ({"algorithm": {"name": "fedavgg"}}, "did you mean fedavg?"),
        ({"partition": {"method": "labels"}}, "did you mean 'label'?"),
        ({"client": {"optimizer": "adamW"}}, "did you mean adamw?"),
        ({"client": {"lr_scheduler_type": "cosin"}}, "did you mean cosine?"),
        ({"server": {"optimizer": "adamm"}}, "did you mean adam?"),
        ({"report": {"report_to": ["wandbb"]}}, "did you mean wandb?"),
    ],
)
def test_nearest_match(wrong: dict[str, Any], right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse({"data": {"name": "20news"}} | wrong)
    assert right in str(caught.value)


def keys_of(section: str) -> set[str]:
    annotation = Experiment.model_fields[section].annotation
    return {
        key
        for model in (annotation, *typing.get_args(annotation))
        for key in getattr(model, "model_fields", ())
    }


OLD_KEYS = {
    "client.final_steps": 2,
    "data.invalid": "drop",
    "evaluation.matrix": True,
    "fewshot.bad_clients": 0.5,
    "fewshot.check": True,
    "fewshot.keep": 0.5,
    "fewshot.paces": "paper",
    "fewshot.per_label": True,
    "fewshot.switches": 1,
    "runtime.remember": False,
    "secure.active": True,
    "secure.corruption": 0.2,
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_the_old_name_of_a_key_is_understood_with_a_warning(old: str, new: str, tmp_path: Path) -> None:
    """In dictionaries, overrides, files and variants; a run directory of an earlier version is refused."""
    (section, key), (_, name), value = old.split("."), new.split("."), OLD_KEYS[old]
    assert new.startswith(f"{section}.")
    assert name in keys_of(section)
    assert key not in keys_of(section)
    plain: dict[str, Any] = {"data": {"name": "20news"}}
    document = plain | {section: plain.get(section, {}) | {key: value}}
    text = f'data.name = "20news"\n{old} = {json.dumps(value)}'
    (tmp_path / "plain.toml").write_text('[data]\nname = "20news"')
    for file in ("old.toml", "resolved.toml"):
        (tmp_path / file).write_text(text)
    for read in (
        lambda: config.parse(document),
        lambda: Experiment(**document),
        lambda: config.load(tmp_path / "plain.toml", [f"{old}={json.dumps(value)}"]),
        lambda: config.load(tmp_path / "old.toml"),
        lambda: config.parse(plain | {"variants": {"x": {section: {key: value}}}}),
    ):
        with pytest.warns(
            FutureWarning, match=f"{old} is now {new}: rename it; the old name is an error in the next"
        ):
            found = read()
        if not found.variants and section != "fewshot":
            assert getattr(getattr(found, section), name) == value
    both = plain | {section: plain.get(section, {}) | {key: value, name: value}}
    with pytest.raises(ConfigError, match=f"{old} is now {new}, which is there too: leave {old} out"):
        config.parse(both)
    for read_run_directory in (RunDir(tmp_path).experiment, lambda: read_run(tmp_path)):
        with pytest.raises(
            RunError, match=f"by an earlier version of fednlp \\({old} is now {new}\\): run the"
        ):
            read_run_directory()


def test_a_cohort_that_is_not_given_is_no_larger_than_the_federation() -> None:
    """Ten, or all clients where these are fewer; what is given stays, and so does what other methods make of it."""

    def cohort(clients: int, method: str | None = None, **more: Any) -> int:
        partition = {"method": "uniform", "clients": clients}
        made = config.parse({"data": {"name": "20news"}, "partition": partition} | more)
        if method is not None:
            made = config.with_method(made, method, 1)
        assert made.settled().clients_per_round == made.resolved().clients_per_round
        return made.resolved().clients_per_round

    assert [cohort(clients) for clients in (1, 5, 10, 50)] == [1, 5, 10, 10]
    assert cohort(5, clients_per_round=3) == 3
    assert cohort(5, "fedprox") == 5
    assert cohort(5, "small", variants={"small": {"partition": {"clients": 4}}}) == 4
    assert cohort(5, "local") == 10, "baselines, whose settings are known by it, have no cohort"
    with pytest.raises(ConfigError, match=r"clients_per_round = 10 is more than partition\.clients = 5"):
        cohort(5, clients_per_round=10)
    with pytest.raises(ConfigError, match="min_clients = 7 is more than clients_per_round = 5"):
        cohort(5, min_clients=7)
    made = config.parse(
        {"data": {"name": "20news"}, "partition": {"method": "uniform", "clients": 5}}
    ).resolved()
    assert config.parse(tomllib.loads(config.dump(made))).resolved() == made


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    """Unknown keys, wrong values, a missing section and a bad override: one message, one line a mistake."""
    path = tmp_path / "wrong.toml"
    path.write_text(
        "num_round = 3\nseed = 'x'\n[client]\nlearning_rate = -1\nmomentum = 0.5\n[partition]\nalpha = 0\nbeta = -2\n"
        "[algorithm]\nname = 'fedavgg'\n[model]\nmax_length = 'long'\n[runtime]\nworkers = -1\n"
    )
    with pytest.raises(ConfigError) as caught:
        config.load(path, ["client.optimiser=sgd", "nonsense"])
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: {len(lines) - 1} mistakes"
    for part in (
        "num_round;",
        "seed = ",
        "client.learning_rate = -1",
        "partition.alpha = 0",
        "partition.beta = -2",
        "did you mean fedavg?",
        "model.max_length = ",
        "runtime.workers = -1",
        "client.optimiser; did you mean client.optimizer?",
        "--set nonsense",
        "data is missing",
    ):
        assert sum(part in line for line in lines) == 1, part


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-1"])
@pytest.mark.parametrize("key", ["partition.alpha", "partition.beta", "client.learning_rate", "server.tau"])
def test_numbers_that_cannot_be(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("[data]\nname = '20news'\n")
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "e.toml", [f"{key}={value}"])
    assert f"{key} = " in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clients_per_round": 20, "partition": {"clients": 10}}, "clients_per_round = 20 is more than"),
        ({"clients_per_round": 2, "min_clients": 3}, "min_clients = 3 is more than"),
        ({"algorithm": {"name": "fedavg", "mu": 0.1}}, "fedprox"),
        (
            {"algorithm": {"weighting": "uniform", "most_examples": 9}},
            'weighting = "uniform" has none: leave one of them out',
        ),
        ({"algorithm": {"most_examples": 0}}, "algorithm.most_examples = 0"),
        ({"server": {"momentum": 0.9}}, "[server] is not supported by fedavg"),
        (
            {"algorithm": {"name": "fedadam"}, "server": {"optimizer": "yogi"}},
            'means server.optimizer = "adam"',
        ),
        (
            {"algorithm": {"name": "fedadam"}, "server": {"momentum": 0.9}},
            "server.momentum is not supported by the",
        ),
        (
            {"algorithm": {"name": "fedopt"}, "server": {"tau": 0.1}},
            "server.tau is not supported by the",
        ),
    ],
)
def test_parts_that_do_not_go_together(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse({"data": {"name": "20news"}} | changes).resolved()
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_another_algorithm_keeps_the_rest(name: str) -> None:
    """Comparing changes algorithm and seed, and what belongs to them, and nothing else."""
    base = config.parse(
        {
            "name": "base",
            "seed": 1,
            "data": {"name": "20news"},
            "algorithm": {"name": "fedopt", "mu": 0.1, "most_examples": 50},
            "server": {"learning_rate": 0.7},
        }
    )
    other = config.with_algorithm(base, name, 9)
    assert (other.algorithm.name, other.seed) == (name, 9)
    assert other.algorithm.most_examples == 50
    assert [algorithm_of(other).weight(n) for n in (7, 99)] == [7.0, 50.0]
    takes = name not in {"fedavg", "centralised", "local"}
    assert other.algorithm.function_options == ({"mu": 0.1} if takes else {})
    assert other.server.learning_rate == (0.7 if name == "fedopt" else None)
    same = {"algorithm", "server", "seed"}
    assert other.model_dump(exclude=same) == base.model_dump(exclude=same)
    other.resolved()


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"name": "other"}, False),
        ({"runtime.workers": 7}, False),
        ({"report.report_to": ["tensorboard"]}, False),
        ({"seed": 3}, True),
        ({"client.learning_rate": 0.5}, True),
        ({"partition.clients": 7}, True),
        ({"evaluation.every": 2}, True),
        ({"model.max_length": 16}, True),
    ],
)
def test_which_settings_decide_the_result(
    change: dict[str, Any], counts: bool, document: Callable[..., dict[str, Any]]
) -> None:
    one, other = (config.parse(document(c)).resolved() for c in ({}, change))
    found = config.differences(one, other)
    assert bool(found) is counts
    assert not counts or any(next(iter(change)) in difference for difference in found)


@pytest.mark.parametrize("text", ["", "a.b", "=3", ".=3", "a..b=1", "client=3", "seed.deep=1"])
def test_an_override_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("seed = 1\n[data]\nname = '20news'\n")
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "e.toml", [text])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b"[data]\n[data]\n"])
def test_a_file_that_is_no_toml(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_bytes(content)
    with pytest.raises(ConfigError, match="not readable as TOML"):
        config.load(tmp_path / "e.toml")


def test_data_in_place_of_an_experiment(tmp_path: Path) -> None:
    """A folder or a table says what to type; a key that a section lacks is named with its section."""
    (tmp_path / "notes.csv").write_text("text,label\na,b\n")
    for path in (tmp_path, tmp_path / "notes.csv"):
        with pytest.raises(ConfigError, match=r"if it is your data, say \[data\] path = "):
            config.load(path)
    (tmp_path / "e.toml").write_text("[data]\nname = 'bbc'\n[privacy]\nepsilon = 1\n")
    with pytest.raises(ConfigError, match=r"privacy\.clip is missing: add clip = \.\.\. to \[privacy\]"):
        config.load(tmp_path / "e.toml")


def test_a_file_that_is_not_there_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    with pytest.raises(ConfigError, match=r"did you mean .*quickstart\.toml"):
        config.load(tmp_path / "quikstart.toml")


def test_infinity_is_shown_as_typed() -> None:
    with pytest.raises(ConfigError, match=r"client\.learning_rate = inf"):
        config.parse({"data": {"name": "20news"}, "client": {"learning_rate": math.inf}})


@given(words)
def test_a_name_is_refused_in_words_with_one_that_is_taken(text: str) -> None:
    """The name of a file that states none is made in the same way."""
    near, wrong = plain_name(text), {"data": {"name": "20news"}, "name": f"ü{text}"}
    with pytest.raises(ConfigError, match=r"only letters from A to Z, digits and \. _ \+ -") as caught:
        config.parse(wrong)
    assert str(caught.value).endswith(f'; say "{near}"' if near else "a digit first")
    assert config.parse(wrong | {"name": near or "experiment"}).name == name_of(Path(f"ü{near}.toml"))


def test_the_name_of_a_variant_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r'\[variants\."x/y"\]: .* digits, spaces and .*; say "x-y"$'):
        config.parse({"data": {"name": "20news"}, "variants": {"x/y": {}}})


SENSE = {
    "num_rounds = true": "num_rounds = true",
    "seed = 1.5": "seed = 1.5",
    '[client]\nlearning_rate = "5e-4"': 'client.learning_rate = "5e-4"',
    "[client]\nbatch_size = 4": "did you mean client.per_device_train_batch_size?",
    "[client]\nlr = 4": "did you mean client.learning_rate?",
    "[client]\nepochs = 4": "did you mean client.num_train_epochs?",
    "[model]\nconfig = {a = 2020-01-01}": "model.config.a",
}


@pytest.mark.parametrize(("text", "said"), SENSE.items())
def test_what_is_meant(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('data = {name = "20news"}\n' + text)
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "e.toml")
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_lists_and_tables_of_a_models_configuration(tmp_path: Path) -> None:
    (tmp_path / "my exp.toml").write_text(
        'data = {name = "20news"}\n[model]\nconfig = {a = [1, 2], b = {c = 1}}'
    )
    found = config.load(tmp_path / "my exp.toml")
    assert found.name == "my-exp"
    assert found.model.config == {"a": [1, 2], "b": {"c": 1}}


KEPT = """
data = {path = "a.csv", text = "body"}
partition = {method = "cluster", clients = 4, alpha = 1.0, clusters = 7}
"""


@pytest.mark.parametrize("method", ["cluster", "niid_cluster"])
def test_an_override_that_changes_nothing_drops_nothing(method: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(KEPT)
    found = config.load(tmp_path / "e.toml", [f"partition.method={method}", "data.path=b.csv"])
    assert found.partition == config.load(tmp_path / "e.toml").partition
    assert (found.data.path, found.data.text) == ("b.csv", "body")


def test_an_override_that_replaces_the_data_or_the_method_drops_what_was_theirs(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(KEPT)
    found = config.load(tmp_path / "e.toml", ["partition.method=niid_label", "data.name=trec"])
    assert (found.partition.method, found.partition.clusters, found.partition.clients) == ("label", None, 4)
    assert (found.data.name, found.data.path, found.data.text) == ("trec", None, "text")


def test_an_override_by_a_method_of_ones_own_keeps_the_number_of_clients(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(KEPT)
    found = config.load(tmp_path / "e.toml", ["partition.method=mine:shards", "partition.options.size=2"])
    assert found.partition.given() == {"clients": 4, "size": 2}


@pytest.mark.parametrize(
    "name", ["fedavg", "fedadam", "ditto", "centralised", "chained", "local", "majority"]
)
def test_what_is_resolved_may_be_resolved_again(name: str) -> None:
    """As a comparison does: it checks all runs before the first begins."""
    once = config.parse({"data": {"name": "20news"}, "algorithm": {"name": name}}).resolved()
    assert once.resolved() == once


def test_every_mistake_of_every_variant_is_said_when_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(
        'data.name = "20news"\n[variants.good.client]\nmax_steps = 3\n[variants.one]\nnum_round = 3\n'
        '[variants.two.client]\nlearning_rate = -1\n[variants.two.algorithm]\nname = "fedavgg"\n'
        '[variants.three.algorithm]\nname = "fedprox"\nmu = "much"\n'
    )
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    said = caught.value.problems
    assert [problem.partition(": ")[0] for problem in said] == ["variant one", "variant two", "variant three"]
    assert said[0] == "variant one: unknown key num_round; did you mean num_rounds?"
    assert "fedavg" in said[1]
    assert "algorithm.mu" in said[2]
    path.write_text('data.name = "20news"\n[variants.good.client]\nmax_steps = 3\n')
    assert config.load(path).variants == {"good": {"client": {"max_steps": 3}}}


@pytest.mark.parametrize("key", ["runtime.onednn", "client.bf16", "evaluation.bf16_full_eval"])
@pytest.mark.parametrize(("given", "shown"), [("1", "1"), ("'true'", '"true"'), ("on", '"on"'), ("[]", "[]")])
def test_what_the_machine_may_decide_is_yes_no_or_auto(
    key: str, given: str, shown: str, tmp_path: Path
) -> None:
    file = tmp_path / "bare.toml"
    file.write_text("[data]\nname = '20news'\n")
    with pytest.raises(ConfigError) as error:
        config.load(file, [f"{key}={given}"])
    assert error.value.problems == [f'{key} = {shown} is none of true, false, "auto"']


@pytest.mark.parametrize("section", ["algorithm", "task", "aggregator"])
def test_a_mistake_writes_nothing_but_text_to_a_terminal(section: str) -> None:
    """A server's experiment may hold anything."""
    with pytest.raises(ConfigError) as caught:
        config.parse({"data": {"name": "20news"}, section: {"name": "\x1b]0;pwn\x07"}})
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            'report.report_to=["trackio"]',
            '--set report.report_to=["trackio"]: report.report_to.0 = "trackio"',
        ),
        ("client.learning_rate=-1", "--set client.learning_rate=-1: client.learning_rate = -1"),
        (
            "client.learning_rat=1",
            "--set client.learning_rat=1: unknown key client.learning_rat; did you mean",
        ),
    ],
)
def test_a_mistake_in_an_option_is_not_blamed_on_the_file(override: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text("[data]\nname = '20news'\n")
    with pytest.raises(ConfigError) as caught:
        config.load(tmp_path / "e.toml", [override])
    assert str(caught.value).startswith(said)
