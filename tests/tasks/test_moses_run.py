"""Translation texts prepared by Moses, from the file to the prediction."""

import json
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.inference.predict import predict_texts

from .models import byte_level, gpt2

pytestmark = pytest.mark.whole

PAIRS = {
    "Anna sagt: „Hallo“ – heute.": "Anna says: “hello” – today.",
    "Berlin (die Stadt) ist z.B. alt.": "Berlin (the city) is old.",
    "Wer kommt? Carla kommt!": "Who comes? Carla comes!",
}
READ = {
    "none": list(PAIRS.values()),
    "tokenise": ['Anna says: "hello" - today.', "Berlin (the city) is old.", "Who comes? Carla comes!"],
}
SMALL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
SMALL |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}


def decoder(folder: Path) -> Path:
    """Save a small language model that has learnt nothing, with a tokenizer of bytes."""
    from tokenizers.decoders import ByteLevel
    from transformers import GPT2LMHeadModel

    tokenizer = byte_level(folder, [*PAIRS, *PAIRS.values()])
    tokenizer.backend_tokenizer.decoder = ByteLevel()
    tokenizer.save_pretrained(folder)
    GPT2LMHeadModel(gpt2(len(tokenizer), n_positions=96)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("step", READ)
@pytest.mark.parametrize("task", ["sequence-to-sequence", "text-generation"])
@pytest.mark.variants(1)
def test_what_is_learnt_from_tokens_is_written_as_text(task: str, step: str, tmp_path: Path) -> None:
    """The model learns three sentences by heart; a prediction has punctuation as it is read, and quotes as learnt."""
    pytest.importorskip("sacremoses")
    path = tmp_path / "pairs.jsonl"
    rows = [json.dumps({"source": source, "target": target}) for source, target in PAIRS.items()]
    path.write_text("\n".join(rows * 20) + "\n", encoding="utf-8")
    model: dict[str, Any] = {"name_or_path": "transformer", "vocabulary_size": 400, "config": SMALL}
    if task == "text-generation":
        model = {"name_or_path": str(decoder(tmp_path / "gpt2"))}
    options = {"name": task, "scorer": "bleu", "max_target_length": 48}
    if step != "none":
        options |= {"moses": step, "languages": "de-en"}
    run = fednlp.run(
        {
            "num_rounds": 6,
            "clients_per_round": 2,
            "task": options,
            "data": {"path": str(path)},
            "partition": {"method": "uniform", "clients": 2},
            "model": model | {"max_length": 96},
            "client": {"learning_rate": 0.01, "num_train_epochs": 6},
            "evaluation": {"every": 6},
            "runtime": {"workers": 1},
        },
        tmp_path / "run",
    )
    written = json.loads((run.folder / "task.json").read_text())
    assert bool(written["fields"]["moses_version"]) == (step != "none")
    assert predict_texts(run.folder, list(PAIRS), {}) == READ[step]
