"""Dynamic pulling in a report: norms are drawn where they belong, and sent_shares are counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fednlp.reports.document import Grid, Picture
from fednlp.reports.read import Run, read_run
from fednlp.reports.sections.communication import (
    communication_blocks,
    encoder_decoder_split,
    last_update_norms,
    norm_histograms,
    read_shared_tensors,
    sent_shares,
)
from fednlp.reports.style import svg

NewRun = Callable[..., Path]

HALVES = [
    ("shared.weight", [10, 2]),
    ("encoder.layers.0.fc.weight", [4]),
    ("encoder.layers.0.fc.bias", [2]),
    ("decoder.layers.0.fc.weight", [4]),
    ("decoder.layers.0.fc.bias", [2]),
]
PLAIN = [(f"bert.encoder.layer.{i}.bias", [2]) for i in range(5)]
Entries = list[tuple[str, list[int]]]


def _pulled(folder: Path, entries: Entries | None, rounds: int = 3, clients: int = 2) -> Run:
    """Give a run norms of five tensors, of which client c sends the first c + 1."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in lines[:rounds]:
        number = line["round"]
        line["update_norms"] = {str(c): [number + i / 10 for i in range(5)] for c in range(clients)}
        line["sent"] = {str(c): list(range(min(5, c + 1))) for c in range(clients)}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if entries is not None:
        layout = json.dumps([[name, shape, "parameter"] for name, shape in entries])
        (folder / "checkpoint").mkdir()
        told = {"fednlp": json.dumps({"round": 3, "totals": {}, "layout": layout})}
        save_file({"x": np.zeros(3, np.float32)}, folder / "checkpoint" / "state.safetensors", told)
    return read_run(folder)


def _heights(figure: Any) -> list[list[float]]:
    return [[sum(p.get_height() for p in bars) for bars in axes.containers] for axes in figure.axes]


def test_the_layout_is_read_from_the_checkpoint(new_run: NewRun) -> None:
    run = _pulled(new_run(), HALVES)
    assert read_shared_tensors(run) == (
        *(("shared.weight", 20), ("encoder.layers.0.fc.weight", 4), ("encoder.layers.0.fc.bias", 2)),
        *(("decoder.layers.0.fc.weight", 4), ("decoder.layers.0.fc.bias", 2)),
    )


