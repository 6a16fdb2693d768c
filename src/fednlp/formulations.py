"""The task formulations by name: the class of each, the columns that its data have, and its options in ``[task]``.

This table is all that the library knows of a task before its class is loaded, and with it torch.

The columns have canonical names, whatever a file calls them. Every value is a string. Where a column holds more than
one thing it holds JSON:

=============  ============================================================================
``words``      ``["EU", "rejects", "..."]``
``tags``       ``["B-ORG", "O", "..."]``, one a word
``answers``    ``[{"text": "in 1912", "start": 57}]``, character positions in the context
``references`` ``["one summary", "another"]``, for scoring; ``target`` is what is trained on
``messages``   ``[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]``; of a
               pair those before the two answers
``choices``    ``["Hello", "Goodbye"]``, one of which is the last message
``score``      a number
=============  ============================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, ValidatorFunctionWrapHandler, WrapValidator

from fednlp.option_types import Count, Decay, Fraction, PositiveFloat, PositiveInt
from fednlp.plugins import is_own

Kind = Literal["class", "score", "tags", "answers", "text", "messages", "pairs", "none"]


@dataclass(frozen=True)
class Schema:
    """The columns of a task.

    Attributes:
        inputs: Columns that every row has; the first is the text that clusters are made of.
        target: What is to be predicted; None where the text itself is.
        kind: What the target holds. The target of a class is the column ``label``, of a score ``score`` and of tags
            ``tags``.
        optional: Columns that are read where there are any.
    """

    inputs: tuple[str, ...]
    target: str | None
    kind: Kind
    optional: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that must be there."""
        return self.inputs if self.target is None else (*self.inputs, self.target)


@dataclass(frozen=True)
class Formulation:
    """One formulation.

    Attributes:
        place: ``"module:class"``; imported when it is needed.
        schema: The columns of its data.
        purpose: What a model is fine-tuned to do, for model cards; ``{labels}`` is the number of labels.
        pipeline: What the Hugging Face Hub calls the task.
        head: The auto class of its models, behind ``AutoModelFor``.
        options: The type of each option. An option's default is that of the class; an option that several tasks have
            is of the same type in all.
    """

    place: str
    schema: Schema
    purpose: str
    pipeline: str
    head: str
    options: Mapping[str, Any] = field(default_factory=dict)


_LABELLED = Schema(("text",), "label", "class", ("text_pair",))
_WRITTEN = Schema(("source",), "target", "text", ("references",))
_TEXTS = Schema(("text",), None, "none")

OWN_METRIC = "+"
"""Between a task and the function that scores it: ``"text-classification+mine:exact"``."""


def formulation_of(task: str) -> str:
    """Return a task without the function of the user's own that scores it.

    >>> formulation_of("question-answering+mine:exact"), formulation_of("mine:Task")
    ('question-answering', 'mine:Task')
    """
    return task.partition(OWN_METRIC)[0]


def _known_or_own(value: Any, known: ValidatorFunctionWrapHandler) -> Any:
    return value if isinstance(value, str) and is_own(value) else known(value)


_METRIC: Any = Annotated[
    Literal[
        "accuracy",
        "macro_f1",
        "f1",
        "mcc",
        "log_likelihood",
        "choice_accuracy",
        "choice_accuracy_norm",
        "letter_accuracy",
        "generated_accuracy",
        "rouge_l",
    ],
    WrapValidator(_known_or_own),
    PlainSerializer(lambda value: value),
]
"""A metric that is known, or a function of the user's own."""

