"""Leave out the parts of torch and transformers that no served model uses.

transformers imports the compiler of torch for its decorators, torch's tensors over several machines, and scipy for the
loss of object detection. Without them a process with MiniLM has 336 MB instead of 406, and 1.2 s less of imports.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_TRANSFORMS = "torch._dynamo._trace_wrapped_higher_order_op"


def leave_out_unused_parts() -> None:
    """Call it before torch is imported. A part that is imported already stays."""
    if _COMPILER not in sys.modules:
        compiler, transforms = _StandIn(_COMPILER), _StandIn(_TRANSFORMS)
        # Marks for the compiler. Served models are not compiled.
        marks = ("disable", "allow_in_graph", "assume_constant_result", "mark_static_address")
        vars(compiler).update(dict.fromkeys(marks, _unchanged))
        vars(transforms).update(TransformGetItemToIndex=_transform_on_use)
        sys.modules.update({_COMPILER: compiler, _TRANSFORMS: transforms})
    from transformers import utils
    from transformers.utils import import_utils

    for module in (utils, import_utils):
        module.is_torch_distributed_available = _is_left_out
        module.is_scipy_available = _is_left_out


class _StandIn(ModuleType):
    """Takes the place of a module until an attribute of it is used that has no stand-in."""

    def __getattr__(self, name: str) -> Any:
        # Python looks at such names of any module. The path of the package is needed to import its other modules.
        if name.startswith("__") and (self.__name__, name) != (_COMPILER, "__path__"):
            raise AttributeError(name)
        _import_compiler()
        return getattr(importlib.import_module(self.__name__), name)


def _import_compiler() -> None:
    for name in (_COMPILER, _TRANSFORMS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]
    importlib.import_module(_COMPILER)


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    """Decorate a function, with or without arguments of the decorator."""
    return function if function is not None else _unchanged


def _transform_on_use() -> Any:
    """Return a TransformGetItemToIndex. Masks of unusual models use it."""
    _import_compiler()
    return importlib.import_module(_TRANSFORMS).TransformGetItemToIndex()


def _is_left_out() -> bool:
    return False
