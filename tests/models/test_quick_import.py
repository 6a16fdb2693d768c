"""What a process of the command line imports before its first step, and that what it leaves out is still there."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import tomli_w

import fednlp
from fednlp.runtime.worker_process import WorkerCommand, WorkerProcess
from fednlp.startup.quick_import import SWITCH, quick_imports

pytestmark = pytest.mark.whole

HEAVY = (
    "accelerate",
    "torch._dynamo.utils",
    "torch._inductor",
    "torch.distributed.tensor",
    "scipy.optimize",
    "sklearn",
    "matplotlib",
    "pandas",
    "sympy",
)


def run(program: str, *words: str, switch: str | None = "1") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment |= {} if switch is None else {SWITCH: switch}
    command = [sys.executable, "-W", "error", "-c", program, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_first_round_needs_no_heavy_library(document: Any, tmp_path: Path) -> None:
    """No compiler, sharded tensors, sympy, scipy, pandas or scikit-learn after a round and its scores."""
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(document({"evaluation.every": 1})), encoding="utf-8")
    done = run(
        "import os, sys\n"
        "from fednlp.simulation.callback import Callback\n"
        "from fednlp.simulation.run import run\n"
        "class AfterRound(Callback):\n"
        "    def on_round(self, line, left):\n"
        "        assert {'accuracy', 'macro_f1', 'mcc'} < line['evaluation']['global'].keys()\n"
        f"        print(sorted(set({HEAVY}) & set(sys.modules)), flush=True)\n"
        "        os._exit(7)\n"
        "run(sys.argv[1], sys.argv[2], callback=AfterRound())\n",
        str(file),
        str(tmp_path / "run"),
    )
    assert (done.returncode, done.stdout.strip()) == (7, "[]"), done.stderr


@pytest.mark.slow
def test_a_checkpoint_is_loaded_without_sympy(random_model: Callable[..., Path]) -> None:
    """PyTorch imports it for what it computes of shapes alone, as transformers does before it reads weights."""
    sources = [str(random_model(kind)) for kind in ("bert", "distilbert", "gpt2", "t5", "bart")]
    done = run(
        "import sys\n"
        "from fednlp.models.pretrained import pretrained_model\n"
        "for source in sys.argv[1:]:\n"
        "    pretrained_model(source, 'AutoModelForSequenceClassification', {'num_labels': 4}, {}, 0)\n"
        "    print('sympy' in sys.modules)\n",
        *sources,
    )
    assert done.stdout.split() == ["False"] * len(sources), done.stderr


@pytest.mark.slow
def test_what_is_left_out_is_loaded_when_it_is_used() -> None:
    done = run(
        "import sys, torch\n"
        "from fednlp.startup.quick_import import import_modelling\n"
        "import_modelling()\n"
        f"assert not set({HEAVY}) & set(sys.modules)\n"
        "assert torch.distributed.is_available()\n"
        "from transformers.loss.loss_for_object_detection import linear_sum_assignment\n"
        "assert linear_sum_assignment([[1, 0], [0, 1]])[1].tolist() == [1, 0]\n"
        "double = torch.compile(lambda x: 2 * x, backend='eager')\n"
        "assert double(torch.ones(2)).tolist() == [2, 2]\n"
        "assert 'torch._dynamo.utils' in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_arrow_does_without_pandas_until_it_is_to_make_a_frame() -> None:
    pytest.importorskip("pandas")
    done = run(
        "import sys\n"
        "from fednlp.startup.quick_arrow import import_arrow\n"
        "import_arrow()\n"
        "import numpy, pyarrow\n"
        "table = pyarrow.table({'text': pyarrow.array(['a', 'b'])})\n"
        "assert table.take(numpy.array([1])).to_pylist() == [{'text': 'b'}]\n"
        "assert 'pandas' not in sys.modules\n"
        "assert table.to_pandas()['text'].tolist() == ['a', 'b']\n"
        "import pandas\n"
        "assert pyarrow.Table.from_pandas(pandas.DataFrame({'text': ['c']})).to_pylist() == [{'text': 'c'}]\n"
    )
    assert done.returncode == 0, done.stderr


def test_arrow_knows_frames_once_anything_has_imported_pandas() -> None:
    """As a user's own code does in a command: NaN of a series is null, and a frame is a table."""
    pytest.importorskip("pandas")
    done = run(
        "from fednlp.startup.quick_arrow import import_arrow\n"
        "import_arrow()\n"
        "import pandas, pyarrow\n"
        "assert pyarrow.array(pandas.Series([1.0, float('nan')])).to_pylist() == [1.0, None]\n"
        "assert pyarrow.table(pandas.DataFrame({'text': ['c']})).to_pylist() == [{'text': 'c'}]\n"
    )
    assert done.returncode == 0, done.stderr


