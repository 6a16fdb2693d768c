"""The data, the tokenizer, the task and the features of an experiment."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from fednlp.clock import DATA, timed
from fednlp.config import Experiment
from fednlp.data import TextData, load_data
from fednlp.data.features import Features, open_features, row_batches, write_features
from fednlp.data.store import MissingLabel
from fednlp.data.textdata import Split
from fednlp.disk import writing
from fednlp.errors import ConfigError, DataError
from fednlp.formatting.units import plural
from fednlp.formulations import OWN_METRIC, TASKS, formulation_of
from fednlp.hubs.cache import cache_dir
from fednlp.models.from_scratch import VOCABULARY_SIZE, from_scratch_folder
from fednlp.models.loading import has_weights
from fednlp.models.peft_methods import virtual_tokens
from fednlp.models.pretrained import load_tokenizer, longest_text, prompt_class
from fednlp.models.registry import FROM_SCRATCH_NAMES
from fednlp.models.resolve import resolve_model
from fednlp.partition import Partition
from fednlp.plugins import is_own
from fednlp.simulation.assignment import tested_on_parts, with_own_tests
from fednlp.tasks import task_class
from fednlp.tasks.base import Task
from fednlp.tasks.fields import option_misfit
from fednlp.tasks.moses import column_preparation, library_version

Log = Callable[[str], None]
Preparation = Mapping[str, Callable[[Iterable[str]], list[str]]]
_ROWS_AT_ONCE = 4096
_ALL_LABELS = (
    "with [fewshot] a simulation needs the true labels of all texts, since it hides all but fewshot.gold of them "
    "itself, and scores with them; only the sites of a federation take texts without labels"
)


@dataclass(frozen=True)
class RunComponents:
    """Data, tokenizer, task and features of a run.

    Attributes:
        source: Folder or hub name of the model.
        task_spec: Name of the task, or ``"module:Class"``.
        train: Features of the training table, by row number.
        test: Features of the test table; the training table's where the test set was held out of it.
        longest: Maximum number of tokens of a row.
    """

    data: TextData
    source: str
    tokenizer: Any
    task_spec: str
    task: Task
    train: Features
    test: Features
    longest: int


@timed(DATA)
def build_components(experiment: Experiment, log: Log, data: TextData | None = None) -> RunComponents:
    """Load the data, the tokenizer and the features of an experiment.

    Args:
        experiment: Resolved.
        log: Called with a message before each slow step.
        data: The examples, if they are not those that the experiment names.

    Raises:
        ConfigError: An option of ``[task]`` is not supported by the task, or does not fit the model.
        DataError: The data cannot be loaded.
        ModelError: The model or its tokenizer cannot be loaded.
        FetchError: A download failed.
    """
    data = data or open_data(experiment, log)
    for note in data.notes:
        log(note)
    if data.dropped:
        log(f"{plural(data.dropped, 'row')} of {data.name} left out: {data.dropped_why}")
    source = model_source(experiment, data, log)
    tokenizer = load_tokenizer(source)
    task_spec, options = experiment.task.configured or data.task, experiment.task.given()
    if is_own(str(options.get("metric"))):
        task_spec += f"{OWN_METRIC}{options.pop('metric')}"
    task = make_task(task_spec, data, tokenizer, options)
    readable = longest_text(source, tokenizer, experiment.model.config) - virtual_tokens(
        experiment.model.peft
    )
    written = getattr(task, "max_target_length", 0)
    if written > readable:
        raise ConfigError(
            f"task.max_target_length = {written} is more than the {readable} positions of "
            f"{experiment.model.name_or_path}: lower it"
        )
    limit = min(experiment.model.max_length, readable)
    train = features_of(data, "train", task_spec, task, tokenizer, limit, log)
    test = train if data.held_out else features_of(data, "test", task_spec, task, tokenizer, limit, log)
    return RunComponents(data, source, tokenizer, task_spec, task, train, test, limit)


def as_tested(experiment: Experiment, components: RunComponents, partition: Partition) -> RunComponents:
    """Return the components with the tests that are configured: the test set, or a part of the training examples.

    Args:
        components: Data, task and features of the run.
        partition: With the validation part, if there is one, as the clients' tests.
    """
    if experiment.evaluation.validation_fraction is None:
        return components
    return replace(components, data=tested_on_parts(components.data, partition), test=components.train)


def model_source(experiment: Experiment, data: TextData, log: Log) -> str:
    """Return the model's folder or hub name.

    The vocabulary of a model that is built from scratch is made of the training texts.

    Args:
        experiment: Resolved.
        log: Called with a message before each slow step, and for a model without weights.

    Raises:
        ConfigError: A vocabulary setting does not fit the model or the data.
        ModelError: There is no such model, or no such setting of it.
    """
    model = experiment.model
    if model.name_or_path in FROM_SCRATCH_NAMES:
        if model.added_layers is not None:
            raise ConfigError(
                f"model.added_layers puts layers into a trained model, and {model.name_or_path} is trained from "
                "nothing: set the number of layers in [model.config]"
            )
        size = model.vocabulary_size or VOCABULARY_SIZE
        prepare, prepared = _preparation(experiment)
        identity = [data.fingerprint, sorted(data.columns), *prepared]
        texts, targets = partial(training_texts, data, prepare=prepare), None
        if model.vocabulary == "separate":
            if data.schema.kind != "text":
                raise ConfigError(
                    f'model.vocabulary = "separate" is for sources and targets; {data.task} has no written target: '
                    "leave it out"
                )
            texts = partial(training_texts, data, data.schema.inputs, prepare)
            targets = partial(training_texts, data, ["target"], prepare)
        return from_scratch_folder(model.name_or_path, model.config, texts, identity, size, log, targets)
    if model.vocabulary_size is not None or model.vocabulary != "shared":
        key = "vocabulary_size" if model.vocabulary_size is not None else "vocabulary"
        raise ConfigError(
            f"model.{key} is for models that are built ({', '.join(FROM_SCRATCH_NAMES)}); "
            f"{model.name_or_path} brings its vocabulary: leave it out"
        )
    source = trained_source(experiment)
    if not has_weights(source):
        log(f"{model.name_or_path} has no weights: training begins from random ones, drawn by the seed")
    return source


def trained_source(experiment: Experiment) -> str:
    """Return the folder or hub name of a model that is not made from scratch, with the layers added to it.

    Raises:
        ModelError: There is no such model, or the layers cannot be put into it.
    """
    model = experiment.model
    source, added = resolve_model(model.name_or_path), model.added_layers
    if added is None:
        return source
    from fednlp.models.added_layers import added_layers_folder

    return added_layers_folder(source, added.at, added.initial, experiment.seed)


def _preparation(experiment: Experiment) -> tuple[Preparation, list[str]]:
    """Return how texts of columns are prepared before they are tokenised, and what tells that from other ways."""
    options = experiment.task.given()
    if "moses" not in options:
        return {}, []
    step, languages = options["moses"], options.get("languages", "")
    return column_preparation(step, languages), [step, languages, library_version(step)]


def training_texts(
    data: TextData, only: Sequence[str] | None = None, prepare: Preparation = MappingProxyType({})
) -> Iterator[str]:
    """Yield the texts of the training examples, inputs and targets, in bounded memory.

    Args:
        prepare: What prepares the texts of a column before they are tokenised, by its canonical name.
    """
    schema = data.schema
    names = only or [*schema.inputs, *(["target"] if schema.kind == "text" else [])]
    table = data.train.select([data.columns[name] for name in names])
    for start in range(0, len(data.train_numbers), _ROWS_AT_ONCE):
        rows = table.take(data.train_numbers[start : start + _ROWS_AT_ONCE])
        for place, name in enumerate(names):
            texts: Iterable[str] = rows.column(place).to_pylist()
            if schema.kind == "tags":
                texts = (" ".join(json.loads(text)) for text in texts)
            yield from prepare.get(name, iter)(texts)


def make_task(task_spec: str, data: TextData, tokenizer: Any, options: dict[str, Any]) -> Task:
    """Build the task for a data set.

    Args:
        task_spec: Name of the task, or ``"module:Class"``.
        data: The data set; its label names become the task's.
        options: ``[task]`` without the name.

    Raises:
        ConfigError: The task does not support an option, or the value of a user's own is of another type.
        DataError: Classification has fewer than two labels.
    """
    known = TASKS.get(formulation_of(task_spec))
    strange = [key for key in options if known is not None and key not in known.options]
    if known is not None and strange:
        takes = f"it takes {', '.join(known.options)}" if known.options else "it takes no options"
        raise ConfigError(f"task.{strange[0]} is not supported by {task_spec}: leave it out ({takes})")
    if data.schema.kind == "class" and len(data.label_names) < 2:
        raise DataError(
            f"{data.name} has {len(data.label_names)} label in column {data.columns['label']}: "
            "classification needs two or more"
        )
    if formulation_of(task_spec) == "prompt-classification":
        options = options | {"model_class": prompt_class(tokenizer.name_or_path)}
    if "prompt" in options:
        from fednlp.prompts.prompt_sets import with_prompt

        options = with_prompt(options, data.label_names, tokenizer)
    cls = task_class(task_spec)
    wrong = option_misfit(cls, options)
    if wrong is not None:
        raise ConfigError(f"[task.options] do not fit {task_spec}: {wrong}")
    try:
        return cls.build(data.label_names, tokenizer, **options)
    except TypeError as error:  # the options of a user's own task are not known here
        raise ConfigError(f"[task.options] do not fit {task_spec}: {error}") from None


def open_data(experiment: Experiment, log: Log = lambda text: None) -> TextData:
    """Load the data set that an experiment names.

    Examples held out for testing do not depend on the experiment's seed: runs of several seeds are evaluated on
    the same examples.

    Args:
        experiment: Resolved, or at least settled.
        log: Called with a message before each slow step.

    Raises:
        DataError: The data cannot be loaded.
    """
    task = experiment.task.configured
    known = task if task in TASKS else None
    named = experiment.data
    try:
        data = load_data(
            named.name,
            **named.arguments(),
            task=known,
            train_size=named.train_size,
            test_size=named.test_size,
            labels_map=named.labels_map,
            field=experiment.partition.given().get("field"),
        )
    except MissingLabel as error:
        if not experiment.partly_labelled:
            raise
        raise DataError(f"{error.found}: {_ALL_LABELS}") from None
    return with_own_tests(experiment, data, log) if experiment.partition.test_sets == "own-split" else data


def features_of(
    data: TextData, split: Split, task_spec: str, task: Task, tokenizer: Any, limit: int, log: Log
) -> Features:
    """Open the features of a split; they are made once for the same texts, task, tokenizer and length, and cached.

    Args:
        split: ``"train"`` or ``"test"``.
        task_spec: Name of the task, or ``"module:Class"``.
        task: The task, which encodes the rows.
        limit: Maximum number of tokens of a row.
        log: Called with a message before texts are tokenised.

    Raises:
        RunError: The disk is full, or the cache cannot be written.
    """
    columns, vocabulary = data.columns_in(split), _vocabulary(tokenizer)
    key = json.dumps([data.fingerprint, split, task_spec, asdict(task), vocabulary, limit, columns])  # type: ignore[call-overload]
    folder = cache_dir() / "features" / hashlib.sha256(key.encode()).hexdigest()[:32]
    features = open_features(folder)
    if features is not None:
        return features
    table = data.train if split == "train" else data.test
    which = "training and test" if data.held_out else {"train": "training", "test": "test"}[split]
    if len(data.train_numbers) or len(data.test_numbers):  # the server of a federation may have none
        log(
            f"tokenising {plural(table.num_rows, f'{which} example')} of {data.name} (once; kept in {folder})"
        )
    batches = row_batches(table, columns)
    with writing(folder.parent):
        return write_features(folder, (task.encode(rows, tokenizer, limit) for rows in batches))


def _vocabulary(tokenizer: Any) -> str:
    """Return a digest of how a tokenizer splits texts, without padding and truncation, which every call sets."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    return hashlib.sha256(json.dumps(state | {"padding": None, "truncation": None}).encode()).hexdigest()
