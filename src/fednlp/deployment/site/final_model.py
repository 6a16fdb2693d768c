"""The end of a federation at a site: it gets the final model, and keeps it with the model of its own.

The site makes the folders of what it has itself, and of the shared tensors that the server sends.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from torch import Tensor

from fednlp.checked_json import first_problem, parse_json
from fednlp.checked_json.shapes import SHAPES
from fednlp.config import Experiment
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.published import Published
from fednlp.deployment.site.worker import FINETUNED, SiteWork
from fednlp.disk import folder_made_whole, sync_all, sync_folder, writing
from fednlp.errors import RunError
from fednlp.federated.runtime import MODEL
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import count_nonfinite
from fednlp.models.pretrained import save_model
from fednlp.reports.modelcard import client_card
from fednlp.simulation.components import Log
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.train import write_model
from fednlp.tasks import generation_of
from fednlp.training.client_record import model_of
from fednlp.training.worker import ClientWorker
from fednlp.training.worker_spec import model_fields

DECLINED = {"kept": False}
"""What a site answers whose policy takes no final model: it is through, and is not asked again."""
_REMEDY = "then run fednlp join again"


class FinalModel(BaseModel):
    """What a site is told with the final model.

    Attributes:
        summary: The run's ``summary.json``, for the model card.
        environment: What the model card says of the server's versions.
        counted: The last round in which this site's update counted; 0 for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    summary: dict[str, JsonValue]
    environment: dict[str, JsonValue]
    counted: int = Field(ge=0, lt=2**31)


def is_final_model(call_id: str) -> bool:
    """Return whether a call brings the final model.

    >>> is_final_model("13.2.model"), is_final_model("13.2.model-2"), is_final_model("10.2.train")
    (True, True, False)
    """
    return call_id.rpartition(".")[2].partition("-")[0] == MODEL


def read_final_model(value: Any) -> FinalModel:
    """Return what a server says of the final model.

    Raises:
        RunError: It does not fit.
    """
    try:
        told = FinalModel.model_validate(value)
        for name, said in (("summary.json", told.summary), ("environment.json", told.environment)):
            parse_json(json.dumps(said), SHAPES[name])
    except (ValueError, RecursionError) as error:
        why = first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise RunError(f"what the server says of the final model does not fit: {why}") from None
    return told


def final_vector(published: Published, worker: ClientWorker, objects: Mapping[str, Path]) -> Tensor:
    """Return the final model, flat, in the layout of what was trained.

    Args:
        published: What the server has sent.
        objects: The files that came with the call, by name.

    Raises:
        RunError: It is anything but finite numbers for the tensors that were trained.
    """
    length, expected = objects[MODEL].stat().st_size, worker.layout.message_bytes
    if expected and length != expected:  # also of a message with metadata
        raise RunError(f"the final model has {length:,} bytes where {expected:,} are expected")
    model = published.vector(worker, MODEL, objects, None)
    if count_nonfinite(model):
        raise RunError("the final model has numbers that are not finite, and is not kept")
    return model


@dataclass(frozen=True)
class OwnWeights:
    """The weights of a site's own model: the shared tensors, the personal ones, and whether it was fine-tuned."""

    shared: Tensor
    personal: Tensor | None
    finetuned: bool


