"""Clients as a partition file has them."""

from typing import Annotated

from pydantic import Field

from fednlp.errors import PartitionError
from fednlp.option_types import File
from fednlp.partition.methods import partitioner
from fednlp.partition.request import Assignment, Request


@partitioner("given in a file")
def file(
    request: Request, file: Annotated[File, Field(examples=["part.npz"])], part: str | None = None
) -> Assignment:
    """Refuse to make what is read by the numbers of the examples (:mod:`fednlp.simulation.partition_file`).

    Args:
        request: The examples.
        file: The file.
        part: Name of the partition in that file, where there are several.

    Raises:
        PartitionError: Always.
    """
    raise PartitionError("a partition of method 'file' is read, not made: Partition.load reads one")
