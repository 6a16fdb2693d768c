"""``python -m fednlp.cli``."""

from fednlp.cli import main

main()
