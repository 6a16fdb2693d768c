"""A site in a federation: it takes calls as they arrive, does the work, and has the answers sent."""

import math
import threading
import time
from datetime import datetime
from pathlib import Path

from fednlp.checked_json.stored import Stored, read_stored
from fednlp.deployment.session.call_ids import in_words
from fednlp.deployment.session.client_session import ClientSession, ReadyCall
from fednlp.deployment.session.messages import Call, software
from fednlp.deployment.session.objects import ObjectCache, Written
from fednlp.deployment.session.replies import Outbox
from fednlp.deployment.session.setup import is_setup, read_setup
from fednlp.deployment.site.agreement import ModelDeclined
from fednlp.deployment.site.disclosure import redact_error
from fednlp.deployment.site.final_model import DECLINED, is_final_model
from fednlp.deployment.site.label_telling import asks_labels, examine_labels
from fednlp.deployment.site.site import Site
from fednlp.disk import write_private
from fednlp.errors import DataError, FednlpError, MissingDependency, RunError
from fednlp.formatting.units import human_bytes, human_seconds
from fednlp.plugins import raised
from fednlp.simulation.components import Log

_LOOK = 0.2
_PATIENCE = 10.0
"""Seconds that a refusal gets to reach the server; it is offered again by the next start."""
_LAST_PATIENCE = 300.0
"""Seconds that a server which was stopped gets to come back and hear that this site has its model.

It waits for a site of which it has not heard that, and one that has ended does not come.
"""
_LONELY = 30.0
"""Seconds without a connection until a site says what it waits for, and how to stop it."""
_BOUND, _OVER, _LONGEST = "run.json", "over", 1024
"""The file that names the run of which a site has all that it is due, and the bytes of a name at most."""
_GRACE = 0.5
"""Seconds that the server has to store an update before the site puts it on its own disk: most are there by then."""


