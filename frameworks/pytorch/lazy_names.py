"""List the classes of transformers when one is not found, instead of at its import.

At its import transformers reads the files of its 450 architectures, twice, to list their classes. A served model uses
the classes that choose an architecture, which are all in one folder, and then imports the module of its own.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_LISTS = "transformers.utils.import_utils"
_ARCHITECTURES, _CHOOSING = "models", "auto"
_Names = dict[frozenset[str], dict[str, set[str]]]


def list_classes_when_used() -> None:
    """Call it before transformers is imported; it has no effect after. Unknown versions are left unchanged."""
    if _LISTS not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Changes the module of the lists after its import. Removes itself before."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _LISTS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            loader.exec_module = partial(_import_and_change, loader.exec_module)
        return spec


def _import_and_change(execute: Callable[[ModuleType], None], lists: ModuleType) -> None:
    execute(lists)
    if hasattr(lists, "define_import_structure") and hasattr(lists, "_LazyModule"):
        _change(lists)


class _NamesOfOneFolder(dict[frozenset[str], dict[str, set[str]]]):
    """The names of the classes that choose an architecture."""

    def __init__(self, names: _Names, list_all: Callable[[], _Names]) -> None:
        """`list_all`: returns the names of all architectures."""
        super().__init__(names)
        self.list_all = list_all

    def complete(self) -> _Names:
        """Return the names of all architectures, with those that were added here."""
        names = self.list_all()
        for libraries, modules in self.items():
            names.setdefault(libraries, {}).update(modules)
        return names


def _change(lists: Any) -> None:
    architectures = Path(lists.__file__).parents[1] / _ARCHITECTURES
    lists.define_import_structure = partial(_define, lists.define_import_structure, architectures)
    lists._LazyModule = _complete_when_used(lists._LazyModule)


def _define(define: Callable[..., _Names], architectures: Path, module_path: str | Path, prefix: str = "") -> _Names:
    """Return the names of the classes in a folder, or in that of a file. Of all architectures: those of one folder."""
    if Path(module_path) not in (architectures, architectures / "__init__.py"):
        return define(module_path, prefix or None)
    names = define(architectures / _CHOOSING, f"{prefix}.{_CHOOSING}" if prefix else _CHOOSING)
    return _NamesOfOneFolder(names, partial(define, architectures, prefix or None))


def _complete_when_used(lazy_module: Any) -> type[ModuleType]:
    class CompleteWhenUsed(lazy_module):  # type: ignore[misc]
        """A lazy module whose names may be those of one folder."""

        def __init__(self, name: str, file: str, names: _Names, *arguments: Any, **options: Any) -> None:
            super().__init__(name, file, names, *arguments, **options)
            self._is_complete = not isinstance(names, _NamesOfOneFolder)
            if isinstance(names, _NamesOfOneFolder):
                # __getattr__ returns the complete list.
                del self.__all__
                self._complete_with: Callable[[], Any] = lambda: lazy_module(
                    name, file, names.complete(), *arguments, **options
                )

        @cached_property
        def _complete(self) -> Any:
            return self._complete_with()

        def __getattr__(self, name: str) -> Any:
            # Python looks at other such names of any module.
            is_internal = name.startswith("__") and name != "__all__"
            if self._is_complete or is_internal or name in self._class_to_module or name in self._modules:
                return super().__getattr__(name)
            # Not by the lookup of the base: for a tokenizer that is not listed it tries the names of all others.
            module = f"{self.__name__}.{name}"
            if PathFinder.find_spec(module, self.__path__) is not None:
                return import_module(module)
            return getattr(self._complete, name)

        def __dir__(self) -> list[str]:
            return super().__dir__() if self._is_complete else dir(self._complete)

    return CompleteWhenUsed
