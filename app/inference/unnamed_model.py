"""Find the model that a request means which names none: the only one that can answer it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.models.versions.slot import ModelSlot
from frameworks.types import ModelSpec

Kind = Literal["generate", "embed", "classify", "rerank", "task"]
"""A task. `rerank`: a classification model with one label, a cross-encoder; `classify`: one with more labels. `task`:
one that a pipeline of transformers serves.
"""

_MAX_NAMES = 10
_MAX_SHOWN_CHARACTERS = 64
_VERBS: dict[Kind, str] = {
    "generate": "generate text",
    "embed": "embed texts",
    "classify": "classify texts",
    "rerank": "rank texts",
    "task": "have a task of a pipeline",
}


@dataclass(frozen=True, slots=True)
class UnnamedModel:
    """Stands for the name that a request omits. `field`: where the caller can name the model.

    `kinds`: the model is the only one of the first kind that any model has. `placeholder`: the name that the client
    sends instead; a model or an alias of this name is meant first.
    """

    kinds: tuple[Kind, ...]
    field: str = "model"
    placeholder: str | None = None

    def name_in(self, slots: Iterable[ModelSlot]) -> str:
        """Return the name of the model. Raises InvalidInput, which names the candidates, if there is not exactly one.

        A model that was never loaded is meant if it is alone and no other model has one of the kinds. Among models that
        generate text, the only one that reads no images is meant.
        """
        slots = list(slots)
        if self.placeholder is not None and any(self.placeholder in slot.names for slot in slots):
            return self.placeholder
        by_kind: dict[Kind | Literal["tensor"] | None, list[str]] = {}
        for slot in slots:
            by_kind.setdefault(_kind_of(slot), []).append(slot.name)
        kind = next((kind for kind in self.kinds if kind in by_kind), None)
        names = by_kind.get(kind, [])
        if len(names) == 1:
            return names[0]
        if kind == "generate":
            of_texts = [slot.name for slot in slots if _kind_of(slot) == kind and not _sees(slot)]
            if len(of_texts) == 1:
                return of_texts[0]
        name = "none" if self.placeholder is None else f'"{self.placeholder[:_MAX_SHOWN_CHARACTERS]}"'
        given = f"expected a model name, got {name}, and {self._found(kind, names)}; name one"
        raise InvalidInput(self.field, given)

    def _found(self, kind: Kind | None, names: list[str]) -> str:
        if kind is None:
            tasks = dict.fromkeys("classify" if each == "rerank" else each for each in self.kinds)
            return f"no model whose task is {' or '.join(tasks)} is loaded"
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return f"{', '.join(names[:_MAX_NAMES])}{more} {_VERBS[kind]}"


def kind_of(spec: ModelSpec) -> Kind | None:
    """Return the kind of a model; None for a tensor model, and for one that reads only images."""
    if spec.pipeline is not None:
        return "task"
    if spec.text is None and spec.generation is None:
        return None
    match spec.task:
        case "classify":
            return "rerank" if len(spec.labels) == 1 else "classify"
        case "embed":
            return "embed"
        case "generate":
            return "generate"
    return None


def last_spec_of(slot: ModelSlot) -> ModelSpec | None:
    """Return the spec of a model, also after its eviction; None before its first load.

    Raises RoundhouseError for a failed or unloaded model.
    """
    return slot.active.known_spec() if slot.spec is None else slot.spec


def _sees(slot: ModelSlot) -> bool:
    """Return whether a model that generates text reads images too."""
    spec = last_spec_of(slot)
    return spec is not None and spec.generation is not None and spec.generation.vision is not None


def _kind_of(slot: ModelSlot) -> Kind | Literal["tensor"] | None:
    """Return the kind of a model, also after its eviction; None before its first load."""
    try:
        spec = last_spec_of(slot)
    except RoundhouseError:  # it answers nothing
        return "tensor"
    return None if spec is None else kind_of(spec) or "tensor"
