"""The kernels of encoders: compiled layers or packed weights on a CPU, and runs of texts without padding.

The first start on a machine compiles for some seconds. The model serves with torch's kernels meanwhile.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import structlog
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.pytorch.compiled.cpu_features import lanes
from frameworks.pytorch.cpu_layers.packed import pack_layers
from frameworks.pytorch.device.graphs import graphs_of
from frameworks.pytorch.device.queue import StreamQueue
from frameworks.pytorch.encoder_layers.layers import compiled_in
from frameworks.pytorch.encoders.encoder import EncoderModel

if TYPE_CHECKING:
    from concurrent.futures import Future

    from frameworks.pytorch.encoders.packed_texts import PackedTexts

log = structlog.get_logger(__name__)


def choose_kernels(model: torch.nn.Module, entry: TorchModelEntry, device: Device) -> None:
    """Compile the layers of the encoders in a model, or pack its weights, where that is faster or the entry says it.
    Where the code is not in the cache, the model serves with torch's kernels meanwhile.

    Raises InvalidModel for a name that does not suit the model.
    """
    kernels = EncoderKernels(entry, device, 0)
    kernels.choose(model)
    kernels.choose_later(ref(model))


class EncoderKernels:
    """The choice for one model of texts. Used by the thread that loads it."""

    def __init__(self, entry: TorchModelEntry, device: Device, max_texts: int) -> None:
        """`max_texts`: of a run."""
        self._entry, self._device, self._max_texts = entry, device, max_texts
        self._is_compiled = device.kind == "cpu" and lanes() > 0
        self._code: Future[None] | None = None
        self._waiting: Sequence[EncoderModel] = ()
        """Models whose spec says that they await kernels."""

    @property
    def awaits_code(self) -> bool:
        """Whether the kernels are chosen when their code has been compiled."""
        return self._code is not None

    def choose(self, model: torch.nn.Module) -> None:
        """Compile the layers of a model, or pack their weights, where that is faster or the entry says it; later, where
        the code is not in the cache. Raises InvalidModel for a name that does not suit the model.
        """
        if self._is_compiled:
            # A server without compiled kernels needs none of it.
            from frameworks.pytorch.encoder_layers.choice import code_of_layers, compile_layers

            self._code = code_of_layers(model, self._entry.kernels, self._entry.name)
            if self._code is not None:
                return
            if compile_layers(model, self._entry.kernels):
                pack_layers(model, "auto")
                return
        elif self._entry.kernels == "compiled" and self._device.kind == "cpu":
            raise InvalidModel(
                'kernels: expected another value than "compiled", as nothing is compiled on this machine: that needs '
                "Linux, numba, and AVX2 or NEON; remove it"
            )
        pack_layers(model, self._entry.kernels)

    def choose_later(self, model: "ReferenceType[torch.nn.Module]") -> None:
        """Choose when the code has been compiled, if that is awaited."""

        def change() -> None:
            module = model()
            if module is not None:
                self.choose(module)

        self._when_compiled(change)

    def let_run(self, models: Sequence[EncoderModel], spare: EncoderModel | None, max_tokens: int) -> None:
        """Let models run texts without padding, where their kernels can; their warm-up tries it.

        `models`: all instances. `spare`: another one, for the trial beside them, if `awaits_code`. `max_tokens`: of a
        text.
        """
        module = models[0].module
        assert module is not None
        packed = self._packed_texts(module, max_tokens)
        for each in models:
            each.packed = packed
        if spare is not None:
            self._waiting = models
            self._note_awaiting(is_awaiting=True)
            self._when_compiled(partial(self._change, models, spare, max_tokens))

    def _packed_texts(self, model: torch.nn.Module, max_tokens: int) -> "PackedTexts | None":
        """Return the runs of a model without padding; None where it has neither compiled layers nor CUDA."""
        device = torch.device(self._device.id)
        compiled = compiled_in(model)
        if not compiled and device.type != "cuda":
            return None
        # A server without them needs none of it.
        from frameworks.pytorch.encoders.packed_layers import PackedLayers
        from frameworks.pytorch.encoders.packed_texts import PackedTexts
        from frameworks.pytorch.encoders.varlen_attention import flash_attention, unavailable_because

        if compiled:
            layers = PackedLayers(model, None, compiled[0])
            if len(compiled) > 1:
                layers.reason = "its encoders cannot tell whose texts they compute"
        else:
            layers = PackedLayers(model, flash_attention)
            layers.reason = layers.reason or unavailable_because(device, next(model.parameters()).dtype)
        return PackedTexts(layers, device, StreamQueue(device), graphs_of(device), self._max_texts, max_tokens)

    def _when_compiled(self, change: Callable[[], None]) -> None:
        """Call `change` on a thread of its own when the code has been compiled, if that is awaited."""
        if self._code is not None:
            self._code.add_done_callback(partial(self._begin, change))

    def _begin(self, change: Callable[[], None], code: "Future[None]") -> None:
        error = code.exception()
        if error is None:
            threading.Thread(target=self._run, args=(change,), name="compile-layers", daemon=True).start()
        else:
            self._warn(str(error))
            self._note_awaiting(is_awaiting=False)

    def _note_awaiting(self, *, is_awaiting: bool) -> None:
        for each in self._waiting:
            each.spec = replace(each.spec, awaits_kernels=is_awaiting)

    def _run(self, change: Callable[[], None]) -> None:
        try:
            change()
        except Exception as error:  # noqa: BLE001 - the model serves on with the kernels that it has
            self._warn(f"{type(error).__name__}: {error}")
        else:
            log.info("the kernels of a model are chosen", model=self._entry.name)
        finally:
            self._note_awaiting(is_awaiting=False)

    def _change(self, models: Sequence[EncoderModel], spare: EncoderModel, max_tokens: int) -> None:
        """Change the kernels of models that serve."""
        module = models[0].module
        if module is None:
            return  # closed meanwhile
        self.choose(module)
        spare.packed = self._packed_texts(module, max_tokens)
        spare.warm_up()
        for each in models:
            each.packed = spare.packed
            # The batcher reads in it whether texts are padded.
            each.spec = replace(each.spec, text=spare.spec.text)

    def _warn(self, reason: str) -> None:
        name = self._entry.name
        log.warning("the model keeps torch's kernels instead of compiled ones", model=name, reason=reason)
