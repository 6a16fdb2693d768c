"""Count with Ray on three cores and two GPUs that are made up; print as JSON what came of it where an actor is lost."""

import json
import os

import ray
from counting import Counting

from fednlp.errors import RunError
from fednlp.federated.client import TrainRequest
from fednlp.runtime.ray import Ray
from fednlp.training.requests.predict import ProbabilitiesRequest

if __name__ == "__main__":
    ray.init(
        "local",
        num_cpus=3,
        num_gpus=2,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        include_dashboard=False,
    )
    with Ray(3, "counting:build") as engine:
        engine.start(Counting(os.getpid()), {"here": os.getpid()})
        killed: list[int] = []

        def kill_once(done: int) -> None:
            if done >= 10 and not killed:
                ray.get([actor.__ray_ready__.remote() for actor in engine.actors], timeout=60)
                killed.append(done)
                ray.kill(engine.actors[0])

        answers = engine.do([TrainRequest(client, 1, 0.5) for client in range(40)], kill_once)
        found = {
            "clients": [answer.client for answer in answers],
            "total": int(engine.total),
            "processes": len({answer.facts["process"] for answer in answers}),
            "failed": "",
            "unbuilt": "",
            "refused": "",
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
    with Ray(3, "counting:build", gpus=False) as engine:
        ray.get([actor.__ray_ready__.remote() for actor in engine.actors], timeout=60)
        found["gpus left by workers on the CPU"] = ray.available_resources()["GPU"]
    try:
        Ray(4, "counting:build")
    except RunError as error:
        found["refused"] = str(error)
    ray.shutdown()
    print(json.dumps(found))