@pytest.mark.parametrize("content", [None, b"", b"nothing", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_without_a_readable_checkpoint_there_is_no_layout(new_run: NewRun, content: bytes | None) -> None:
    folder = new_run()
    if content is not None:
        (folder / "checkpoint").mkdir()
        (folder / "checkpoint" / "state.safetensors").write_bytes(content)
    assert read_shared_tensors(read_run(folder)) is None


@pytest.mark.parametrize(
    ("names", "decoder"),
    [
        (["model.encoder.layers.0.w", "model.decoder.layers.0.w"], [1]),
        (["encoder.block.0.w", "decoder.block.0.layer.0.w", "shared.weight"], [1]),
        (["encoder.encoder.layer.0.w", "decoder.bert.encoder.layer.0.w", "decoder.cls.bias"], [1, 2]),
        (["model.decoder.layers.0.w", "model.decoder.embed_tokens.weight"], None),
        (["bert.encoder.layer.0.w", "cls.predictions.decoder.bias"], None),
        (["transformer.h.0.w"], None),
    ],
)
def test_an_encoder_decoder_is_told_by_its_names(names: list[str], decoder: list[int] | None) -> None:
    found = encoder_decoder_split(names)
    assert found.get("decoder") == decoder
    assert sorted(number for part in found.values() for number in part) == list(range(len(names)))


def test_histograms_count_every_tensor_of_every_client_on_its_side() -> None:
    norms = {"a": [1.0, 2.0, 3.0, 4.0, float("nan")], "b": [1.0, 1.0, 1.0, 1.0, 1.0]}
    figure = norm_histograms(norms, [name for name, _ in HALVES])
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Tensors of the encoder",
        "Tensors of the decoder",
    ]
    assert _heights(figure) == [[3, 3], [1, 2]]
    whole = norm_histograms(norms, None)
    assert whole is not None
    assert _heights(whole) == [[4, 5]]
    assert norm_histograms({"a": [float("inf")]}, None) is None
    assert norm_histograms({}, None) is None


def test_the_last_round_with_a_choice_is_shown(new_run: NewRun) -> None:
    run = _pulled(new_run(), HALVES, rounds=2)
    number, moved = last_update_norms(run) or (0, {})
    assert number == 2
    assert moved["1"] == [2.0, 2.1, 2.2, 2.3, 2.4]
    assert last_update_norms(read_run(new_run("other"))) is None


def test_shares_are_means_over_clients_of_tensors_and_of_parameters(new_run: NewRun) -> None:
    run = _pulled(new_run(), HALVES)
    found = sent_shares(run, read_shared_tensors(run))
    assert [share.round for share in found] == [1, 2, 3]
    for share in found:
        assert share.tensors == pytest.approx((1 / 5 + 2 / 5) / 2)
        assert share.parameters == pytest.approx((20 / 32 + 24 / 32) / 2)
    assert {share.parameters for share in sent_shares(run, None)} == {None}


def test_a_part_of_a_tensor_counts_with_its_parameters(new_run: NewRun) -> None:
    """Client 0 sends the bias of the first layer, 4 of its 20 embeddings' values, and 2 of a matrix that come round."""
    folder = new_run()
    run = _pulled(folder, HALVES, clients=1)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    odd = [[9, 0, 1], [0], None, ["0", 1, 2], [2, 0, 1]]
    lines[0] |= {"sent": {"0": [2]}, "sent_slices": {"0": [[0, 3, 7], [1, 3, 1], *odd]}}
    lines[1] |= {"sent": {"0": [2]}, "sent_slices": "odd"}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, *_ = sent_shares(read_run(folder), read_shared_tensors(run))
    assert (first.tensors, first.parameters) == (3 / 5, (2 + 4 + 2) / 32)
    assert (second.tensors, second.parameters) == (1 / 5, 2 / 32)


@pytest.mark.whole
def test_a_page_has_table_and_figure_and_others_have_neither(new_run: NewRun) -> None:
    run = _pulled(new_run(), PLAIN, clients=9)
    grid, picture = communication_blocks({"A": [run]})
    assert isinstance(grid, Grid)
    assert isinstance(picture, Picture)
    assert [row[0] for row in grid.rows] == ["Round 1", "Round 2", "Round 3", "All rounds"]
    assert "the first 6 of 9 clients" in picture.caption
    assert len(picture.figure.axes) == 1
    other = read_run(new_run("other", algorithm="fedavg"))
    assert list(communication_blocks({"B": [other]})) == []
    grid, *_ = communication_blocks({"A": [run], "B": [other]})
    assert [row[0] for row in getattr(grid, "rows", [])] == ["A"]


def test_many_rounds_are_a_dozen_with_the_first_and_the_last(new_run: NewRun) -> None:
    run = _pulled(new_run(rounds=100), None, rounds=100)
    grid, *_ = communication_blocks({"A": [run]})
    rows = [row[0] for row in getattr(grid, "rows", [])]
    assert len(rows) == 13
    assert (rows[0], rows[-2]) == ("Round 1", "Round 100")


@pytest.mark.parametrize(
    ("moved", "sent"),
    [
        ({"0": "x"}, {"0": [1]}),
        ({"0": [1.0, None, "x"]}, {"0": [9, -1, "a", None]}),
        ({"x": [1e308, 1e308]}, {"x": None}),
        ({"0": []}, {}),
        ([1], 5),
        ({"0": [1.0]}, {"7": [0]}),
    ],
)
def test_odd_lines_cost_no_report(new_run: NewRun, moved: Any, sent: Any) -> None:
    folder = new_run(rounds=1)
    line = json.loads((folder / "rounds.jsonl").read_text()) | {"update_norms": moved, "sent": sent}
    (folder / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    for block in communication_blocks({"A": [read_run(folder)]}):
        if isinstance(block, Picture):
            assert "<svg" in svg(block.figure, "moved", block.caption)
        else:
            assert isinstance(block, Grid)
