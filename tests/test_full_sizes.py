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
    "HuggingFaceTB/SmolLM2-1.7B": transformers.LlamaConfig(
        vocab_size=49152, hidden_size=2048, num_hidden_layers=24
    ),
}
"""What the hub's models look like."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
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
