"""What a row of each task holds: canonical column names, whatever a file calls them.

Every value is a string. Where a column holds more than one thing it holds JSON:

=============  ============================================================================
``words``      ``["EU", "rejects", "..."]``
``tags``       ``["B-ORG", "O", "..."]``, one a word
``answers``    ``[{"text": "in 1912", "start": 57}]``, character positions in the context
``references`` ``["one summary", "another"]``, for scoring; ``target`` is what is trained on
``score``      a number
=============  ============================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["class", "score", "tags", "answers", "text", "none"]


@dataclass(frozen=True)
class Schema:
    """The columns of a task.

    Attributes:
        inputs: Columns that every row has; the first is the text that clusters are made of.
        target: What is to be predicted; None where the text itself is.
        kind: What the target holds.
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


SCHEMAS: Mapping[str, Schema] = {
    "text-classification": Schema(("text",), "label", "class", ("text_pair",)),
    "text-regression": Schema(("text",), "score", "score", ("text_pair",)),
    "token-classification": Schema(("words",), "tags", "tags"),
    "question-answering": Schema(("context", "question"), "answers", "answers", ("id",)),
    "sequence-to-sequence": Schema(("source",), "target", "text", ("references",)),
    "text-generation": Schema(("source",), "target", "text", ("references",)),
    "causal-lm": Schema(("text",), None, "none"),
    "masked-lm": Schema(("text",), None, "none"),
    "prompt-classification": Schema(("text",), "label", "class", ("text_pair",)),
}
"""The schema of each task, by its name."""
