"""The vision part of a model: transformers' tower and projector, and a cache of the vectors that they computed."""

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch

from frameworks.generation.media import ImageGroup
from frameworks.pytorch.cpu_layers.packed import PackedLayer
from frameworks.pytorch.generation.vision.activations import ActivationPeak
from frameworks.pytorch.generation.vision.paced_run import PacedThread
from frameworks.pytorch.generation.weights.packed.modules import PackedModule

MAX_CACHED_BYTES = 64 * 1024**2
"""Bytes of vectors that are kept for images of later requests."""


# transformers' functions.
_OF_IMAGES, _OF_VIDEOS = "get_image_features", "get_video_features"
# Modules between which a slice of time may end.
_LONG = (
    *(torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.LayerNorm),
    *(PackedModule, PackedLayer),
)


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """Of the image tokens of a group, in their order: `vectors` [tokens, hidden size], and `deep`, the same for each of
    the first layers, whose outputs they are added to (Qwen3-VL).
    """

    vectors: torch.Tensor
    deep: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.vectors, *self.deep))


class VisionTower:
    """Used by one thread."""

    def __init__(self, whole: Any, max_cached_bytes: int = MAX_CACHED_BYTES) -> None:
        """`whole`: transformers' model, on its device and in its dtype. Raises AttributeError where it has no
        `get_image_features`.
        """
        self._whole = whole
        self._thread: PacedThread[ImageVectors] | None = None
        self._begun: tuple[str, int] | None = None
        self._base = _base_of(whole)
        getattr(self._base, _OF_IMAGES)
        self._device: torch.device = whole.device
        for module in whole.modules():
            if type(module).__name__.endswith("VisionEmbeddings"):
                module.register_forward_hook(_contiguous)
        self._max_cached_bytes = max_cached_bytes
        self._cached: OrderedDict[tuple[str, int], ImageVectors] = OrderedDict()
        self.cached_bytes = 0

    def clear(self) -> None:
        """Forget all vectors."""
        self._cached.clear()
        self.cached_bytes = 0

    def pace(self, name: str, intra_op_threads: int) -> None:
        """Compute in slices of time from now on, on a CPU: steps of running texts are between them."""
        if self._device.type == "cpu":
            language = set(self._whole.get_decoder().modules())
            modules = [each for each in self._whole.modules() if isinstance(each, _LONG) and each not in language]
            self._thread = PacedThread(f"vision-{name}", modules, intra_op_threads)

    def close(self) -> None:
        """End the thread of slices."""
        if self._thread is not None:
            self._thread.close()

    def has(self, group: ImageGroup, scope: str) -> bool:
        """Return whether the vectors of a group are computed."""
        return (scope, group.key) in self._cached

    def work(self, group: ImageGroup, scope: str, seconds: float) -> bool:
        """Compute the vectors of a group, for about so long; return whether they are there. Another group that was
        begun is dropped. Raises as `vectors_of`.
        """
        key = scope, group.key
        thread = self._thread
        if thread is None or key in self._cached:
            self.vectors_of(group, scope)
            return True
        if self._begun != key:
            thread.cancel()
            self._begun = key
        if not thread.is_busy:
            thread.begin(partial(self.compute, group.inputs))
        try:
            vectors = thread.advance(seconds)
        except BaseException:
            self._begun = None
            raise
        if vectors is None:
            return False
        self._begun = None
        self._keep(key, group, vectors)
        return True

    def vectors_of(self, group: ImageGroup, scope: str) -> ImageVectors:
        """Return the vectors of a group's tokens; those of equal files are computed once.

        `scope`: of the tenant; the vectors of others are not read. Raises ValueError where there are more or fewer
        vectors than tokens, and as the modules.
        """
        key = scope, group.key
        known = self._cached.get(key)
        if known is not None:
            self._cached.move_to_end(key)
            return known
        return self._keep(key, group, self.compute(group.inputs))

    def _keep(self, key: tuple[str, int], group: ImageGroup, vectors: ImageVectors) -> ImageVectors:
        num_tokens = sum(end - first for first, end in group.spans)
        if len(vectors.vectors) != num_tokens:
            raise ValueError(f"expected vectors of {num_tokens} image tokens, got {len(vectors.vectors)}")
        self._cached[key] = vectors
        self.cached_bytes += vectors.nbytes
        while self.cached_bytes > self._max_cached_bytes and len(self._cached) > 1:
            _, evicted = self._cached.popitem(last=False)
            self.cached_bytes -= evicted.nbytes
        return vectors

    def compute(self, inputs: Mapping[str, Any]) -> ImageVectors:
        """Return the vectors of images or of videos from the tensors of transformers' processor."""
        features = getattr(self._base, _OF_VIDEOS if "pixel_values_videos" in inputs else _OF_IMAGES)
        names = inspect.signature(features).parameters
        own = {name: _on(value, self._device) for name, value in inputs.items() if name in names}
        with torch.inference_mode():
            output = features(**own, return_dict=True)
            deep = getattr(output, "deepstack_features", None) or ()
            return ImageVectors(_rows(output.pooler_output), tuple(_rows(each) for each in deep))


