"""The task formulations by name: where each lies, and which options of ``[task]`` it takes."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Named:
    """One formulation.

    Attributes:
        place: ``"module:class"``; imported when it is needed.
        options: Keys of ``[task]`` that it takes.
    """

    place: str
    options: tuple[str, ...] = ()


TASKS: Mapping[str, Named] = {
    "text-classification": Named(
        "fednlp.tasks.classification:TextClassification", ("label_smoothing_factor",)
    ),
    "text-regression": Named("fednlp.tasks.regression:TextRegression"),
    "token-classification": Named("fednlp.tasks.tagging:TokenClassification", ("scheme",)),
    "question-answering": Named(
        "fednlp.tasks.answering:QuestionAnswering", ("doc_stride", "max_answer_length")
    ),
    "sequence-to-sequence": Named(
        "fednlp.tasks.generation:SequenceToSequence",
        ("max_target_length", "num_beams", "source_prefix", "label_smoothing_factor", "scorer"),
    ),
    "text-generation": Named(
        "fednlp.tasks.text_generation:TextGeneration",
        ("template", "max_target_length", "num_beams", "label_smoothing_factor", "scorer"),
    ),
    "causal-lm": Named("fednlp.tasks.causal_lm:CausalLM"),
    "masked-lm": Named("fednlp.tasks.masked_lm:MaskedLM", ("mlm_probability",)),
    "prompt-classification": Named(
        "fednlp.tasks.prompts:PromptClassification", ("prompt", "pattern", "verbalizer")
    ),
}
