"""The specification of a selection, ``[model] train``: parts of a model and their states. It needs no torch."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fednlp.errors import ConfigError

ParameterState = Literal["shared", "personal", "frozen"]
PARAMETER_STATES: tuple[ParameterState, ...] = get_args(ParameterState)

_LONGEST_TERM = 200
_MOST_TERMS = 1000
_MOST_PATTERNS = 100  # one may cost 0.1 s
_MOST_ADDED_LAYERS = 64
_FORMS = "embeddings, head, layer.3, layer.0-5, layer.0,3, encoder, decoder.layer.0-2, bias, re:PATTERN"
_SAY = (
    f'say "all", a part ({_FORMS}), a list of parts, or a table with parts under shared, personal and frozen'
)
_LAYERS = re.compile(r"((?:encoder\.|decoder\.)?layer)\.(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)")
_PARTS = ("embeddings", "head", "encoder", "decoder", "encoder.embeddings", "decoder.embeddings")
_NOT_OF_RE2 = re.compile(r"\(\?<?[=!]|\\[1-9]|\(\?P=|\(\?\(")
_BIAS = r"(?:^|\.)bias(?:$|_[ih]h_l\d+)"  # the longer names are those of recurrent layers


@dataclass(frozen=True)
class SelectionTerm:
    """One part of a model by name: parameters of some groups (all if empty) whose names fit a pattern.

    The pattern is a regular expression of RE2, searched in time that is linear in a name: it may be a stranger's.
    """

    text: str
    groups: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class SelectionSpec:
    """A parsed ``[model] train``; by default everything is shared.

    With ``critical_layer`` (FedSplitBERT) the terms are empty, and ``embeddings`` is the state of these. With
    ``layers`` it is for a model of so many, and fits no other.
    """

    shared: tuple[SelectionTerm, ...] = ()
    personal: tuple[SelectionTerm, ...] = ()
    frozen: tuple[SelectionTerm, ...] = ()
    rest: ParameterState = "shared"
    critical_layer: int | None = None
    embeddings: ParameterState = "frozen"
    layers: int | None = None


def parse_selection(value: object) -> SelectionSpec:
    """Read ``[model] train``.

    Args:
        value: ``"all"``; a term or a list of terms that are shared while the rest is frozen; a table with terms
            under ``shared``, ``personal`` and ``frozen``, the state of the ``rest`` and, if it is for that alone, of
            how many ``layers`` the model is; or a table with ``critical_layer`` and the state of the
            ``embeddings``. docs/methods/freezing.md lists the terms.

    Raises:
        ConfigError: It cannot be read; the message says what to type.

    >>> parse_selection(["bias", "head"]).rest
    'frozen'
    >>> [term.groups for term in parse_selection({"personal": "layer.0,2-3"}).personal]
    [('layer.0', 'layer.2', 'layer.3')]
    """
    if value in ("all", ["all"]):
        return SelectionSpec()
    if isinstance(value, Mapping):
        return _split(value) if "critical_layer" in value else _table(value)
    return SelectionSpec(shared=_terms(value), rest="frozen")


def _split(table: Mapping[str, object]) -> SelectionSpec:
    _require_known(table, ("critical_layer", "embeddings"))
    layer = _number("critical_layer", table["critical_layer"], 0, "layers that are shared")
    return SelectionSpec(
        critical_layer=layer, embeddings=_state("embeddings", table.get("embeddings", "frozen"))
    )


def _table(table: Mapping[str, object]) -> SelectionSpec:
    if "embeddings" in table:
        raise ConfigError('embeddings goes with critical_layer; else say {frozen = "embeddings"}')
    _require_known(table, (*PARAMETER_STATES, "rest", "layers"))
    if not table:
        raise ConfigError(f"the table is empty: {_SAY}")
    shared, personal, frozen = (_terms(table[state]) if state in table else () for state in PARAMETER_STATES)
    rest = _state("rest", table.get("rest", "frozen" if shared else "shared"))
    layers = _number("layers", table["layers"], 1, "the model's layers") if "layers" in table else None
    return SelectionSpec(shared, personal, frozen, rest, layers=layers)


def _number(key: str, value: object, least: int, of: str) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(f"{key} = {value!r:.80}: give the number of {of}, from {least}")
    return value


def _require_known(table: Mapping[str, object], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            shown = str(key)[:80] if str(key).isprintable() else ascii(key)[:80]
            raise ConfigError(f"unknown key {shown}; {hint}")


def _state(key: str, value: object) -> ParameterState:
    for state in PARAMETER_STATES:
        if value == state:
            return state
    raise ConfigError(f'{key} = {value!r:.80}: say "shared", "personal" or "frozen"')


def _terms(value: object) -> tuple[SelectionTerm, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not texts or len(texts) > _MOST_TERMS:
        raise ConfigError(f"{value!r:.80} names no part of a model: {_SAY}")
    if sum("re:" in str(text) for text in texts) > _MOST_PATTERNS:
        raise ConfigError(f"more than {_MOST_PATTERNS} regular expressions: join some, re:(?:query|value)")
    return tuple(_term(text) for text in texts)


def _term(text: object) -> SelectionTerm:
    """Read one term, with or without a suffix that narrows it.

    >>> _term("layer.1-2:bias").groups
    ('layer.1', 'layer.2')
    """
    text = _require_line(text)
    if text == "bias" or text.startswith("re:"):
        return SelectionTerm(text, (), _pattern(text, text))
    part, colon, narrower = text.partition(":")
    return SelectionTerm(text, _groups(text, part), _pattern(text, narrower) if colon else None)


def _require_line(text: object) -> str:
    if not isinstance(text, str) or len(text) > _LONGEST_TERM or not text.isprintable():
        raise ConfigError(f"{text!r:.80}: a part of a model is a line of at most {_LONGEST_TERM} characters")
    return text


def _pattern(text: str, given: str) -> str:
    if given == "bias":
        return _BIAS
    if not given.startswith("re:") or given == "re:":
        raise ConfigError(f'"{text}": what stands after the colon is bias, or re: and a regular expression')
    pattern = given.removeprefix("re:")
    try:
        re.compile(pattern)  # at use it is one of RE2, whose time is bounded, and which takes long to import
    except (re.error, OverflowError) as error:
        raise ConfigError(f'"{text}" is no regular expression: {error}') from None
    if _NOT_OF_RE2.search(pattern):
        raise ConfigError(f'"{text}": patterns are those of RE2, without (?=...), (?!...), (?<...) and \\1')
    return pattern


def names_with(pattern: str, names: Sequence[str], where: str) -> list[str]:
    """Return the names that a regular expression of RE2 is found in.

    Args:
        where: The key and the term that hold it, for the message.

    Raises:
        ConfigError: It is no regular expression of RE2, or too large for it.

    >>> names_with("quer|val", ["0.query.weight", "0.key.weight"], "")
    ['0.query.weight']
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = pc.match_substring_regex(pa.array([*names, ""], pa.string()), pattern)
    except pa.ArrowInvalid as error:
        why = str(error).removeprefix("Invalid regular expression: ")
        raise ConfigError(f"{where} is no regular expression of RE2: {why}") from None
    return [name for name, is_found in zip(names, found.to_pylist()[:-1], strict=True) if is_found]


