"""Which of the two tests tell something of their own: for a common model they are one and the same curve."""

import numpy as np

from fednlp.reports.groups import Groups
from fednlp.reports.read import Run, curve
from fednlp.reports.travel import own_models

_GLOBAL, _PERSONAL = "on the whole test set", "on the clients' own tests"
_SAME = 1e-9


def shown_parts(groups: Groups, metric: str) -> dict[str, str]:
    """Return the parts of an evaluation to show, ``"global"``, ``"personal"`` or both, each with where it is measured.

    Where every test example belongs to a client, a common model has the same score on both, and one is enough.
    So it is beside clients with models of their own, whose global score is one number, which tables have.
    """
    runs = [run for group in groups.values() for run in group]
    if not any(len(curve(run, f"personal.{metric}")[0]) for run in runs):
        return {"global": _GLOBAL}
    if all(_coincide(run, metric) for run in runs):
        return {"global": f"{_GLOBAL}, which is also the weighted mean over the clients' own tests"}
    if all(_coincide(run, metric) or _alone(run, metric) for run in runs):
        common = any(_coincide(run, metric) for run in runs)
        return {"personal": _PERSONAL + ", which for a common model is the whole test set" * common}
    return {"global": _GLOBAL, "personal": _PERSONAL}


def _coincide(run: Run, metric: str) -> bool:
    (rounds, whole), (others, own) = (curve(run, f"{part}.{metric}") for part in ("global", "personal"))
    return np.array_equal(rounds, others) and bool(
        np.allclose(whole, own, rtol=0, atol=_SAME, equal_nan=True)
    )


def _alone(run: Run, metric: str) -> bool:
    """Say whether the clients have models of their own, tried on their own tests."""
    own = run.reference == "local" or own_models(run)
    return own and len(curve(run, f"personal.{metric}")[0]) > 0
