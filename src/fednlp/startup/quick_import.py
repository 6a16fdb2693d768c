"""Import what every model of transformers needs, without what only its other uses need.

A modelling module of transformers brings torch's compiler, sharded tensors and sympy with it, accelerate, which lays a
model over devices, and scipy for the losses of object detection. Training on texts calls none of these. The commands of
fednlp and all worker processes ask for the quick import by ``FEDNLP_QUICK_IMPORT=1``; a process of the user's own, such
as a notebook, is left as it is.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

SWITCH = "FEDNLP_QUICK_IMPORT"
"""``0`` in the environment switches the quick import off, and ``1`` on."""

_STACK = ("transformers.modeling_utils", "transformers.modeling_layers", "transformers.masking_utils")
"""What the modelling modules of most models import."""

_COMPILER, _ASSIGNMENT = "torch._dynamo", "scipy.optimize"
_FREE = f"{_COMPILER}._trace_wrapped_higher_order_op"
"""The module of the compiler that transformers imports by name; it needs none of the others."""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Ask for the quick import inside the ``with`` block, in this process and in those that it starts.

    An environment that says otherwise is left as it is.
    """
    given = SWITCH in os.environ
    os.environ.setdefault(SWITCH, "1")
    try:
        yield
    finally:
        if not given:
            os.environ.pop(SWITCH, None)


def import_modelling() -> None:
    """Import what most models of transformers share; quickly, if :data:`SWITCH` says so.

    In a quick process transformers takes torch for one that was built without ``torch.distributed``, does not find
    accelerate, and none of its functions is marked for the compiler. The compiler itself is loaded as soon as anything
    asks for it. Where the installed versions do not allow this, the modules are imported as usual.
    """
    if os.environ.get(SWITCH) == "1" and not any(name in sys.modules for name in (*_STACK, _COMPILER)):
        try:
            _stand_in()
            _find_sharding_when_asked()
            _overlook_accelerate()
            with _without_sharding(), _assignment_when_called():
                for name in _STACK:
                    import_module(name)
        except Exception:  # the libraries have changed
            _forget_stand_in()
    for name in _STACK:
        import_module(name)


class _Compiler(ModuleType):
    """``torch._dynamo`` until something needs it: eager optimisers and markers of functions do not."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package, whose modules _CompilerModules finds

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, as outside of compiled functions."""

    def disable(self, fn: Any = None, *args: Any, **options: Any) -> Any:
        """Return the function as it is."""
        return _as_it_is if fn is None else fn

    def allow_in_graph(self, fn: Any) -> Any:
        """Return the function as it is."""
        return fn

    def assume_constant_result(self, fn: Any) -> Any:
        """Return the function as it is."""
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _forget_stand_in()
        return getattr(import_module(_COMPILER), name)


def _as_it_is(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


class _CompilerModules(MetaPathFinder, Loader):
    """Finds the modules of the compiler while the stand-in is there: the compiler itself is loaded first."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{_COMPILER}."):
            return None
        if fullname == _FREE:
            folder = Path(str(sys.modules["torch"].__file__)).parent / "_dynamo"
            return PathFinder.find_spec(fullname, [str(folder)])
        _forget_stand_in()
        import_module(_COMPILER)
        import_module(fullname)
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._found = sys.modules[spec.name]
        self._spec = self._found.__spec__
        return self._found

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # it has been executed


def _stand_in() -> None:
    """Put the stand-in into the compiler's place."""
    import torch

    sys.modules[_COMPILER] = torch._dynamo = _Compiler(_COMPILER)
    sys.meta_path.insert(0, _CompilerModules())


def _forget_stand_in() -> None:
    """Let the next import of the compiler be that of the compiler."""
    if isinstance(sys.modules.get(_COMPILER), _Compiler):
        del sys.modules[_COMPILER]
        del sys.modules["torch"]._dynamo
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _CompilerModules)]


def _find_sharding_when_asked() -> None:
    """Let modules of ``torch.distributed`` be imported when they are looked up.

    peft looks up one that it expects transformers to have imported.
    """
    import torch.distributed

    def find(name: str) -> ModuleType:
        if not name.startswith("_"):
            with suppress(ModuleNotFoundError):
                return import_module(f"torch.distributed.{name}")
        raise AttributeError(f"module 'torch.distributed' has no attribute {name!r}")

    if not hasattr(torch.distributed, "__getattr__"):
        torch.distributed.__getattr__ = find  # type: ignore[method-assign]


def _overlook_accelerate() -> None:
    """Have transformers find, once and for this process, that accelerate is not installed."""
    from transformers.utils import import_utils

    known = import_utils._is_package_available
    import_utils._is_package_available = lambda *args, **options: (False, "")
    import_utils.is_accelerate_available.cache_clear()
    try:
        import_utils.is_accelerate_available()  # which remembers the answer
    finally:
        import_utils._is_package_available = known


@contextmanager
def accelerate_found() -> Iterator[None]:
    """Have the loading of a model find accelerate inside the ``with`` block, without which it reads no GGUF file."""
    import transformers.modeling_utils as loading

    known = loading.is_accelerate_available
    loading.is_accelerate_available = lambda *args: True
    try:
        yield
    finally:
        loading.is_accelerate_available = known


@contextmanager
def _without_sharding() -> Iterator[None]:
    """Have transformers find, once and for this process, that torch cannot distribute tensors."""
    import torch.distributed
    from transformers.utils import is_torch_distributed_available

    known = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()  # which remembers the answer
    finally:
        torch.distributed.is_available = known
    yield


@contextmanager
def _assignment_when_called() -> Iterator[None]:
    """Let ``linear_sum_assignment`` be imported without scipy, which is loaded when it is called."""
    if "scipy" in sys.modules:
        yield
        return
    stand_ins = {name: ModuleType(name) for name in ("scipy", _ASSIGNMENT)}

    def linear_sum_assignment(*args: Any, **options: Any) -> Any:
        return import_module(_ASSIGNMENT).linear_sum_assignment(*args, **options)

    stand_ins["scipy"].__path__ = []
    stand_ins[_ASSIGNMENT].linear_sum_assignment = linear_sum_assignment  # type: ignore[attr-defined]
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)
