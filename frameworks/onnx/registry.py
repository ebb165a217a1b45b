"""Load ONNX models from files: find the graph, check its size, choose providers, open the session."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
import structlog

from frameworks.core.devices import Device, DeviceManager, ModelNeeds
from frameworks.core.errors import InvalidModel
from frameworks.core.files import check_weight_bytes, description_folder, find_graph
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.onnx.graph_summary import GraphSummary, read_graph_summary
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.providers import ProviderChoice, ProviderRules, choose_providers, drives_cuda
from frameworks.onnx.quantization.original import Original
from frameworks.onnx.session import open_session
from frameworks.onnx.text_model import with_text
from frameworks.quantization.comparison import warn_if_slower
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import BatchModel, ModelEntry, Registry
from frameworks.tasks.architectures import find_task
from frameworks.types import QuantizationReport
from memory.pooled_arrays import PooledArrays

if TYPE_CHECKING:
    from frameworks.onnx.encoders.choice import EncoderLayers

log = structlog.get_logger(__name__)

# Factor for what a session keeps besides the weights; the real size is measured when it is loaded.
HEADROOM = 1.1


@dataclass(frozen=True, slots=True)
class TorchSide:
    """The parts of a server that need torch and transformers; each imports them when it is called.

    `with_task`: adds the task of a folder to its instances. `registry`: returns the registry of PyTorch.
    """

    with_task: Callable[[Sequence[BatchModel], OnnxModelEntry, Path], "list[BatchModel] | None"]
    registry: Callable[[], Registry]


ort.set_default_logger_severity(3)  # errors only; warnings about working graphs concern their exporter


class OnnxRegistry:
    """Loads ONNX models; see `frameworks.runtime.Registry`."""

    framework = "onnx"
    is_alone = False
    """Whether this process has no other model. Its creator sets it."""

    def __init__(
        self,
        devices: DeviceManager,
        performance: PerformanceSettings,
        max_model_bytes: int | None,
        copies: QuantizedCopies,
        enable_memory_mapping: bool = True,
        arrays: PooledArrays | None = None,
        torch: TorchSide | None = None,
    ) -> None:
        """`arrays`: buffers for large outputs; None: the session allocates them. `torch`: None in a process without."""
        self._torch = torch
        self._copies = copies
        self._arrays = arrays
        self._performance = performance
        self._max_model_bytes = max_model_bytes
        self._enable_memory_mapping = enable_memory_mapping
        if any(device.kind == "cuda" for device in devices.devices()):
            # CUDA and cuDNN are in the wheels of torch. They are found there without importing torch, and before the
            # providers are listed: a build whose CUDA provider is a plugin registers it here.
            ort.preload_dlls(directory="")
        self._rules = ProviderRules(
            tuple(ort.get_available_providers()), performance.enable_gpu, performance.enable_tensorrt
        )

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        """As Registry.needs."""
        assert isinstance(entry, OnnxModelEntry)
        original = self._original(entry, path)
        # The quantized copy is made here, before memory is reserved and the model's use is measured.
        _, report = self._graph_to_open(original)
        need = int((report.bytes_after if report else original.bytes_before) * HEADROOM)
        layers = self._layers(original)
        on_cuda = drives_cuda(entry.execution_providers, self._rules) and entry.kernels != "compiled"
        is_shared = self._shares_session(entry)
        return ModelNeeds(
            host_bytes=(need if is_shared else need * entry.instances)
            + (0 if layers is None else layers.host_bytes())
            + (entry.max_state_bytes if entry.state else 0),
            accelerator_bytes=need * entry.instances,
            wanted=entry.device,
            usable=("cuda",) if on_cuda else (),
        )

    def prepare(self, device: Device) -> None:
        """As Registry.prepare: on CUDA its context."""
        if device.kind == "cuda":
            ort.OrtValue.ortvalue_from_numpy(np.zeros(1, dtype=np.float32), "cuda", device.index)

    def load(self, entry: ModelEntry, path: Path, device: Device) -> list[BatchModel]:
        """As Registry.load."""
        assert isinstance(entry, OnnxModelEntry)
        original = self._original(entry, path)
        file, summary = original.file, original.summary
        choice = choose_providers(entry.name, entry.execution_providers, device, self._rules)
        graph, report = self._graph_to_open(original)
        self._warn_of_quantization(entry, choice, report)
        weight_bytes = report.bytes_after if report else original.bytes_before
        if choice.cuda is not None or entry.cuda_graph:
            choice = self._settle_cuda(choice, entry, graph, weight_bytes)
        # A copy has its own external data, which is always mapped.
        reads = not self._enable_memory_mapping and report is None
        read_locations = summary.external_locations if reads else frozenset[str]()
        inter_op_threads = self._performance.inter_op_threads
        session = open_session(graph, choice, original.intra_op_threads, inter_op_threads, read_locations)
        wanted, active = choice.session_providers[0][0], session.get_providers()[0]
        if active != wanted:
            log.warning("execution provider did not start", model=entry.name, provider=wanted, instead=active)
            if choice.captures is not None:
                raise InvalidModel(
                    f"{graph}: cuda_graph: expected a session on CUDA, got one on {active}; correct the installation "
                    "of CUDA and cuDNN, or remove cuda_graph"
                )
        sessions = [session]
        # A session without threads of its own runs in any number of threads at once; others would share its threads.
        shared = self._shares_session(entry) and active == "CPUExecutionProvider"
        sessions += [
            session
            if shared
            else open_session(graph, choice, original.intra_op_threads, inter_op_threads, read_locations)
            for _ in range(entry.instances - 1)
        ]
        weight_bytes *= len(set(map(id, sessions)))
        instances = [OnnxModel(each, file, choice, weight_bytes, entry, summary, self._arrays) for each in sessions]
        for each in instances:
            each.spec = replace(each.spec, quantization=report, quantized_graph=None if report is None else str(graph))
        models = self._with_content(instances, original)
        layers = self._layers(original)
        return models if layers is None else layers.choose(models, device)

    def _layers(self, original: Original) -> "EncoderLayers | None":
        """Return the choice of kernels of a model; None where ONNX Runtime computes it. Raises InvalidModel."""
        if original.entry.kernels == "onnxruntime":
            return None
        # Other models need none of it.
        from frameworks.onnx.encoders.choice import EncoderLayers

        assert self._torch is not None
        if not self._performance.enable_quantization:
            original = replace(original, entry=original.entry.model_copy(update={"quantized": None}))
        return EncoderLayers(original, self._copies, self._torch.registry)

    def _with_content(self, instances: list[OnnxModel], original: Original) -> list[BatchModel]:
        """Return the instances with the task of their folder, or with images or texts, else unchanged."""
        file, entry, summary = original.file, original.entry, original.summary
        if entry.state is not None:
            return [*instances]
        folder = description_folder(file)
        if self._torch is not None and find_task(folder, entry.task) is not None:
            with_task = self._torch.with_task(instances, entry, folder)
            if with_task is not None:
                return with_task
        if entry.image is not None or (folder / PREPROCESSOR_FILE).is_file():
            # A server without images needs none of it.
            from frameworks.onnx.image_model import declare_images

            if declare_images(instances, entry, folder, summary.activations):
                return [*instances]
        return with_text(instances, file, entry.allow_pickled_weights)

    def _settle_cuda(
        self, choice: ProviderChoice, entry: OnnxModelEntry, graph: Path, weight_bytes: int
    ) -> ProviderChoice:
        """Add the options of CUDA and TensorRT. Raises InvalidModel for a `cuda_graph` that cannot be captured."""
        # A server without CUDA needs none of it.
        from frameworks.onnx.cuda.settings import CudaLoad, settle_cuda

        sources = [graph, *sorted(read_graph_summary(graph).external_files)]
        max_rows = entry.max_batch_size or self._performance.max_batch_size
        load = CudaLoad(entry, sources, weight_bytes, max_rows, self._copies.cache_dir, self.is_alone)
        return settle_cuda(choice, load)

    def _shares_session(self, entry: OnnxModelEntry) -> bool:
        """Return whether one session on the CPU suffices for all instances."""
        return self._performance.num_intra_op_threads(entry.instances) == 1 and self._performance.inter_op_threads == 1

    def _original(self, entry: OnnxModelEntry, path: Path) -> Original:
        """Return the model's files. Raises InvalidModel if they are absent or too large."""
        file = graph_file(path)
        summary = read_graph_summary(file)
        weight_bytes = weight_bytes_of(file, summary)
        check_weight_bytes(file, weight_bytes, self._max_model_bytes)
        return Original(file, summary, entry, weight_bytes, self._performance.num_intra_op_threads(entry.instances))

    def _graph_to_open(self, original: Original) -> tuple[Path, QuantizationReport | None]:
        """Return the model's own graph, or its quantized copy if the entry requests it. Raises InvalidModel."""
        entry = original.entry
        if not entry.quantized or entry.kernels == "compiled" or not self._performance.enable_quantization:
            return original.file, None
        from frameworks.onnx.quantization.copy import quantized_graph

        return quantized_graph(original, self._copies)

    def _warn_of_quantization(
        self, entry: OnnxModelEntry, choice: ProviderChoice, report: QuantizationReport | None
    ) -> None:
        first = choice.session_providers[0][0]
        if entry.quantized and not self._performance.enable_quantization:
            log.warning("not quantized: performance.enable_quantization is false", model=entry.name)
        elif entry.quantized and entry.kernels != "compiled" and first != "CPUExecutionProvider":
            log.warning(
                "dynamic int8 runs on the CPU: remove quantized to use the GPU", model=entry.name, provider=first
            )
        if report is not None:
            warn_if_slower(report, entry.name, "remove quantized")


def graph_file(path: Path) -> Path:
    """Return the graph of a model path, which is a file or a folder that has one. Raises InvalidModel."""
    if path.is_file():
        return path
    graph = find_graph(path)
    if graph is not None:
        return graph
    if not path.exists():
        raise InvalidModel(f"{path}: no such file or folder")
    graphs = sorted(each.relative_to(path).as_posix() for each in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx")))
    hint = f"set path to one of its files: {', '.join(graphs)}" if graphs else "name the graph model.onnx"
    raise InvalidModel(f"{path}: expected a model.onnx in the folder; {hint}")


def weight_bytes_of(file: Path, summary: GraphSummary) -> int:
    """Return the bytes on disk of a graph and of its external data."""
    return sum(path.stat().st_size for path in {file, *summary.external_files})
