"""numba's cache of one compiled function, in a file that is checked before it is used."""

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from frameworks.core.machine_code.code_files import DamagedCode, read_code, write_code
from frameworks.pytorch.compiled.cache import code_cache

log = structlog.get_logger(__name__)


class CachedFunction(_Cache):  # type: ignore[misc]
    """The code of a function in the folder of `code_cache`. numba calls it with its compiler's lock held."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """`name`: of the code, see `jit.code_name`."""
        self._function, self._name = function, name
        self._folder = code_cache.current_folder()

    @property
    def cache_path(self) -> str | None:
        """As numba's."""
        return None if self._folder is None else str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function, None where it has to be compiled. No damage of the file raises an error."""
        if self._folder is None:
            return None
        target_context.refresh()
        file = code_cache.code_file(self._folder, self._name)
        try:
            content = read_code(file, code_cache.code_key(self._name))
            if content is None:
                return None
            key, payload = pickle.loads(content)  # noqa: S301 - its digest is that of what this server wrote
            if key == self._key(sig, target_context.codegen()):
                return CompileResult._rebuild(target_context, *payload)
            reason = "it was made from another source"
        except DamagedCode as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever numba and LLVM do not read is compiled again
            reason = f"{type(error).__name__}: {error}"
        code_cache.warn_of_damage(file, reason)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the compiled function. Raises OSError in a process that compiles only to fill the cache."""
        if self._folder is None:
            return
        assert not data.library.has_dynamic_globals, f"{self._name}: the code has addresses of this process"
        content = dumps((self._key(sig, data.codegen), data._reduce()))
        try:
            write_code(code_cache.code_file(self._folder, self._name), code_cache.code_key(self._name), content)
        except OSError as error:
            if code_cache.only_fills_cache():
                raise
            log.warning("compiled code could not be kept", error=str(error), remedy="make room in models.cache_dir")

    def _key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        """Return the types, the CPU and the source, as numba's own index has them."""
        code, closure = self._function.__code__, self._function.__closure__
        values = b"" if closure is None else dumps(tuple(cell.cell_contents for cell in closure))
        source = Path(code.co_filename).read_bytes() + values
        return str(sig), codegen.magic_tuple(), code.co_code, hashlib.sha256(source).hexdigest()

    def enable(self) -> None:
        """As numba's: it is always enabled."""

    def disable(self) -> None:
        """As numba's: it is always enabled."""

    def flush(self) -> None:
        """As numba's: a file is replaced when it is written."""
