"""The HDF5 files of the original FedNLP, ``*_data.h5`` and ``*_partition.h5``, read and written."""

from fednlp.data.fednlp_h5.partitions import (
    PartitionArrays,
    method_name,
    partition_methods,
    read_partition,
    write_partition,
)
from fednlp.data.fednlp_h5.reader import COLUMNS, TASKS, DataFile, read_data
from fednlp.data.fednlp_h5.writer import export_data, write_data

__all__ = [
    "COLUMNS",
    "TASKS",
    "DataFile",
    "PartitionArrays",
    "export_data",
    "method_name",
    "partition_methods",
    "read_data",
    "read_partition",
    "write_data",
    "write_partition",
]
