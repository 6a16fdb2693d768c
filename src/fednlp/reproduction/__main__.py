"""``python -m fednlp.reproduction FROM TO`` writes pages without their HTML into another folder, or into the same."""

import sys
from pathlib import Path

from fednlp.errors import FednlpError
from fednlp.reproduction.jobs import one_line
from fednlp.reproduction.write import copy_pages

if len(sys.argv) != 3:
    sys.exit("error: say python -m fednlp.reproduction FROM TO")
try:
    copy_pages(Path(sys.argv[1]), Path(sys.argv[2]))
except FednlpError as error:
    sys.exit(f"error: {one_line(error)}")
except OSError as error:
    sys.exit(
        f"error: {one_line(error)}: give the folder of the pages, such as OUT/page, and one that can be written"
    )
