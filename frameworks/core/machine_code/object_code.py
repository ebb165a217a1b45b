"""Compile a function in another process, and link it here by LLVM alone: numba would hold the interpreter's lock for
half a second, and keep 70 MB.

A module has `compiled_function`, which takes the address of its arguments. LLVM itself takes 0.1 s and 45 MB.
"""

import ctypes
import fcntl
import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from typing import Any

from frameworks.core.machine_code.code_files import SUFFIX, DamagedCode, read_code, write_code
from frameworks.core.machine_code.processes import end_with_parent, run_module

_NAME = "compiled_function"
_NICENESS = 10
_TIMEOUT_S = 600.0
_linked: list[Any] = []


class NoMachineCode(Exception):
    """The function cannot be compiled or linked here; the message has the reason."""


def is_available() -> bool:
    """Whether numba is installed; it is not imported."""
    return util.find_spec("numba") is not None and util.find_spec("llvmlite") is not None


def link(module: str, folder: Path) -> Callable[[int], None]:
    """Return the function of a module, compiled for this CPU. Its code is cached in the folder, which is made.

    The function releases the interpreter's lock. Blocks for seconds where the code is not cached. Raises NoMachineCode.
    """
    try:
        key = _key(module)
        file = folder / f"{module.rpartition('.')[2]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{SUFFIX}"
        content = _read(file, key)
        if content is None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            run_module(__name__, [module, str(file), key], _TIMEOUT_S)
            content = _read(file, key)
        if content is None:
            raise NoMachineCode("the compiled code was not kept")
        return _linked_function(content)
    except (ImportError, OSError, RuntimeError) as error:
        raise NoMachineCode(str(error)) from error


def _read(file: Path, key: str) -> bytes | None:
    try:
        return read_code(file, key)
    except DamagedCode:
        return None  # it is compiled again, and replaced


def _key(module: str) -> str:
    """Return a name for the source, the compilers and the CPU."""
    from llvmlite import binding

    found = util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    sources = hashlib.sha256()
    for path in (*sorted(Path(found.origin).parent.glob("*.py")), Path(__file__)):
        sources.update(path.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("llvmlite", "numba")]
    features = os.environ.get("NUMBA_CPU_FEATURES") or binding.get_host_cpu_features().flatten()
    cpu = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    return " ".join((module, *versions, cpu, features, sources.hexdigest()))


def _linked_function(content: bytes) -> Callable[[int], None]:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(content))
    engine.finalize_object()
    _linked.append(engine)  # it owns the code
    function: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address(_NAME))
    return function


def compile_function(module: str) -> bytes:
    """Compile the function of a module by numba, and return its object file."""
    from llvmlite import binding
    from numba import types
    from numba.core.ccallback import CFunc
    from numba.core.registry import cpu_target

    function = getattr(import_module(module), _NAME)
    signature = types.void(types.CPointer(types.int64))
    made: Any = CFunc(function, (signature.args, signature.return_type), {}, {"error_model": "numpy"})
    made.compile()
    optimized = binding.parse_assembly(made._library.get_llvm_str())
    outside = [each.name for each in optimized.functions if each.is_declaration and not each.name.startswith("llvm.")]
    assert not outside, f"{module} calls functions of numba: {outside}"
    optimized.get_function(made._wrapper_name).name = _NAME
    code: bytes = cpu_target.target_context.codegen()._tm.emit_object(optimized)
    return code


def main() -> None:
    """Compile the function of a module into a file: the process of `link`."""
    module, name, key = sys.argv[1:]
    end_with_parent()
    os.nice(_NICENESS)
    file = Path(name)
    # Processes that need the same code wait here, before they take memory for numba.
    with (file.parent / f".{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _read(file, key) is None:
            write_code(file, key, compile_function(module))


if __name__ == "__main__":
    main()
