"""What a worker does on request, a file for each subject: its messages, its handler, and how much work it is."""

from fednlp.registry import import_modules
from fednlp.training.handling import HANDLERS

__all__ = ["HANDLERS"]

import_modules(__name__)
