"""Leave out the parts of torch and transformers that no served model uses.

transformers imports the compiler of torch for its decorators, torch's tensors over several machines, and scipy for the
loss of object detection. torch imports its export of graphs, and for operations on tensors without memory sympy and
kernels in Python. Without all of them a process with MiniLM takes 235 MB beside its weights instead of 370, and 2 s
less of imports.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from frameworks.pytorch.lazy_names import list_classes_when_used

_COMPILER = "torch._dynamo"
_TRANSFORMS = "torch._dynamo._trace_wrapped_higher_order_op"
_EXPORT = "torch.export"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
# Kernels in Python that return the shape of a result. torch imports them, its decompositions and its reference
# implementations of all operations with it.
_SHAPES = "torch._meta_registrations"
# Marks for the compiler. Served models are not compiled.
_MARKS = ("disable", "allow_in_graph", "assume_constant_result", "mark_static_address")
# Functions of _SYMBOLS that return a condition, if its sizes are integers.
_CONDITIONS = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true")


def leave_out_unused_parts() -> None:
    """Call it before torch is imported. A part that is imported already stays."""
    if _COMPILER not in sys.modules:
        _stand_in(_COMPILER, dict.fromkeys(_MARKS, _unchanged))
        _stand_in(_TRANSFORMS, {"TransformGetItemToIndex": _transform_on_use})
    if _EXPORT not in sys.modules:
        _stand_in(_EXPORT, {"__path__": [str(_torch_folder() / "export")]})
    if _SYMBOLS not in sys.modules:
        conditions = {name: _of_plain_sizes(name) for name in _CONDITIONS}
        _stand_in(_SYMBOLS, {**conditions, "sym_eq": _are_equal, "is_nested_int": _is_nested})
    if _SHAPES not in sys.modules:
        sys.meta_path.insert(0, _WithoutShapes())
    list_classes_when_used()
    from transformers import utils
    from transformers.utils import import_utils

    for module in (utils, import_utils):
        module.is_torch_distributed_available = _is_left_out
        module.is_scipy_available = _is_scipy_used


def _is_scipy_used() -> bool:
    """Return False to the losses of transformers, which training alone needs. Processors of pictures use scipy."""
    caller: str = sys._getframe(1).f_globals["__name__"]
    return not caller.startswith("transformers.loss") and importlib.util.find_spec("scipy") is not None


def skip_initialization_without_memory() -> None:
    """Let the functions of torch.nn.init ignore tensors without memory. Call it after the import of torch.

    transformers builds a model of such tensors before it reads the weights. Their initialization has no effect, and
    would import sympy.
    """
    from torch.nn import init

    for name in ("normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "trunc_normal_"):
        setattr(init, name, _unless_without_memory(getattr(init, name)))


def import_shape_kernels() -> bool:
    """Import the kernels of more operations on tensors without memory. Returns False if they are imported already.

    Without them such an operation raises NotImplementedError. Few architectures use any when they are built.
    """
    is_left_out = isinstance(sys.modules.get(_SHAPES), _StandIn)
    if is_left_out:
        _imported(_SHAPES)
    return is_left_out


class _StandIn(ModuleType):
    """Takes the place of a module until an attribute of it is used that has no stand-in."""

    def __getattr__(self, name: str) -> Any:
        # Python looks at such names of any module. The path of the package is needed to import its other modules.
        if name.startswith("__") and (self.__name__, name) != (_COMPILER, "__path__"):
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


class _WithoutShapes(MetaPathFinder, Loader):
    """Gives torch the stand-in for its kernels in Python, when its import has come to them."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _SHAPES:
            return None
        sys.meta_path.remove(self)
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do the one part of the import that others need: torch.Generator cannot be called before."""
        from torch import _C

        if hasattr(_C, "_set_generator_metaclass"):
            from torch._opaque_base import OpaqueBaseMeta

            _C._set_generator_metaclass(OpaqueBaseMeta)


def _stand_in(name: str, attributes: dict[str, Any]) -> None:
    module = sys.modules[name] = _StandIn(name)
    vars(module).update(attributes)


def _imported(name: str) -> ModuleType:
    """Return the module itself. With the compiler goes its stand-in for transforms.

    The compiler and the export run models with tensors without memory.
    """
    if name != _SHAPES and not _is_being_imported("torch"):
        import_shape_kernels()
    for each in (_COMPILER, _TRANSFORMS) if name in (_COMPILER, _TRANSFORMS) else (name,):
        if isinstance(sys.modules.get(each), _StandIn):
            del sys.modules[each]
    if name == _TRANSFORMS:
        importlib.import_module(_COMPILER)
    return importlib.import_module(name)


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    # Private, but the import system has no other mark.
    return bool(getattr(spec, "_initializing", False))


def _torch_folder() -> Path:
    """Return the folder of the package without its import."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None, "torch is not installed"
    assert spec.origin is not None, "torch is not installed"
    return Path(spec.origin).parent


def _unless_without_memory(initialize: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(initialize)
    def initialize_memory(tensor: Any, *arguments: Any, **options: Any) -> Any:
        return tensor if tensor.is_meta else initialize(tensor, *arguments, **options)

    return initialize_memory


def _of_plain_sizes(name: str) -> Callable[..., bool]:
    def evaluate(condition: Any, *options: Any, **named: Any) -> bool:
        """Return a condition of plain sizes as it is; the module itself evaluates those of symbols."""
        if type(condition) is bool:
            return condition
        evaluated: bool = getattr(_imported(_SYMBOLS), name)(condition, *options, **named)
        return evaluated

    return evaluate


def _are_equal(one: Any, other: Any) -> Any:
    """Compare two shapes of plain sizes; the module itself compares others."""
    are_shapes = isinstance(one, tuple | list) and isinstance(other, tuple | list)
    if are_shapes and all(type(size) is int for size in (*one, *other)):
        return list(one) == list(other)
    return _imported(_SYMBOLS).sym_eq(one, other)


def _is_nested(size: Any) -> Any:
    return False if type(size) is int else _imported(_SYMBOLS).is_nested_int(size)


def _unchanged(function: Any = None, *_: Any, **__: Any) -> Any:
    """Decorate a function, with or without arguments of the decorator."""
    return function if function is not None else _unchanged


def _transform_on_use() -> Any:
    """Return a TransformGetItemToIndex. Masks of unusual models use it."""
    return _imported(_TRANSFORMS).TransformGetItemToIndex()


def _is_left_out() -> bool:
    return False
