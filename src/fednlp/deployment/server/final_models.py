"""The end of a federation at its server: each site is sent the final model, until it has it.

The server sends the shared tensors alone, by the way of all models, or nothing where it keeps them
(``rounds.send_model``).
"""

from collections.abc import Mapping
from typing import Any

from fednlp.deployment.server.gathering import Members
from fednlp.deployment.server.round_log import attempt_name
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.message_types import Call, ObjectRef
from fednlp.deployment.site.final_model import FinalModel
from fednlp.federated.runtime import MODEL
from fednlp.simulation.run_dir import RunDir

_AFTER = 3
"""Rounds after the last one, in the numbers of calls: replies of the rounds before are forgotten."""
_MOST_ASKED = 1000


class FinalModels:
    """Asks the sites to take the final model, or to write their own alone, each until it has done so.

    Args:
        directory: Of the run, which is at its end.
        hub: What is asked of whom, and what arrived.
        members: Returns who there is.
        counted: The last round by client in which its update counted.
    """

    def __init__(self, directory: RunDir, hub: Hub, members: Members, counted: Mapping[int, int]) -> None:
        self.directory, self.hub, self.members, self.counted = directory, hub, members, counted
        self.experiment = directory.experiment()
        self._number = self.experiment.num_rounds + _AFTER

    def calls(self) -> dict[int, str]:
        """Return each enrolled site's call: the one by which it took the model, or the next one.

        There is none where the server keeps its model and no site has one of its own.
        """
        sent = self.experiment.rounds.send_model
        if not sent and not self.experiment.client.finetune_steps and not self._summary["personalised"]:
            return {}
        enrolled = (member.client for member in self.members() if member.state == "enrolled")
        return {client: self._call(client) for client in enrolled}

    def _call(self, client: int) -> str:
        for attempt in range(1, _MOST_ASKED):
            call_id = f"{self._number}.{client}.{attempt_name(MODEL, attempt)}"
            reply = self.hub.reply(call_id)
            if reply is None or reply.error is None:
                break
        return call_id

    def have_all(self) -> bool:
        """Return whether each site has taken it, of which the server's disk has the answer."""
        return all(self.hub.reply(call_id) is not None for call_id in self.calls().values())

    @property
    def _summary(self) -> dict[str, Any]:
        return self.directory.read_json("summary.json")

    def ask(self, objects: Mapping[str, ObjectRef]) -> dict[int, str]:
        """Ask the sites that have not answered yet; return the calls of all.

        Args:
            objects: The final model; nothing where the server keeps it.
        """
        calls, known = self.calls(), self.directory.read_json("environment.json")
        known = {
            key: value for key, value in known.items() if key not in ("data", "start")
        }  # no paths of the server
        for client, call_id in calls.items():
            if self.hub.reply(call_id) is None:
                counted = self.counted.get(client, 0)
                told = FinalModel(summary=self._summary, environment=known, counted=counted)
                self.hub.ask(client, Call(call_id, told.model_dump(), dict(objects)))
        return calls
