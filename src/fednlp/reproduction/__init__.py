"""The tables and figures of papers, made here at laptop size and put beside what was published.

manifest    a paper's tables and figures as data (``papers/*.toml``)
jobs        the runs and partitions that make them
budget      which of them fit into a budget of time
reproduce   makes them one after the other, and goes on where it was
agreement   claims, ranks, intervals
page        the page about them
"""

from fednlp.reproduction.budget import parse_budget
from fednlp.reproduction.manifest import Entry, Paper, find_papers
from fednlp.reproduction.reproduce import Request, reproduce

__all__ = ["Entry", "Paper", "Request", "find_papers", "parse_budget", "reproduce"]
