"""Find outputs of a graph that are inputs of its next step, by their names, dtypes and shapes. Pure."""

import re
from collections.abc import Sequence

from frameworks.core.errors import InvalidModel
from frameworks.types import TensorType, ValueSpec

_BREAKS = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])", re.ASCII)
# Words that tell the state before a step from the state after it.
_BEFORE = frozenset({"past", "prev", "previous", "in", "input", "init", "initial", "old", "last"})
_AFTER = frozenset({"present", "next", "new", "out", "output", "n", "updated"})
_EITHER = frozenset({"cur", "curr", "current"})
_SHOWN = 8


def find_pairs(inputs: Sequence[ValueSpec], outputs: Sequence[ValueSpec]) -> dict[str, str]:
    """Return the output of each input that is a state. Raises InvalidModel where there is none, or several."""
    found: dict[str, list[str]] = {}
    for given in inputs:
        related = [each.name for each in outputs if _may_be_state(given, each)]
        # Beside `present_h`, an output `h` is a copy for callers.
        stems = _stems(given.name, _BEFORE, "0")
        marked = [name for name in related if tuple(word.lower() for word in _words(name)) not in stems]
        if related:
            found[given.name] = marked if len(marked) == 1 else related
    taken: dict[str, list[str]] = {}
    for name, related in found.items():
        for output in related:
            taken.setdefault(output, []).append(name)
    unclear = [
        f'"{name}" may be {_listed(related)}' for name, related in (*found.items(), *taken.items()) if len(related) > 1
    ]
    if unclear:
        raise InvalidModel(
            f"state: expected one output for each input with a state, got several: {'; '.join(unclear[:_SHOWN])}; "
            "name the pairs in [[models.onnx_models.state]]"
        )
    if not found:
        raise InvalidModel(
            "state: expected an input and an output of one dtype and shape with related names, like h and hn, got "
            f"the inputs {_listed([each.name for each in inputs])} and the outputs "
            f"{_listed([each.name for each in outputs])}; name the pairs in [[models.onnx_models.state]]"
        )
    return {name: related[0] for name, related in found.items()}


def fits(given: ValueSpec, returned: ValueSpec) -> bool:
    """Whether an output may be an input of the next step: one dtype, and no dimension that differs."""
    if not isinstance(given.type, TensorType) or given.type.dtype == "string":
        return False
    if not isinstance(returned.type, TensorType) or returned.type.dtype != given.type.dtype:
        return False
    before, after = given.shape, returned.shape
    if before is None or after is None:
        return True
    return len(before) == len(after) and all(
        -1 in (one, other) or one == other for one, other in zip(before, after, strict=True)
    )


def _may_be_state(given: ValueSpec, returned: ValueSpec) -> bool:
    if given.name == returned.name or not fits(given, returned):
        return False
    return not _stems(given.name, _BEFORE, "0").isdisjoint(_stems(returned.name, _AFTER, "nN"))


def _stems(name: str, own_words: frozenset[str], marks: str) -> set[tuple[str, ...]]:
    """Return what may be left of a name without the words of its side, and without a mark at its end (`h0`, `hn`)."""
    words = _words(name)
    kept = _without(words, own_words)
    stems = {kept}
    last = words[-1] if words else ""
    if last[-1:] and last[-1] in marks and not last[-2:-1].isdigit():
        stems.add(_without([*words[:-1], last[:-1]], own_words))
    # As Hugging Face names them: past_key_values.0.key becomes present.0.key.
    if kept[:2] == ("key", "values"):
        stems.add(kept[2:])
    return {stem for stem in stems if stem}


def _words(name: str) -> list[str]:
    return [word for word in _BREAKS.split(name) if word]


def _without(words: Sequence[str], own_words: frozenset[str]) -> tuple[str, ...]:
    lower = [word.lower() for word in words if word]
    return tuple(word for word in lower if word not in own_words and word not in _EITHER)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name[:100]}"' for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
