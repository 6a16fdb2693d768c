"""Profiles of devices: what is shipped states its source, and a wrong file is told in one line."""

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fednlp.costs import DeviceProfile, Speed, load_profile, profile_names
from fednlp.errors import ConfigError

LARGE = 355_000_000
amounts = st.floats(0, 1e6)


def _write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _message(path: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_that_comes_along_is_named_as_its_file_and_states_its_source(name: str) -> None:
    device = load_profile(name)
    assert device.name == name
    assert re.search(r"(MobiCom|ACL) 20\d\d|measured on 20\d\d-\d\d-\d\d with fednlp", device.source)
    assert "\n" not in device.source


def test_the_measured_profile_takes_longer_the_deeper_a_model_is_trained() -> None:
    """More layers at work take longer, the whole model takes longest, and training takes longer than inference."""
    device = load_profile("amd-epyc-2-cores")
    assert device.training.bias is not None
    assert 0 < device.training.bias < 1
    for model, layers in (("bert-tiny", 2), ("minilm", 6)):
        series = []
        for speed in (device.training, device.inference):
            by_depth = {**speed.depths[model], layers: speed.models[model]}
            series.append([seconds for _, seconds in sorted(by_depth.items())])
        assert all(one == sorted(one) for one in series)
        assert all(training > inference for training, inference in zip(*series, strict=True))


def test_the_pi_is_fifteen_times_as_slow_and_states_nothing_that_its_source_does_not() -> None:
    tx2, pi = load_profile("jetson-tx2"), load_profile("raspberry-pi-4b")
    for model in ("roberta-large", "something else"):
        for one, other in ((tx2.training, pi.training), (tx2.inference, pi.inference)):
            fast, slow = one.seconds(model, LARGE), other.seconds(model, LARGE)
            assert fast is not None
            assert slow == pytest.approx(15 * fast)
    assert (pi.memory, pi.watts_computing, pi.watts_sending, pi.latency) == (None, None, None, None)
    assert (tx2.memory, tx2.watts_computing, tx2.watts_sending, tx2.latency) == (8 * 2**30, 12.0, 4.0, None)


def test_the_figure_by_parameters_is_that_of_the_named_model() -> None:
    for name in ("jetson-tx2", "raspberry-pi-4b"):
        for speed in (load_profile(name).training, load_profile(name).inference):
            assert speed.seconds("another", LARGE) == pytest.approx(speed.models["roberta-large"], rel=0.01)


def test_a_model_is_found_by_the_last_part_of_its_name() -> None:
    speed = Speed({"a": 1.0, "org/b": 2.0}, 0.5)
    assert [speed.seconds(m, 4_000_000) for m in ("a", "hub/a", "/x/a", "org/b", "b")] == [1, 1, 1, 2, 2.0]
    assert Speed({"a": 1.0}).seconds("b", 10) is None


@given(
    training=st.dictionaries(st.text(min_size=1, max_size=8), amounts, max_size=3),
    depths=st.dictionaries(
        st.text(min_size=1, max_size=8), st.dictionaries(st.integers(0, 100), amounts, max_size=3), max_size=2
    ),
    bias=st.none() | amounts,
    million=st.none() | amounts,
    latency=st.none() | amounts,
    memory=st.none() | st.integers(0, 2**50),
    watts=st.none() | amounts,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_a_profile_states_is_read_back(
    tmp_path: Path,
    training: dict[str, float],
    depths: dict[str, dict[int, float]],
    bias: float | None,
    million: float | None,
    latency: float | None,
    memory: int | None,
    watts: float | None,
) -> None:
    table: dict[str, Any] = {
        "name": "mine",
        "source": "measured",
        "latency": latency,
        "memory": memory,
        "training": {
            "models": training,
            "depths": {model: {str(depth): s for depth, s in of.items()} for model, of in depths.items()},
            **({} if million is None else {"per_million_parameters": million}),
            **({} if bias is None else {"bias": bias}),
        },
        "watts": {} if watts is None else {"computing": watts},
    }
    path = _write(tmp_path, tomli_w.dumps({key: value for key, value in table.items() if value is not None}))
    expected = DeviceProfile(
        "mine",
        "measured",
        Speed(training, million, depths, None, bias),
        Speed(),
        watts,
        None,
        memory,
        latency,
    )
    assert load_profile(path) == expected
    assert load_profile(str(path)) == expected


@given(st.text(max_size=60))
@example('name = "x"\nsource = "y"\n"two\\nlines" = 1')
@example('name = "x"\nsource = "y"\n[training.models]\n"two\\nlines" = -1')
@example("a = " + "[" * 20_000)
@example("latency = " + "9" * 5_000)
@example('name = "x"\nsource = "y"\nlatency = 1' + "0" * 400)
@example('name = "x"\nsource = "y"\nlatency = nan')
@example('name = "x"\nsource = "y"\n[training.depths.m]\n"two\\nlines" = 1')
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    assert len(_message(_write(tmp_path, text))) < 600


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    assert "longer than 65,536 bytes" in _message(_write(tmp_path, "#" * 70_000))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "jetson-tx",
            "did you mean jetson-tx2? known are amd-epyc-2-cores, jetson-tx2, pixel-4, raspberry-pi-4b",
        ),
        ("Raspberry-Pi-4B", "did you mean raspberry-pi-4b?"),
        ("nothing like it", "or give the path of a TOML file"),
        ("no/such/file.toml", "there is no device profile no/such/file.toml"),
        ("two\nlines", r"there is no device profile 'two\nlines'"),
        ("a\0b", "there is no device profile"),
        ("x" * 5000, "there is no device profile"),
        ("~nobody-of-that-name/x.toml", "there is no device profile ~nobody"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(given: str, said: str) -> None:
    assert said in _message(given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainin = {}", "unknown key trainin; did you mean training?"),
        ("[watts]\ncomputin = 1", "unknown key watts.computin; did you mean watts.computing?"),
        (
            "[training]\nzzz = 1",
            "unknown key training.zzz; known here: models, per_million_parameters, depths",
        ),
        ("[inference]\nbackward = 1", "unknown key inference.backward; known here: models"),
        ("[training]\ndepths = 3", "training.depths is no table of models"),
        ("[training.depths]\nbert = 3", "training.depths is no table of models"),
        (
            "[training.depths.bert]\nx = 3",
            "training.depths.bert.x: a depth is a number of layers, 0 to 10,000",
        ),
        ("[training.depths.bert]\n99999 = 3", "a depth is a number of layers"),
        ("[training.depths.bert]\n1 = -3", "training.depths.bert.1 = -3 is no number from 0 up"),
        ("[training]\nbias = 'half'", "training.bias = 'half' is no number"),
        ("training = 3", "training is no section"),
        ("[training]\nmodels = 3", "training.models is no table"),
        ("[training.models]\nbert = '3'", "training.models.bert = '3' is no number from 0 up"),
        ("latency = -1", "latency = -1 is no number from 0 up; leave it out if it is not known"),
        ("latency = true", "latency = True is no number"),
        ("memory = inf", "memory = inf is no number"),
    ],
)
def test_a_wrong_figure_is_named_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    path = _write(tmp_path, f'name = "x"\nsource = "y"\n{text}')
    message = _message(path)
    assert message.startswith(f"{path}: ")
    assert said in message


@pytest.mark.parametrize("text", ['name = "x"', 'name = "x"\nsource = " "', 'name = "x"\nsource = 3'])
def test_a_profile_without_its_source_is_refused(tmp_path: Path, text: str) -> None:
    assert 'source is missing: add source = "..."' in _message(_write(tmp_path, text))
