"""Count with Ray while one of its actors is killed, and print what came of it as JSON."""

import json
import os

import ray
from counting import Counting

from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.runtime.messages import ProbabilitiesRequest
from fednlp.runtime.ray import Ray

if __name__ == "__main__":
    with Ray(2, "counting:build") as engine:
        engine.start(Counting(os.getpid()), {"here": os.getpid()})
        killed: list[int] = []

        def kill_once(done: int) -> None:
            if done >= 10 and not killed:
                killed.append(done)
                ray.kill(engine.actors[0])

        answers = engine.do([TrainRequest(client, 1, 0.5) for client in range(40)], kill_once)
        found = {
            "clients": [answer.client for answer in answers],
            "total": int(engine.total),
            "processes": len({answer.facts["process"] for answer in answers}),
            "failed": "",
            "unbuilt": "",
        }
        try:
            engine.do([ProbabilitiesRequest([1])])
        except RunError as error:
            found["failed"] = str(error)
    with Ray(2, "counting:missing") as engine:
        engine.start(Counting(os.getpid()), {"here": os.getpid()})
        try:
            engine.do([TrainRequest(1, 1, 0.5)])
        except RunError as error:
            found["unbuilt"] = str(error)
    print(json.dumps(found))
