"""The tables and figures of papers, made here at laptop size and put beside what was published.

manifest    a paper's tables and figures as data (``papers/*.toml``)
catalogue   the papers that come with fednlp, and manifests of the user's own
jobs        the runs and partitions that make them
naming      their names, the same on every machine
known       which of them others have done
budget      which of them fit into a budget of time
making      does them one after the other
reproduce   the whole of it, and goes on where it was
outcomes    what finished runs and partitions left
measures    the figures of a table's cells
agreement   claims, ranks, intervals
curves      the points of learning curves, and their charts
parts       the shapes of figures, claims, curves, pictures, runs and data
results     the shape of what was found: ``results.json``
finding     finds it
joining     joins it with what others found
means       tables that are means over others
pictured    which pictures joint pages show
elsewhere   reads what others found
changed     leaves out what they found with other settings
page        the pages, made of these data alone
claims      what they say of claims
pictures    the figures of the pages
write       writes pages, figures and data
"""

from fednlp.reproduction.budget import parse_budget
from fednlp.reproduction.catalogue import find_papers
from fednlp.reproduction.manifest import Entry, Paper
from fednlp.reproduction.reproduce import Request, reproduce

__all__ = ["Entry", "Paper", "Request", "find_papers", "parse_budget", "reproduce"]
