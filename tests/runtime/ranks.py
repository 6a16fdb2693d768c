"""What each rank of a test's ``mpirun`` does: rank 0 runs experiments, the others follow.

mpirun -n 3 python ranks.py EXPERIMENTS.json FOLDER
"""

import json
import sys
from pathlib import Path

import fednlp
from fednlp.errors import FednlpError
from fednlp.runtime.launch import rank_of
from fednlp.runtime.mpi import follow, leading


def main(experiments: Path, folder: Path) -> None:
    """Run each experiment into a folder of its own; the message of one that fails becomes a file."""
    for name, settings in json.loads(experiments.read_text()).items():
        try:
            fednlp.run(settings, folder / name)
        except FednlpError as error:
            (folder / f"{name}.txt").write_text(str(error))


if rank_of()[0]:
    follow()
else:
    with leading():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