def keep_models(
    folder: Path,
    name: str,
    policy: SitePolicy,
    work: SiteWork,
    told: FinalModel,
    model: Tensor | None,
    log: Log,
) -> None:
    """Write the final model, and this site's own where it has one, as folders that ``from_pretrained`` reads.

    The first is the folder that the server has: the same function makes it, of the same tensors. The site's folder is
    a run directory from then on, as far as its models are used.

    Args:
        folder: Of this site and federation.
        told: What the server says of the model.
        model: From :func:`final_vector`; None where the server keeps it.
        log: Told that the site's own model needs the final one, where that is so.

    Raises:
        RunError: The disk is full.
    """
    worker, components, directory = work.worker, work.components, RunDir(folder)
    own = own_weights(folder, work, told.counted, model, log)
    if own is None and model is None:
        return

    with writing(folder, _REMEDY):
        forget_models(folder)
        if own is not None:
            worker.replica.load_for_evaluation(own.shared, own.personal)
            config, model_now = work.experiment.model_dump(exclude_none=True), worker.replica.model
            card = client_card(told.summary, config, told.environment, _own_facts(name, work, own))
            generation = generation_of(worker.task, model_now)
            with folder_made_whole(directory.own_model, _REMEDY) as made:
                base = work.experiment.model.name_or_path
                save_model(model_now, components.tokenizer, made, card, components.longest, generation, base)
            sync_all(directory.own_model)
        if model is not None:
            summary, environment = told.summary, told.environment
            write_model(
                worker, model, work.experiment, components, summary, environment, directory.model, _REMEDY
            )
            sync_all(directory.model)
        worker.forget()
        directory.write_json("task.json", {"task": components.task_spec, "fields": asdict(components.task)})  # type: ignore[call-overload]
        directory.write_experiment(_as_used_here(work.experiment, policy))
        sync_folder(folder)


def forget_models(folder: Path) -> None:
    """Remove the final model of an earlier run, and the site's own: another run begins, or brings its own."""
    directory = RunDir(folder)
    with writing(folder, _REMEDY):
        for name in ("resolved.toml", "task.json"):
            (folder / name).unlink(missing_ok=True)
        for models in filter(Path.is_dir, (directory.model, directory.own_model)):
            shutil.rmtree(models)


def own_weights(
    folder: Path, work: SiteWork, counted: int, model: Tensor | None, log: Log
) -> OwnWeights | None:
    """Return the weights of the model that a site has for itself; None where it has no other than the final one.

    The personal model of a method such as Ditto, and one after fine-tuning steps, lie here whole. Personal layers, and
    tensors that are not sent, are a model with the final one alone.
    """
    worker, own, path = work.worker, work.own, folder / FINETUNED
    if path.is_file():
        with closing(ClientStore(path, model_fields(worker.replica))) as store:
            record = store.read(own.client, work.experiment.num_rounds)
        if record is not None:
            return OwnWeights(record["shared"], record["personal"], True)
    if not worker.personalised or not worker.trainer.record(own.client, counted):
        return None
    if model is None and worker.algorithm.personal_model is None:
        log(
            "this site's own model is a part of the final one, which the server keeps: there is no own model here"
        )
        return None
    final = torch.zeros(0) if model is None else model  # of which a personal model takes nothing
    init = worker.trainer.init(own.client, counted, final)
    return OwnWeights(model_of(init, worker.algorithm, final), init.personal, False)


def _own_facts(name: str, work: SiteWork, own: OwnWeights) -> dict[str, Any]:
    """Return what the card of a site's own model says of the site: its sizes, and its score on its own tests."""
    worker, client, metric = work.worker, work.own.client, work.worker.task.metric
    scores = worker.evaluator.scored(worker.evaluator.predict_all(client)) or {}
    return {
        "client": client,
        "name": name,
        "finetuned": own.finetuned,
        "train_examples": len(work.own.train_numbers),
        "test_examples": len(work.own.test_numbers),
        (f"{metric}_finetuned" if own.finetuned else metric): scores.get(metric),
    }


def _as_used_here(experiment: Experiment, policy: SitePolicy) -> Experiment:
    """Return the experiment with this site's names of columns and its device, in place of the server's files."""
    keys = ("text", "label", "columns", "delimiter", "quoting", "encoding", "on_invalid_row")
    files = {key: getattr(policy.data, key) for key in keys} | {"test_path": None, "validation_path": None}
    runtime = {"device": policy.device.device, "gpu_mapping": None}
    return experiment.model_copy(
        update={
            "data": experiment.data.model_copy(update=files),
            "runtime": experiment.runtime.model_copy(update=runtime),
        }
    )
