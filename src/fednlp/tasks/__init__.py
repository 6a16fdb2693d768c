"""Task formulations: features, loss, predictions, metrics. A task knows nothing of federation."""

from fednlp.tasks.base import Batch, Outcome, Task
from fednlp.tasks.classification import TextClassification

__all__ = ["Batch", "Outcome", "Task", "TextClassification"]