class Participant:
    """One site's part in one federation.

    The session runs in the driver's thread, and :meth:`work` in another. Between them wait the calls that the server
    still wants, and no others: it may ask and withdraw without end.

    Args:
        folder: Of this site and federation.
        invitation: Name of the invitation that it enrolled with last; None without a token, for any run.
        log: Called with what happens.
    """

    def __init__(self, folder: Path, site: Site, invitation: str | None, log: Log) -> None:
        self.site, self.log, self._over = site, log, folder / _OVER
        self._bound = BoundRun(folder, invitation)
        self._objects = ObjectCache(folder / "objects")
        run = self._bound.read()
        self._outbox = Outbox(folder / "outbox")
        self.session = ClientSession(
            self._outbox,
            self._objects,
            run=run or site.run,
            software=software(),
            on_ready=self._take_up,
            on_withdrawn=self._put_down,
            on_state=log,
            bound=run is not None,
            set_up=lambda: site.run is not None,
            admits=self._admits,
            grace=_GRACE,
        )
        self._first: tuple[int, float] | None = None
        self._calls: dict[str, ReadyCall] = {}  # in the order of arrival
        self._news = threading.Condition()
        self._withdrawn: set[str] = set()  # of the call at work
        self._ended = False

    def _admits(self, call: Call) -> bool:
        """Return whether the objects of a call may be fetched: what a site is asked before it is set up waits.

        Raises:
            FednlpError: The call is refused, or it sets this site up for another run than that of the connection, or
                its objects have no room on the disk.
        """
        if is_setup(call.id) and call.request.get("run") != self.session.run:
            raise RunError("the server sets this site up for another run than that of the connection")
        admitted = self.site.admits(call.id.rpartition(".")[2], call.request, call.objects)
        if is_setup(call.id):
            self._objects.require_room(call.objects.values())
        return admitted

    def _take_up(self, call: ReadyCall) -> None:
        with self._news:
            self._withdrawn.discard(call.id)  # it may be asked again after it was withdrawn
            self._calls[call.id] = call
            self._news.notify()

    def _put_down(self, call_id: str) -> None:
        with self._news:
            if self._calls.pop(call_id, None) is None:
                self._withdrawn.add(call_id)

    def work(self) -> str:
        """Answer calls until the federation ends, and return why it ended.

        Raises:
            FednlpError: This site does not take part; the server has been told so.
        """
        while (call := self.next_call()) is not None:
            if not _begins(call.id) and not is_final_model(call.id):
                self._wait_for_hours(call.id)
            if call.id not in self._withdrawn and not self.session.finished:
                self._answer(call)
        if self.session.over and not self.site.lacks_model:
            self._note_end()
        if self.session.over or self._ended:
            self.site.end()
        return self.session.reason or ""

    def next_call(self) -> ReadyCall | None:
        """Return the next call without answering it; None where the session ends before there is one."""
        patience, heard, told = self._patience(), time.monotonic(), False
        while not self.session.finished:
            if self.session.connected:
                heard, told = time.monotonic(), False
            elif (alone := time.monotonic() - heard) >= patience:
                self.session.leave("this site has all that it is due, and no server answers")
            elif alone >= _LONELY and not told:
                told = True
                self._say_alone(patience)
            with self._news:
                if not self._calls:
                    self._news.wait(_LOOK)
                if self._calls:
                    self._withdrawn.clear()
                    return self._calls.pop(next(iter(self._calls)))
        return None

    def _patience(self) -> float:
        """Return the seconds for which this site goes on without a server: for ever until it has all it is due."""
        run = self.session.run
        if run is None or not self._over.is_file() or self._over.read_bytes()[:_LONGEST] != run.encode():
            return math.inf
        owes = any(is_final_model(call_id) for call_id in self._outbox.of(run))
        return _LAST_PATIENCE if owes else _PATIENCE

    def _say_alone(self, patience: float) -> None:
        """Say what a site waits for whose server does not answer, for how long, and how to stop it."""
        again = f"Ctrl-C stops it, and fednlp join {self.site.folder.name} goes on later"
        if patience < math.inf:
            again = f"for {human_seconds(patience)} at most; Ctrl-C stops it, and nothing here is lost"
            self.log(f"this site has all that it is due, and waits until the server has heard so, {again}")
        else:
            self.log(f"the federation is not over for this site: it tries until the server is back; {again}")

    def _note_end(self) -> None:
        """Take note that this site has all that it is due of its run."""
        write_private(self._over, str(self.session.run).encode(), "then run fednlp join again")

    def examine(self, federation: str) -> list[str]:
        """Return the lines that tell what the next call would have this site do; the server is told nothing.

        Args:
            federation: The server's address, for people.

        Raises:
            FednlpError: The call cannot be read.
        """
        call = self.next_call()
        if call is None:
            return []
        try:
            if call.refusal is not None and not is_setup(call.id):
                raise call.refusal
            if asks_labels(call.id):
                return examine_labels(self.site.policy, self.site.name, call.request, federation)
            if not is_setup(call.id):
                where = self.site.folder / "site.toml"
                raise RunError(f"this site takes part already: stop it, and look at {where}")
            lines, refusals = self.site.examine(
                read_setup(call.request), call.objects, federation, call.refusal
            )
        except Exception as error:
            self._forget(call.id, error)
            raise
        if refusals:
            self._forget(call.id)
        return lines

    def _wait_for_hours(self, call_id: str) -> None:
        """Wait until the site's hours begin, while the call is wanted."""
        device = self.site.policy.device
        if device.seconds_until_open(datetime.now().time()):
            self.log(f"{in_words(call_id)} waits for this site's hours, {device.hours} (device.hours)")
        while device.seconds_until_open(datetime.now().time()):
            if call_id in self._withdrawn or self.session.finished:
                return
            time.sleep(_LOOK)

    def _answer(self, call: ReadyCall) -> None:
        name, session, begun = call.id.rpartition(".")[2], self.session, time.monotonic()
        try:
            if call.refusal is not None:
                raise call.refusal
            if is_setup(call.id):
                self._bound.write(str(session.run))
            answer, body = self.site.answer(name, call.request, call.objects)
        except ModelDeclined as error:  # it is through all the same: nobody waits for it, or asks it again
            session.answer(call.id, DECLINED, None)
            self._end(call.id, f"the last round is done, and no final model comes here: {error}")
        except FednlpError as error:
            self._fail(call.id, error, str(error))
        except Exception as error:  # the site goes on with the next call; the server says whose failed
            self._fail(call.id, error, f"failed: {raised(error)}")
        else:
            size = _size(body)  # before the file is moved
            session.answer(call.id, answer, body)
            if is_setup(call.id):
                session.go_on()
            if is_final_model(call.id):
                here = ", and the final model is here" if call.objects else ""
                self._end(call.id, f"the last round is done{here}")
            if name.partition("-")[0] == "train" and body is not None:
                self._say_trained(int(call.id.partition(".")[0]), begun, size)

    def _say_trained(self, number: int, begun: float, size: int) -> None:
        """Say what a round was at this site, and how long the federation takes on, by its pace so far."""
        now, rounds = time.monotonic(), self.site.opened.experiment.num_rounds
        first, since = self._first = self._first or (number, begun)
        loss = "" if self.site.loss is None else f", loss {self.site.loss:.3f}"
        left = (rounds - number) * (now - since) / (number - first + 1)
        on = f", about {human_seconds(left)} left" if number < rounds else ""
        self.log(
            f"round {number} of {rounds}: trained in {human_seconds(now - begun)}{loss}; the server gets "
            f"{human_bytes(size)}{on}"
        )

    def _end(self, call_id: str, reason: str) -> None:
        """End this site's part, whose models are written or not wanted, also where the server is gone."""
        self._ended = True
        self._note_end()
        if not self._wait_until_stored(call_id, _PATIENCE):
            self._say_alone(_LAST_PATIENCE)
            self._wait_until_stored(call_id, _LAST_PATIENCE)
        self.session.leave(reason)

    def _wait_until_stored(self, call_id: str, seconds: float) -> bool:
        """Give an answer time to reach the server, and the server to say that the federation is over."""
        until = time.monotonic() + seconds
        while self.session.owes(call_id) and not self.session.finished:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK)
        return True

    def _fail(self, call_id: str, error: Exception, reason: str) -> None:
        """Answer a call by an error; one to be set up ends this site's part, until it is started again."""
        self.session.answer(call_id, None, None, redact_error(error))
        if not _begins(call_id):
            if call_id not in self._withdrawn:  # whose objects may be gone
                self.log(f"{in_words(call_id)}: {reason}")
            return
        self._forget(call_id, error)
        self._wait_until_stored(call_id, _PATIENCE)
        raise RunError(
            f"this site does not take part: {reason}; mend what is wrong, and join again"
        ) from error

    def _forget(self, call_id: str, error: Exception | None = None) -> None:
        """Remove what came with a setup that is refused; it stays where the site's own data are to be mended."""
        if is_setup(call_id) and not isinstance(error, DataError | MissingDependency):
            self._objects.keep_only(())


