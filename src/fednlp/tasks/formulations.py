"""The task formulations by name: the class of each, and its options in ``[task]``."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Formulation:
    """One formulation.

    Attributes:
        place: ``"module:class"``; imported when it is needed.
        options: Its keys in ``[task]``.
    """

    place: str
    options: tuple[str, ...] = ()


TASKS: Mapping[str, Formulation] = {
    "text-classification": Formulation(
        "fednlp.tasks.text_classification:TextClassification", ("label_smoothing_factor",)
    ),
    "text-regression": Formulation("fednlp.tasks.text_regression:TextRegression"),
    "token-classification": Formulation("fednlp.tasks.token_classification:TokenClassification", ("scheme",)),
    "question-answering": Formulation(
        "fednlp.tasks.question_answering:QuestionAnswering", ("doc_stride", "max_answer_length")
    ),
    "sequence-to-sequence": Formulation(
        "fednlp.tasks.seq2seq:SequenceToSequence",
        ("max_target_length", "num_beams", "source_prefix", "label_smoothing_factor", "scorer"),
    ),
    "text-generation": Formulation(
        "fednlp.tasks.text_generation:TextGeneration",
        ("template", "max_target_length", "num_beams", "label_smoothing_factor", "scorer"),
    ),
    "causal-lm": Formulation("fednlp.tasks.causal_lm:CausalLM"),
    "masked-lm": Formulation("fednlp.tasks.masked_lm:MaskedLM", ("mlm_probability",)),
    "prompt-classification": Formulation(
        "fednlp.tasks.prompt_classification:PromptClassification", ("prompt", "pattern", "verbalizer")
    ),
}
