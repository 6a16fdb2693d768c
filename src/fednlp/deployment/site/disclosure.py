"""What a site tells the server: of its sizes, its losses and scores, and its errors, as far as its policy allows."""

from pathlib import Path

from fednlp.config import Experiment
from fednlp.deployment.session.setup import MOST_EXAMPLES, Ready
from fednlp.deployment.site.data import UNREADABLE, UnfitSiteData
from fednlp.deployment.site.policy import Allow
from fednlp.disk import home
from fednlp.errors import DataError, FednlpError, RunError
from fednlp.formatting.safe_text import bare_names


def tells_sums(allow: Allow, experiment: Experiment) -> bool:
    """Return whether a site adds to sums over the sites' tests: masked ones, or scores that the server may know.

    Args:
        experiment: Resolved.
    """
    masked = experiment.secure.protocol != "none"
    return experiment.evaluation.federated and (allow.tell_scores or (masked and allow.sum_scores))


def tells_own_scores(experiment: Experiment) -> bool:
    """Return whether an experiment asks each site for its scores on its own tests.

    Args:
        experiment: Resolved.
    """
    return experiment.evaluation.personal or experiment.client.finetune_steps > 0


def num_evaluations(allow: Allow, experiment: Experiment) -> int:
    """Return after how many rounds the server is told scores or sums over the site's tests.

    Args:
        experiment: Resolved.
    """
    own = tells_score(allow)
    if (own and experiment.evaluation.personal) or tells_sums(allow, experiment):
        return -(-experiment.num_rounds // experiment.evaluation.every)
    return int(own and experiment.client.finetune_steps > 0)


def require_sums_told(allow: Allow, experiment: Experiment) -> None:
    """Check that a site adds to sums over the sites' tests.

    Raises:
        RunError: It does not.
    """
    if not tells_sums(allow, experiment):
        raise RunError("the server asks for sums over tests, which this site's policy does not allow")


def tells_score(allow: Allow) -> bool:
    """Return whether the server may know the site's own scores: a score such as 7/12 tells of twelve test examples."""
    return allow.tell_scores and allow.tell_size


def redact_sizes(allow: Allow, train: int, test: int, *, sums: bool = False) -> Ready:
    """Return what the server is told of the numbers of training and test examples.

    Where it may not know them it is told of one each. Where it may not know scores (:func:`tells_score`), and the site
    adds to no sums over tests, it is told of no tests.

    Args:
        train: Number of training examples.
        test: Number of test examples.
        sums: Whether the site adds to sums over the sites' tests.

    Raises:
        RunError: They are more than a server takes.

    >>> redact_sizes(Allow(tell_size=False), 200, 50)
    Ready(train=1, test=0, gold=None, candidates=None, hidden=['train', 'test'])
    """
    if max(train, test) > MOST_EXAMPLES:
        raise RunError(
            f"this site has more than the {MOST_EXAMPLES:,} examples that a site can have: name a smaller file in "
            "data.path"
        )
    told = tells_score(allow) or sums
    tests = test if told else 0
    if not allow.tell_size:
        return Ready(train=1, test=min(1, tests), hidden=["train", "test"])
    return Ready(train=train, test=tests, hidden=None if told else ["test"])


def redact_error(error: Exception) -> str:
    """Return what the server is told of an error: nothing that the site's data may be part of, and no folder.

    >>> redact_error(DataError("patients.csv:7: the label 'Zweig' ..."))
    "its data cannot be read as examples of the experiment's task"
    >>> redact_error(ValueError("Zweig"))
    'an error of its own (ValueError)'
    >>> redact_error(RunError("/home/zweig/.local/share/fednlp/ab-nord/start holds no model"))
    'start holds no model'
    """
    if isinstance(error, UnfitSiteData):
        return error.for_server
    if isinstance(error, DataError):
        return UNREADABLE
    if not isinstance(error, FednlpError):
        return f"an error of its own ({type(error).__name__})"
    return bare_names(str(error), str(home()), str(home().resolve()), str(Path.home()))


def redact_labels(allow: Allow, ready: Ready, gold: int, candidates: int) -> Ready:
    """Return what the server is told of the numbers of gold labels and of texts that can be labelled.

    Where it may not know them it is told of one each, or of none.

    >>> redact_labels(Allow(tell_size=False), Ready(train=1, test=0), 12, 300)
    Ready(train=1, test=0, gold=1, candidates=1, hidden=None)
    """
    counts = {"gold": gold, "candidates": candidates}
    return ready.model_copy(update={name: redact_count(allow, count) for name, count in counts.items()})


def redact_count(allow: Allow, count: int) -> int:
    """Return what the server is told of a number of labels or texts: at most 1 where it may not know it."""
    return count if allow.tell_size else min(1, count)
