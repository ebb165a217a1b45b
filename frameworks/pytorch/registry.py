"""Load PyTorch models from Hugging Face folders: read the files, choose task, dtype and device."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import torch

from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidModel
from frameworks.core.files import check_weight_bytes
from frameworks.core.settings.entries import Dtype, TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch import device_kernels
from frameworks.pytorch.compiled.cache.code_cache import set_cache_folder
from frameworks.pytorch.device.pinned import PINNED, PinnedBuffers
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.encoders.images.folders import find_images
from frameworks.pytorch.encoders.loading import EncoderLoading, ModelFiles, load_encoders
from frameworks.pytorch.entry_checks import check_entry_of_task, check_kind, check_packed, check_task, embeds_images
from frameworks.pytorch.loader import DTYPES, default_dtype, page_in_kernels
from frameworks.pytorch.needed_bytes import NeededBytes, dtype_of, dtype_of_weights, dtype_on
from frameworks.pytorch.packed_files import read_files
from frameworks.pytorch.quantize import check_bits_run_on
from frameworks.pytorch.tasks.needs import task_bytes
from frameworks.pytorch.weights import read_weight_files
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import ModelEntry
from frameworks.tasks.architectures import find_task
from frameworks.text.config import read_text_config
from frameworks.text.gguf.folder import GgufFolders
from frameworks.text.pair_scores import Answers
from frameworks.text.sentence_modules.router import Side, Sides, read_sides
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from frameworks.pytorch.encoders.images.encoder import ImageModel
    from frameworks.pytorch.encoders.seeing.model import SeeingModel
    from frameworks.pytorch.encoders.sides import SidedModel
    from frameworks.pytorch.generation.loading.served import GeneratorLoad, GeneratorPerformance
    from frameworks.pytorch.generation.step.engine import GeneratingModel
    from frameworks.pytorch.generation.weights.linear_makers import Bits
    from frameworks.pytorch.tasks.model import TaskModel

log = structlog.get_logger(__name__)


class TorchRegistry:
    """Loads encoders and language models; see `frameworks.runtime.Registry`."""

    framework = "pytorch"

    def __init__(
        self,
        performance: PerformanceSettings,
        max_model_bytes: int | None,
        copies: QuantizedCopies,
        enable_memory_mapping: bool = True,
        pool: TensorPool | None = None,
        ageing_s: float = 1.0,
    ) -> None:
        """`pool`: of buffers for tokens of a GPU; None: pageable memory. `ageing_s`: after which a waiting
        text gains a level of priority.
        """
        self._ageing_s = ageing_s
        self._copies = copies
        self._gguf_folders = GgufFolders(copies.cache_dir)
        set_cache_folder(copies.cache_dir / "compiled")
        device_kernels.set_code_folder(copies.cache_dir / "triton")
        self._pool = pool
        if pool is not None and torch.cuda.is_available():
            pool.add_device(PINNED, PinnedBuffers())
        self._performance = performance
        self._needed_bytes = NeededBytes(performance)
        self._max_model_bytes = max_model_bytes
        self._enable_memory_mapping = enable_memory_mapping

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        """As Registry.needs."""
        assert isinstance(entry, TorchModelEntry)
        task = find_task(path, entry.task)
        if task is not None:
            weights, rows = read_weight_files(path), self._needed_bytes.max_rows(entry)
            sizes = [DTYPES[dtype_of_weights(entry, weights, kind)].itemsize for kind in ("cpu", "cuda")]
            host_bytes, accelerator_bytes = (task_bytes(path, task, weights, rows, size) for size in sizes)
            return ModelNeeds(host_bytes, accelerator_bytes, entry.device, _usable_accelerators())
        sides = read_sides(path)
        if sides is not None:
            both = [self._read(entry, path, side) for side in (sides.documents, sides.queries)]
            host_bytes, accelerator_bytes = (
                sum(self._needed_bytes.of(each, kind) for each in both) for kind in ("cpu", "cuda")
            )
            return ModelNeeds(host_bytes, accelerator_bytes, entry.device, _usable_accelerators())
        files = self._read(entry, path)
        wanted: str | tuple[str, ...] = entry.device
        if entry.tensor_parallel > 1 and files.config.generates:
            wanted = self._rank_devices(files)
        host_bytes, accelerator_bytes = self._needed_bytes.of(files, "cpu"), self._needed_bytes.of(files, "cuda")
        if entry.draft_model is not None and files.config.generates:
            host_bytes += self._needed_bytes.of(self._read_draft(files, "cpu"), "cpu")
            accelerator_bytes += self._needed_bytes.of(self._read_draft(files, "cuda"), "cuda")
        return ModelNeeds(host_bytes, accelerator_bytes, wanted, _usable_accelerators())

    def prepare(self, device: Device) -> None:
        """As Registry.prepare: CUDA's context takes half a gigabyte."""
        page_in_kernels(device)

    def load(
        self, entry: ModelEntry, path: Path, device: Device
    ) -> (
        "list[EncoderModel] | list[SidedModel] | list[GeneratingModel] | list[ImageModel] | list[SeeingModel]"
        " | list[TaskModel]"
    ):
        """As Registry.load."""
        assert isinstance(entry, TorchModelEntry)
        task = find_task(path, entry.task)
        if task is not None:
            return self._load_task(entry, path, device, task)
        sides = read_sides(path)
        if sides is not None:
            return self._load_sides(entry, path, device, sides)
        files = self._read(entry, path)
        check_weight_bytes(path, files.weights.file_bytes, self._max_model_bytes)
        check_kind(files)
        check_packed(files)
        bits = self._wanted_bits(entry)
        if bits is not None:
            check_bits_run_on(bits, device, files.folder)
        threads = self._performance.num_intra_op_threads(entry.instances)
        if files.config.generates:
            # A process of an encoder needs none of it.
            from frameworks.pytorch.generation.loading.generator import load_generator
            from frameworks.pytorch.generation.loading.served import GeneratorPerformance

            if entry.tensor_parallel > 1:
                self._rank_devices(files)
                # Ranks on the CPU divide it.
                threads = threads if device.kind != "cpu" else max(1, threads // entry.tensor_parallel)
            performance = GeneratorPerformance(
                self._needed_bytes.max_rows(entry), threads, self._ageing_s, self._enable_memory_mapping
            )
            draft = None
            if entry.draft_model is not None:
                draft_files = self._read_draft(files, device.kind)
                check_weight_bytes(draft_files.folder, draft_files.weights.file_bytes, self._max_model_bytes)
                check_packed(draft_files)
                draft = self._generator_load(draft_files, device, performance, bits)
            load = self._generator_load(files, device, performance, bits)
            if entry.tensor_parallel > 1:
                # Other models need none of it.
                from frameworks.pytorch.generation.tensor_parallel.loading import load_parallel

                return [load_generator(load, serve=load_parallel)]
            if files.config.has_encoder:
                from frameworks.pytorch.generation.encoder_decoder.loading import load_encoder_decoder

                serve = load_encoder_decoder
                if files.config.reads_speech:
                    from frameworks.pytorch.speech.reading import read_speech

                    serve = partial(load_encoder_decoder, read_speech=read_speech)
                return [load_generator(load, serve=serve, has_encoder=True)]
            return [load_generator(load, draft)]
        return self._load_encoders(files, device, threads, None if bits is None else self._copies)

    def _load_encoders(
        self, files: ModelFiles, device: Device, threads: int, copies: QuantizedCopies | None
    ) -> "list[EncoderModel] | list[ImageModel] | list[SeeingModel]":
        """Load a model that embeds or classifies. `copies`: of int8 reports; None: it is not quantized."""
        entry = files.entry
        dtype = dtype_of(entry) or default_dtype(device, files.weights.dtype)
        loading = EncoderLoading(
            device, dtype, threads, self._enable_memory_mapping, self._pool, self._needed_bytes.max_rows(entry)
        )
        if embeds_images(files.config):
            from frameworks.pytorch.encoders.seeing.loading import load_seeing_models

            if copies is not None:
                raise InvalidModel(f'{files.folder}: dtype: expected no "int8" for a model that sees; remove it')
            return load_seeing_models(files, loading)
        images = find_images(files.folder)
        if images is not None:
            from frameworks.pytorch.encoders.images.loading import load_image_models

            return load_image_models(files, images, loading, copies)
        check_task(files)
        return load_encoders(files, loading, copies)

    def _load_task(self, entry: TorchModelEntry, folder: Path, device: Device, task: str) -> "list[TaskModel]":
        """Load a model of a task that a pipeline of transformers serves. Raises InvalidModel, OutOfMemory."""
        # A process of another model needs none of it.
        from frameworks.pytorch.tasks.loading import TaskLoading, load_task_models

        weights = read_weight_files(folder)
        check_weight_bytes(folder, weights.file_bytes, self._max_model_bytes)
        check_entry_of_task(entry, folder, task)
        dtype = dtype_of(entry) or default_dtype(device, weights.dtype)
        threads = self._performance.num_intra_op_threads(entry.instances)
        return load_task_models(folder, entry, task, TaskLoading(device, dtype, threads, self._enable_memory_mapping))

    def _load_sides(self, entry: TorchModelEntry, folder: Path, device: Device, sides: Sides) -> "list[SidedModel]":
        """Load the encoders of queries and documents. Raises InvalidModel, OutOfMemory."""
        # A process of another model needs none of it.
        from frameworks.pytorch.encoders.sides import SidedModel

        both = [self._read(entry, folder, side) for side in (sides.documents, sides.queries)]
        check_weight_bytes(folder, sum(files.weights.file_bytes for files in both), self._max_model_bytes)
        found = []
        for files in both:
            check_kind(files)
            check_packed(files)
            check_task(files)
            if files.config.generates or files.config.classifies or files.config.late is not None:
                raise InvalidModel(f"{files.folder}: Router: expected encoders with one vector for each text")
            if self._wanted_bits(entry) is not None:
                raise InvalidModel(f'{folder}: dtype: expected no "int8" for a model with a Router; remove it')
            dtype = dtype_of(entry) or default_dtype(device, files.weights.dtype)
            threads = self._performance.num_intra_op_threads(entry.instances)
            loading = EncoderLoading(
                device, dtype, threads, self._enable_memory_mapping, self._pool, self._needed_bytes.max_rows(entry)
            )
            found.append(load_encoders(files, loading, None))
        return [SidedModel(folder, *each) for each in zip(*found, strict=True)]

    def _read(self, entry: TorchModelEntry, path: Path, side: Side | None = None) -> ModelFiles:
        folder, weights, packed = read_files(
            path, self._gguf_folders, entry.allow_pickled_weights, side, sees=entry.vision
        )
        config = read_text_config(path if packed is None or packed.gguf is None else folder, side)
        if entry.score_tokens is not None and (config.generates or config.answers is not None):
            negative, positive = entry.score_tokens
            config = config.with_answers(Answers(positive, negative))
        if weights.is_pickled and (config.generates or config.answers is not None or find_images(folder) is not None):
            raise InvalidModel(
                f"{folder}: allow_pickled_weights: expected an encoder of texts, got {config.architecture}; "
                "convert the weights to safetensors"
            )
        return ModelFiles(folder, entry, config, weights, packed)

    def _rank_devices(self, files: ModelFiles) -> tuple[str, ...]:
        """Return the device of each rank. Raises InvalidModel where `tensor_parallel` cannot serve the model."""
        from frameworks.pytorch.generation.tensor_parallel.checks import check_model, rank_devices

        check_model(files.folder, files.entry, is_packed=files.packed is not None)
        return rank_devices(files.entry, torch.cuda.device_count() if self._performance.enable_gpu else 0)

    def _read_draft(self, files: ModelFiles, kind: str) -> ModelFiles:
        """Read the files of the draft model of a model on this kind of device. Raises InvalidModel."""
        from frameworks.pytorch.generation.loading.draft_loading import draft_kv_bytes

        entry = files.entry
        assert entry.draft_model is not None
        try:
            draft = self._read(_draft_entry(entry, entry.dtype), entry.draft_model)
        except InvalidModel as error:
            raise InvalidModel(f"draft_model: {error.message}") from error
        if not draft.config.generates:
            found = draft.config.architecture or draft.config.model_type
            raise InvalidModel(f"{draft.folder}: draft_model: expected a language model, got {found}; choose another")
        # Weights that are packed in their files have a width already.
        draft = replace(draft, entry=_draft_entry(entry, None if draft.packed is not None else entry.dtype))
        dtypes = dtype_on(files, kind), dtype_on(draft, kind)
        size = draft_kv_bytes(entry, files.folder, draft.folder, dtypes, self._needed_bytes.max_rows(entry), kind)
        return replace(draft, entry=draft.entry.model_copy(update={"kv_cache_bytes": size}))

    def _generator_load(
        self, files: ModelFiles, device: Device, performance: "GeneratorPerformance", bits: "Bits | None"
    ) -> "GeneratorLoad":
        """Return the load of a language model. Raises InvalidModel."""
        from frameworks.pytorch.generation.loading.served import GeneratorLoad

        source = None
        if files.packed is not None:
            source = files.packed.source(files.folder, files.weights.files, self._enable_memory_mapping)
        dtype = dtype_of(files.entry) or default_dtype(device, files.weights.dtype)
        return GeneratorLoad(files.folder, files.entry, device, dtype, bits, performance, (), source)

    def _wanted_bits(self, entry: TorchModelEntry) -> "Bits | None":
        if not self._performance.enable_quantization and entry.dtype in ("int8", "int4"):
            log.warning("not quantized: performance.enable_quantization is false", model=entry.name)
            return None
        return "int8" if entry.dtype == "int8" else "int4" if entry.dtype == "int4" else None


def _draft_entry(entry: TorchModelEntry, dtype: Dtype | None) -> TorchModelEntry:
    """Return the entry of the draft model of a model: how it is loaded, apart from its memory for texts."""
    assert entry.draft_model is not None
    return TorchModelEntry(
        name=entry.name,
        path=entry.draft_model,
        max_batch_size=entry.max_batch_size,
        dtype=dtype,
        kernels=entry.kernels,
        kv_cache_dtype=entry.kv_cache_dtype,
        min_cosine=entry.min_cosine,
        vision=False,
    )


def _usable_accelerators() -> tuple[str, ...]:
    """Return what this build of torch can use: a CPU build cannot use a GPU."""
    cuda = ("cuda",) if torch.cuda.is_available() else ()
    mps = ("mps",) if torch.backends.mps.is_available() else ()
    return (*cuda, *mps)