def _size(body: Path | Written | None) -> int:
    """Return the bytes of what is sent beside an answer."""
    if isinstance(body, Written):
        return body.ref.size
    return 0 if body is None else body.stat().st_size


def _begins(call_id: str) -> bool:
    """Return whether a call comes before a site takes part: to be set up, or to tell the names of its labels."""
    return is_setup(call_id) or asks_labels(call_id)


class _Bound(Stored):
    run: str
    invitation: str


class BoundRun:
    """Takes note of the first run that a site is set up for with a token; another run takes another token.

    A server has one run for each authority, so a second name comes from one that has lost its own, or that wants a site
    to forget what it has answered. Certificates of an organisation are for any run of theirs.

    Args:
        folder: Of this site and federation.
        invitation: Name of the invitation that the site enrolled with last; None without a token.
    """

    def __init__(self, folder: Path, invitation: str | None) -> None:
        self._path, self._invitation = folder / _BOUND, invitation

    def read(self) -> str | None:
        """Return the run's name; None where the site may be set up for any.

        Raises:
            RunError: The file is damaged.
        """
        if self._invitation is None:
            return None
        remedy = "delete it if the server can be trusted"
        note = read_stored(self._path, _Bound, "it names no run", remedy)
        return note.run if note is not None and note.invitation == self._invitation else None

    def write(self, run: str) -> None:
        """Take note of the run that the site is set up for, unless it has one.

        Raises:
            RunError: The folder cannot be written, or the file is damaged.
        """
        if self._invitation is not None and self.read() is None:
            note = _Bound(run=run, invitation=self._invitation)
            write_private(self._path, note.model_dump_json().encode(), "then run fednlp join again")