TASKS: Mapping[str, Formulation] = {
    "text-classification": Formulation(
        "fednlp.tasks.text_classification:TextClassification",
        _LABELLED,
        purpose="to tell {labels} labels apart",
        pipeline="text-classification",
        head="SequenceClassification",
        options={
            "label_smoothing_factor": Decay,
            "metric": _METRIC,
            "positive_label": str,
        },
    ),
    "text-regression": Formulation(
        "fednlp.tasks.text_regression:TextRegression",
        Schema(("text",), "score", "score", ("text_pair",)),
        purpose="to give a score",
        pipeline="text-classification",
        head="SequenceClassification",
    ),
    "token-classification": Formulation(
        "fednlp.tasks.token_classification:TokenClassification",
        Schema(("words",), "tags", "tags"),
        purpose="to give each word one of {labels} tags",
        pipeline="token-classification",
        head="TokenClassification",
        options={"scheme": Literal["default", "strict"], "metric": _METRIC},
    ),
    "question-answering": Formulation(
        "fednlp.tasks.question_answering:QuestionAnswering",
        Schema(("context", "question"), "answers", "answers", ("id",)),
        purpose="to find the answers to questions in a text",
        pipeline="question-answering",
        head="QuestionAnswering",
        options={"doc_stride": Count, "max_answer_length": PositiveInt},
    ),
    "sequence-to-sequence": Formulation(
        "fednlp.tasks.seq2seq:SequenceToSequence",
        _WRITTEN,
        purpose="to make a text from a text",
        pipeline="text-generation",
        head="Seq2SeqLM",
        options={
            "max_target_length": PositiveInt,
            "num_beams": PositiveInt,
            "source_prefix": str,
            "moses": Literal["none", "normalise", "tokenise"],
            "languages": str,
            "label_smoothing_factor": Decay,
            "scorer": Literal["rouge", "bleu"],
        },
    ),
    "text-generation": Formulation(
        "fednlp.tasks.text_generation:TextGeneration",
        _WRITTEN,
        purpose="to make a text from a text",
        pipeline="text-generation",
        head="CausalLM",
        options={
            "template": str,
            "max_target_length": PositiveInt,
            "num_beams": PositiveInt,
            "moses": Literal["none", "normalise", "tokenise"],
            "languages": str,
            "label_smoothing_factor": Decay,
            "scorer": Literal["rouge", "bleu"],
        },
    ),
    "chat": Formulation(
        "fednlp.tasks.chat:Chat",
        Schema(("messages",), None, "messages", ("choices",)),
        purpose="to answer in conversations",
        pipeline="text-generation",
        head="CausalLM",
        options={
            "chat_template": str,
            "max_new_tokens": PositiveInt,
            "loss_mean": Literal["tokens", "examples"],
            "choices": list[Literal["text", "letter", "generation"]],
            "scorer": Literal["rouge", "bleu"],
            "metric": _METRIC,
        },
    ),
    "preference": Formulation(
        "fednlp.tasks.preference:Preference",
        Schema(("messages", "chosen", "rejected"), None, "pairs"),
        purpose="to give answers that are preferred in conversations",
        pipeline="text-generation",
        head="CausalLM",
        options={
            "chat_template": str,
            "max_new_tokens": PositiveInt,
            "beta": PositiveFloat,
            "label_smoothing": Annotated[float, Field(ge=0, lt=0.5)],
        },
    ),
    "causal-lm": Formulation(
        "fednlp.tasks.causal_lm:CausalLM",
        _TEXTS,
        purpose="to go on with a text",
        pipeline="text-generation",
        head="CausalLM",
    ),
    "masked-lm": Formulation(
        "fednlp.tasks.masked_lm:MaskedLM",
        _TEXTS,
        purpose="to fill in masked words",
        pipeline="fill-mask",
        head="MaskedLM",
        options={"mlm_probability": Fraction},
    ),
    "prompt-classification": Formulation(
        "fednlp.tasks.prompt_classification:PromptClassification",
        _LABELLED,
        purpose="to tell {labels} labels apart by a word in a cloze",
        pipeline="fill-mask",
        head="MaskedLM",
        options={"prompt": str, "pattern": str, "verbalizer": dict[str, str]},
    ),
}


def option_types() -> dict[str, Any]:
    """Return the type of each option of all tasks.

    >>> option_types()["source_prefix"]
    <class 'str'>
    """
    return {option: kind for one in TASKS.values() for option, kind in one.options.items()}
