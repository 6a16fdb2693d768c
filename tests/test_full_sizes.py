"""Full sizes with a model of the hub fit it, built as a shape alone: nothing is downloaded, and none takes memory."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from fednlp import config
from fednlp.data.catalogue import entry
from fednlp.models.loading import empty_model, without_memory
from fednlp.models.registry import ALL_NAMES
from fednlp.models.selection import apply_selection
from fednlp.models.selection_spec import parse_selection
from fednlp.models.settings import load_config
from fednlp.reproduction.catalogue import find_papers
from fednlp.tasks import task_class

FILES = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))
ROBERTA: dict[str, Any] = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
MODELS = {
    "distilbert-base-uncased": transformers.DistilBertConfig(),
    "distilbert-base-cased": transformers.DistilBertConfig(vocab_size=28996),
    "bert-base-uncased": transformers.BertConfig(),
    "roberta-base": transformers.RobertaConfig(**ROBERTA),
    "roberta-large": transformers.RobertaConfig(
        **ROBERTA, num_hidden_layers=24, hidden_size=1024, num_attention_heads=16, intermediate_size=4096
    ),
    "facebook/bart-base": transformers.BartConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    ),
    **dict.fromkeys(
        ("HuggingFaceTB/SmolLM2-1.7B", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
        transformers.LlamaConfig(vocab_size=49152, hidden_size=2048, num_hidden_layers=24),
    ),
}
"""What the hub's models look like."""
DISTILBERT = {"distilbert-base-uncased", "distilbert-base-cased"}
PAPER_MODELS = {
    "fednlp": DISTILBERT | {"bert-base-uncased", "facebook/bart-base"},
    "fedsplitbert": {"bert-base-uncased"},
    "pulling": {"transformer", "runs/generic-full/model"},
    "platform": DISTILBERT,
    "fes": {"roberta-large", "roberta-base", "bert-base-uncased"},
}
"""The models of each paper."""
STAND_INS = {"bert-tiny", "minilm", "smollm2"}
"""Models of laptop sizes."""
WITHOUT = {"fes-table4-decoder": {"smollm2"}}
"""Experiments whose comment and docs say that their model has no full size."""


def models_of(path: Path) -> set[str]:
    """Return the models of all variants of an experiment's full size."""
    full = config.load(path, full=True)
    variants = [full, *(config.with_method(full, one, 0) for one in full.variants)]
    return {one for variant in variants for one in str(variant.model.name_or_path).split("+")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_full_size_has_the_model_of_its_paper(path: Path) -> None:
    made_by = [
        paper.name
        for paper in find_papers(["all"]).values()
        if path.stem in {one.experiment for one in paper.runs.values()}
    ]
    found = models_of(path)
    if path.stem in WITHOUT:
        assert found == WITHOUT[path.stem]
        assert "no full size of the model" in path.read_text()
    elif made_by:
        assert found <= PAPER_MODELS[made_by[0]]
    else:
        assert not found & STAND_INS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.variants(20)
@pytest.mark.whole
def test_a_full_size_fits_its_models(path: Path, tmp_path: Path) -> None:
    """They have the settings, the head and the parts that it names. Other models come with fednlp, or from a run."""
    full = config.load(path, full=True)
    for variant in (None, *full.variants):
        experiment = (full if variant is None else config.with_method(full, variant, 0)).resolved()
        name = experiment.model.name_or_path
        if name not in MODELS:
            assert name.startswith("runs/") or {*name.split("+")} <= {*ALL_NAMES}
            continue
        MODELS[name].save_pretrained(tmp_path)
        task = task_class(experiment.task.configured or entry(str(experiment.data.name)).task)
        settings = load_config(str(tmp_path), task.model_class, {}, experiment.model.config)
        with without_memory():
            model = empty_model(getattr(transformers, task.model_class), settings)
        if experiment.model.train != "all":
            apply_selection(model, parse_selection(experiment.model.train))
