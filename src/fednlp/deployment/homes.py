"""Where a machine keeps the federations that it has joined."""

from pathlib import Path

from fednlp.deployment.access import access_of, has_joined
from fednlp.disk import home
from fednlp.errors import RunError


def joined_folder(name: str, root: Path | None = None) -> Path:
    """Return the folder of a federation that this machine has joined.

    Args:
        name: That an earlier join has printed.
        root: Of all federations; :func:`fednlp.disk.home` if left out.

    Raises:
        IdentityError: An organisation's file of certificates cannot be read or does not fit.
        RunError: There is no such federation, or joining it was stopped on the way.
    """
    root = home() if root is None else root
    folder = root / name
    if not has_joined(folder):
        known = sorted(path.name for path in root.glob("*") if has_joined(path))
        raise RunError(
            f"this machine has not joined a federation called {name} "
            f"({'it has joined ' + ', '.join(known) if known else 'nor any other'}): fednlp join and the token"
        )
    if access_of(folder) is None:
        raise RunError(f"{name} was stopped before it had joined: fednlp join and the token again")
    return folder