def _groups(text: str, part: str) -> tuple[str, ...]:
    if part in _PARTS:
        return (part,)
    found = _LAYERS.fullmatch(part)
    if found is None:
        near = difflib.get_close_matches(part, (*_PARTS, "bias"), n=1)
        hint = 'write a list, ["bias", "head"]; ' if "," in part and "layer." not in part else ""
        hint = f"did you mean {near[0]}? " if near and not hint else hint
        raise ConfigError(f'"{text}" is no part of a model: {hint}there are {_FORMS}')
    numbers: list[int] = []
    for span in found[2].split(","):
        first, _, last = span.partition("-")
        if last and int(last) < int(first):
            raise ConfigError(f'"{text}" runs backwards: say {found[1]}.{last}-{first}')
        numbers += range(int(first), int(last or first) + 1)
    return tuple(f"{found[1]}.{number}" for number in dict.fromkeys(numbers))


def layer_places(terms: Sequence[str]) -> dict[str, list[int]]:
    """Return the layers that terms name, by the side that they are on; for layers that are added to a model.

    Args:
        terms: ``"layer.0,6"``, or ``"encoder.layer.0,6"`` and ``"decoder.layer.0,6"``.

    Returns:
        Sorted numbers by ``"encoder"`` and ``"decoder"``, or by ``""`` for a model with one stack of layers.

    Raises:
        ConfigError: A term names no layer or is too long, or they name more than 64.

    >>> layer_places(["encoder.layer.0,6", "decoder.layer.0-1"])
    {'encoder': [0, 6], 'decoder': [0, 1]}
    """
    places: dict[str, set[int]] = {}
    for term in terms:
        if not _LAYERS.fullmatch(_require_line(term)):
            raise ConfigError(f'"{term}" is no layer: say layer.0,6 or encoder.layer.0,6')
        for group in _groups(term, term):
            side, _, number = group.rpartition("layer.")
            places.setdefault(side.rstrip("."), set()).add(int(number))
    if sum(map(len, places.values())) > _MOST_ADDED_LAYERS:
        raise ConfigError(f"more than {_MOST_ADDED_LAYERS} layers: name fewer")
    return {side: sorted(numbers) for side, numbers in places.items()}
