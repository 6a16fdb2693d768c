"""What a site does for a server, a kind of request to a file: when, with what, and what the server gets of it."""

from fednlp.deployment.session.site_kinds import SITE_KINDS
from fednlp.registry import import_modules

__all__ = ["SITE_KINDS"]

import_modules(__name__)
