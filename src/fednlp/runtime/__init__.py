"""Where the work is done: in this process alone, or with worker processes beside it."""

from fednlp.runtime.pool import Pool, Side

__all__ = ["Pool", "Side"]
