"""Importing this module imports what most models share: for workers, while the data are prepared."""

from fednlp.startup.quick_import import import_modelling

import_modelling()
