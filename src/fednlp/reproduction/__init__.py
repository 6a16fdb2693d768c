"""The tables and figures of papers, made here at laptop size and put beside what was published.

manifest     a paper's tables and figures as data (``papers/*.toml``)
catalogue    the papers that come with fednlp, and manifests of the user's own
naming       the names of runs and partitions, the same on every machine
needs        folders of data and time that a table needs
jobs         the runs and partitions that make a table
preparation  which of them are done, known of others, or left
making       does what fits into a budget of time, one after the other or several at once
folder       the record of the folder that they lie in
reproduce    the whole of it, and goes on where it was
outcomes     what finished runs and partitions left
measures     the figures of a table's cells
agreement    claims, ranks, intervals
curves       the points of learning curves, and their charts
results      the shape of what was found: ``results.json``
finding      finds it
joining      joins it with what others found
page         the pages, made of these data alone
claims       what they say of claims
pictures     the figures of the pages
write        writes pages, figures and data
"""

from fednlp.reproduction.catalogue import find_papers
from fednlp.reproduction.making import parse_budget
from fednlp.reproduction.manifest import Entry, Paper
from fednlp.reproduction.reproduce import Request, reproduce

__all__ = ["Entry", "Paper", "Request", "find_papers", "parse_budget", "reproduce"]
