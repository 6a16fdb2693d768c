"""Partitions: an index of the examples of each client, and the divergence of the clients' distributions."""

from fednlp.partition.divergence import (
    divergence_from_prior,
    divergence_matrix,
    jensen_shannon,
    label_counts,
    summary,
)
from fednlp.partition.index import OneClient, Partition, from_owners
from fednlp.partition.make import PartitionSpec, make_partition
from fednlp.partition.methods import ALIASES, METHODS
from fednlp.partition.plot_data import Overview, overview, overview_of_counts
from fednlp.partition.plots import figures, image, save_plots, tables
from fednlp.partition.request import Assignment, Request

__all__ = [
    "ALIASES",
    "METHODS",
    "Assignment",
    "OneClient",
    "Overview",
    "Partition",
    "PartitionSpec",
    "Request",
    "divergence_from_prior",
    "divergence_matrix",
    "figures",
    "from_owners",
    "image",
    "jensen_shannon",
    "label_counts",
    "make_partition",
    "overview",
    "overview_of_counts",
    "save_plots",
    "summary",
    "tables",
]
