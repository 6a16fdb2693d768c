"""What a site keeps between rounds may be lost, and the run goes on: whether it begins without it, or cannot."""

from fednlp.deployment.session.setup import Again, Ready
from fednlp.errors import RunError
from fednlp.training.worker import ClientWorker

STATE_IS_LOST = "what this site keeps between rounds is lost: it begins without it, as in its first round"


def require_same_data(again: Again | None, now: Ready) -> None:
    """Check that a site which is set up again has as many examples as it had.

    Args:
        again: What it said before; None for a site that is set up for the first time.
        now: What it says now.

    Raises:
        RunError: It has others, and the server would weigh its updates wrongly.
    """
    if again is None:
        return
    for what, before, there in (("training", again.train, now.train), ("test", again.test, now.test)):
        if before not in (None, there):
            raise RunError(
                f"this site said that it has {before:,} {what} examples when the run began, and has {there:,} now: "
                "join with the same data and the same site's file as then"
            )


def has_lost(worker: ClientWorker, client: int, counted: int) -> bool:
    """Return whether a site has lost what its method keeps between rounds.

    A method whose server adds up what clients keep, as SCAFFOLD does with their control variates, cannot go on with a
    client that begins at zero again: the server's sum would never lose the share that it had before.

    Args:
        worker: Of the site.
        client: Its number.
        counted: The last round in which its update counted, by the server; 0 for none.

    Raises:
        RunError: It has, and the method cannot begin anew.
    """
    store = worker.trainer.store
    if store is None or not counted or store.has(client, counted):
        return False
    if worker.algorithm.receives:
        raise RunError(
            f"what {worker.algorithm.name} keeps at this site is lost, and the server's sum over all sites still has "
            "it: put this site's folder back from a backup, or have the site removed"
        )
    return True
