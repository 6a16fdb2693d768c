"""Messages survive their way as JSON, and what is none of them is refused in one line."""

import json
from dataclasses import MISSING, fields, replace
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fednlp.deployment.site.requests  # noqa: F401  (declares the kinds for sites, and all below)
from fednlp.errors import RunError
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.runtime.messages import KINDS, VERSION, from_json, to_json
from fednlp.secure.unmasking import UnmaskRequest
from fednlp.training.requests.predict import EvaluateRequest, LabelRequest

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**70), 2**70),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(max_size=9),
    type(None): st.none(),
}
ANYTHING = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
MESSAGES = [one for kind in KINDS.values() for one in (kind.request, kind.answer) if one is not None]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of an annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return ANYTHING
    if origin in (Union, UnionType):
        return st.one_of(*map(values, inner))
    if origin is list:
        return st.lists(values(inner[0]), max_size=4)
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    return SCALARS[hint]


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Return messages of one kind, with every field given or left out where it may be."""
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


def refusal(value: Any) -> str:
    with pytest.raises(RunError) as refused:
        from_json(value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
    return str(refused.value)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@pytest.mark.whole
def test_every_message_survives_its_way(kind: Any, data: st.DataObject) -> None:
    """To a JSON value, to text, and back: the same message, of the same type."""
    message = data.draw(messages(kind))
    arrived = from_json(json.loads(json.dumps(to_json(message))))
    assert type(arrived) is kind
    assert arrived == message


def test_no_answer_is_none() -> None:
    assert to_json(None) is None
    assert from_json(None) is None


def test_nothing_else_than_its_defaults_need_be_sent() -> None:
    short = {"version": VERSION, "kind": "TrainRequest", "client": 3, "round": 1, "weight": 0.5}
    assert from_json(short) == TrainRequest(3, 1, 0.5)


@pytest.mark.parametrize("version", [None, 0, VERSION + 1, str(VERSION), [VERSION]])
def test_other_versions_are_refused(version: Any) -> None:
    message = {**(to_json(EvaluateRequest(1, 2)) or {}), "version": version}
    assert "install the same fednlp on both sides" in refusal(message)


@pytest.mark.parametrize("value", [3, "text", [], {}, {"kind": "EvaluateRequest"}, True])
def test_what_is_no_message_is_refused(value: Any) -> None:
    assert "another version" in refusal(value)


@pytest.mark.parametrize("kind", ["", "Dance", "TrainRequest\n", None, ["TrainRequest"], "x" * 10_000])
def test_unknown_kinds_are_refused(kind: Any) -> None:
    assert "unknown kind" in refusal({"version": VERSION, "kind": kind})


@pytest.mark.parametrize(
    ("message", "changes", "said"),
    [
        (EvaluateRequest(1, 2), {"batch": "1"}, "batch: "),
        (EvaluateRequest(1, 2), {"batch": 1.5}, "batch: "),
        (EvaluateRequest(1, 2), {"batch": True}, "batch: "),
        (EvaluateRequest(1, 2), {"batch": None}, "batch: "),
        (EvaluateRequest(1, 2), {"more": 1}, "more: Extra inputs"),
        (EvaluateRequest(1, 2), {"m\n" * 99: 1}, "m"),
        (LabelRequest(1, 2, []), {"texts": [1, "x"]}, "texts.1: "),
        (LabelRequest(1, 2, []), {"texts": {"0": 1}}, "texts: "),
        (TrainRequest(1, 2, 0.5), {"weight": "heavy"}, "weight: "),
        (UnmaskRequest(0, 9, []), {"seeds": [3]}, "seeds.0: "),
        (ClientResult(1, 0.5), {"metrics": {"a\nb" * 99: "x"}}, "metrics."),
    ],
)
def test_misfits_are_refused_and_say_where(message: Any, changes: dict[str, Any], said: str) -> None:
    told = refusal({**(to_json(message) or {}), **changes})
    assert told.startswith(f"a {type(message).__name__} that does not fit: {said}")


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_message_without_one_of_its_fields_is_refused_or_has_the_default(
    kind: Any, data: st.DataObject
) -> None:
    message = data.draw(messages(kind))
    name = data.draw(st.sampled_from([one.name for one in fields(kind)]))
    sent = to_json(message) or {}
    del sent[name]
    field = next(one for one in fields(kind) if one.name == name)
    if field.default is MISSING and field.default_factory is MISSING:
        assert f"{name}: Field required" in refusal(sent)
    else:
        default = field.default if field.default_factory is MISSING else field.default_factory()
        assert from_json(sent) == replace(message, **{name: default})
