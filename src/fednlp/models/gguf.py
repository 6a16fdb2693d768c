"""GGUF files: converted once to a folder that loads like any other model."""

import sys
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from fednlp.disk import sha256_of, writing
from fednlp.errors import MissingDependency, ModelError, install_command
from fednlp.models.folder_cache import make_once, model_cache_folder
from fednlp.models.loading import empty_model, explain_load_errors, load_pretrained
from fednlp.startup.quick_import import accelerate_found

_MAGIC = b"GGUF"


def convert_gguf(path: Path) -> Path:
    """Return a folder with a GGUF language model's weights as float32 safetensors, and its tokenizer.

    The folder is kept in the cache, by the file's content. The weights are what the quantised ones stand for,
    exactly.

    Args:
        path: A ``.gguf`` file of an architecture that transformers knows.

    Raises:
        ModelError: It is no GGUF file, or one that cannot be read.
        MissingDependency: ``gguf`` or ``accelerate`` is not installed.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise ModelError(f"{path} is no GGUF file: it does not begin with GGUF")
    return make_once(
        model_cache_folder(f"gguf-{sha256_of(path)[:32]}"), lambda folder: _convert(path, folder)
    )


def require_gguf(name: str) -> None:
    """Check that the libraries that read GGUF files are installed.

    Args:
        name: The model or file that needs them.

    Raises:
        MissingDependency: ``gguf`` or ``accelerate`` is not installed.
    """
    missing = [library for library in ("gguf", "accelerate") if find_spec(library) is None]
    if missing:
        raise MissingDependency(
            f"reading {name} needs {' and '.join(missing)}: run {install_command('gguf')}"
        )


def _convert(path: Path, folder: Path) -> None:
    require_gguf(path.name)
    print(f"converting {path.name} (once; kept in the cache)", file=sys.stderr, flush=True)
    with explain_load_errors(str(path)), redirect_stderr(StringIO()):  # its reader draws a bar of its own
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder_of, name = str(path.parent), path.name
        with accelerate_found():
            read = load_pretrained(AutoModelForCausalLM, folder_of, gguf_file=name, dtype=torch.float32)
        config = read.config
        del config.quantization_config  # the weights are plain numbers now
        plain = empty_model(AutoModelForCausalLM, config, dtype=torch.float32)
        plain.load_state_dict(read.state_dict())
        tokenizer = load_pretrained(AutoTokenizer, folder_of, gguf_file=name)
        with writing(folder):
            plain.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