class RememberedFeatures:
    """Lets transformers' model compute the features of equal pixels once, from its creation to `end`: the passes of a
    trial read the same images.
    """

    def __init__(self, whole: Any) -> None:
        """`whole`: transformers' model. One without such functions is left as it is."""
        self._base = _base_of(whole)
        self.bytes_per_vector = 0.0
        """Bytes that the tower took for each vector while it computed; 0 where nothing was computed."""
        self._found: dict[bytes, Any] = {}
        for name in (_OF_IMAGES, _OF_VIDEOS):
            if hasattr(self._base, name):
                setattr(self._base, name, self._once(getattr(self._base, name)))

    def forget(self) -> None:
        """Compute the features again, as the model has changed."""
        self._found.clear()

    def end(self) -> None:
        """Forget the features, and keep no further ones. Harmless when repeated."""
        self._found.clear()
        for name in (_OF_IMAGES, _OF_VIDEOS):
            vars(self._base).pop(name, None)

    def _once(self, features: Callable[..., Any]) -> Callable[..., Any]:
        # transformers reads the signature of the function.
        @wraps(features)
        def remembered(*arguments: Any, **options: Any) -> Any:
            if arguments:
                return features(*arguments, **options)
            key = _key_of(features.__name__, options)
            if key not in self._found:
                with ActivationPeak() as peak:
                    output = self._found[key] = features(**options)
                vectors = getattr(output, "pooler_output", None)
                if vectors is not None:
                    self.bytes_per_vector = max(self.bytes_per_vector, peak.peak_bytes / max(1, len(_rows(vectors))))
            return self._found[key]

        return remembered


def _base_of(whole: Any) -> Any:
    """Return the model within a model that computes features."""
    return whole.model if hasattr(getattr(whole, "model", None), _OF_IMAGES) else whole


def _key_of(name: str, options: Mapping[str, Any]) -> bytes:
    digest = hashlib.blake2b(name.encode())
    for option, value in sorted(options.items()):
        is_tensor = isinstance(value, torch.Tensor)
        digest.update(f"{option} {value.dtype} {tuple(value.shape)}".encode() if is_tensor else repr(value).encode())
        if is_tensor:
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()


def _contiguous(_: torch.nn.Module, __: Any, output: Any) -> Any:
    """Return the output in rows: patches of a convolution are in columns, which each norm of the tower would copy."""
    return output.contiguous() if isinstance(output, torch.Tensor) else output


def _rows(features: Any) -> torch.Tensor:
    """Return the rows of one tensor […, size], or of several in their order: [tokens, size]."""
    if isinstance(features, torch.Tensor):
        return features.reshape(-1, features.shape[-1])
    return torch.cat([each.reshape(-1, each.shape[-1]) for each in features])


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value
