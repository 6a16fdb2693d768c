"""``python -m fednlp`` is the command ``fednlp``."""

from fednlp.cli import main

main()
