"""The one way to load what Hugging Face stores: never with code that a model brings along."""

from typing import Any

from fednlp.errors import ModelError


def load_pretrained(auto: Any, source: str, **options: Any) -> Any:
    """Load a configuration, a tokenizer or a model by an auto class; standard input is never asked for consent.

    Args:
        auto: ``AutoConfig``, ``AutoTokenizer``, or the auto class of a head.
        source: A folder or a hub name.
        options: Further arguments of ``from_pretrained``.

    Raises:
        ModelError: The configuration asks for kernels of a hub repository.
        ValueError: The model needs code of its own; :func:`fednlp.models.explain.explained` says so in one line.
    """
    loaded = auto.from_pretrained(source, trust_remote_code=False, **options)
    _refuse_kernels(loaded, source)
    return loaded


def empty_model(auto: Any, config: Any, **options: Any) -> Any:
    """Build a model of a configuration, with fresh weights.

    Raises:
        ValueError: The model needs code of its own, as for :func:`load_pretrained`.
    """
    return auto.from_config(config, trust_remote_code=False, **options)


def needs_own_code(source: str) -> ModelError:
    """Return the error for a model that works with code of its own alone."""
    return ModelError(
        f"the model in {source} needs code of its own (auto_map in its configuration), and fednlp runs no code that "
        "comes with a model: use a model of an architecture that transformers has"
    )


def _refuse_kernels(config: Any, source: str) -> None:
    """Refuse attention kernels of a hub repository, which are compiled code that a configuration may name."""
    from transformers import PretrainedConfig

    if not isinstance(config, PretrainedConfig):
        return
    parts = [config, *(part for part in vars(config).values() if isinstance(part, PretrainedConfig))]
    named = [str(part._attn_implementation) for part in parts if "/" in str(part._attn_implementation)]
    if named:
        raise ModelError(
            f"the model in {source} asks for the attention kernels {named[0]}, and fednlp runs no code that comes with "
            "a model: take attn_implementation out of its config.json"
        )