def test_libraries_that_have_changed_are_imported_as_usual() -> None:
    """As where a module of transformers needs what the compiler's stand-in does not give."""
    done = run(
        "import sys, torch\n"
        "from fednlp.startup import quick_import\n"
        "class Changed:\n"
        "    asked = 0\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        stands_in = isinstance(sys.modules.get('torch._dynamo'), quick_import._Compiler)\n"
        "        if name == 'transformers.masking_utils' and stands_in:\n"
        "            Changed.asked += 1\n"
        "            raise RuntimeError('the compiler is needed')\n"
        "sys.meta_path.insert(0, Changed())\n"
        "quick_import.import_modelling()\n"
        "assert Changed.asked == 1\n"
        "assert not any(isinstance(one, quick_import._CompilerModules) for one in sys.meta_path)\n"
        "double = torch.compile(lambda x: 2 * x, backend='eager')\n"
        "assert double(torch.ones(2)).tolist() == [2, 2]\n"
        "from transformers import BertConfig, BertForSequenceClassification\n"
        "small = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)\n"
        "assert BertForSequenceClassification(small)(torch.ones(1, 3, dtype=int)).logits.shape == (1, 2)\n"
    )
    assert done.returncode == 0, done.stderr


def test_only_the_command_line_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    with quick_imports():
        assert os.environ[SWITCH] == "1"
    assert SWITCH not in os.environ
    monkeypatch.setenv(SWITCH, "0")
    with quick_imports():
        assert os.environ[SWITCH] == "0"
    assert os.environ[SWITCH] == "0"


@pytest.mark.parametrize("switch", ["0", None])
@pytest.mark.variants(1)
def test_other_processes_import_as_usual(switch: str | None) -> None:
    """Those of a user who says so, and those of Python programs that import fednlp."""
    pytest.importorskip("pandas")
    done = run(
        "import os, sys\n"
        "from fednlp.startup.quick_arrow import import_arrow\n"
        "import_arrow()\n"
        "import pyarrow\n"
        "pyarrow.array(['a'])\n"
        "assert 'pandas' in sys.modules\n"
        "import fednlp, fednlp.cli\n"
        "from fednlp.startup.quick_import import import_modelling\n"
        "import_modelling()\n"
        f"assert os.environ.get({SWITCH!r}) in (None, '0')\n"
        "sys.exit('torch._dynamo.utils' not in sys.modules)\n",
        switch=switch,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["lora", "prompt-tuning"])
@pytest.mark.slow
def test_adapters_train_in_two_workers_of_the_command_line(
    document: Any, tmp_path: Path, method: str
) -> None:
    """The worker processes import quickly too, and end with the weights of this process, which imported as usual."""
    made = document({"model.peft": {"method": method}, "num_rounds": 1})
    file = tmp_path / "tiny.toml"
    file.write_text(tomli_w.dumps(made), encoding="utf-8")
    usual = fednlp.run(made, tmp_path / "usual")
    program = "from fednlp.cli import main; main()"
    done = run(program, "run", str(file), "--workers", "2", "--out", str(tmp_path / "quick"), switch=None)
    assert done.returncode == 0, done.stderr
    quick, expected = (
        folder / "checkpoint" / "state.safetensors" for folder in (tmp_path / "quick", usual.folder)
    )
    assert quick.read_bytes() == expected.read_bytes()


def test_a_worker_imports_quickly_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever started it, for nothing of the user's runs in it."""
    given = []

    def started(*_: object, env: dict[str, str], **__: object) -> MagicMock:
        given.append(env[SWITCH])
        return MagicMock()

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.delenv(SWITCH, raising=False)
    WorkerProcess(WorkerCommand(1, "none:none", 1, ())).stop()
    monkeypatch.setenv(SWITCH, "0")
    WorkerProcess(WorkerCommand(1, "none:none", 1, ())).stop()
    assert given == ["1", "0"]
