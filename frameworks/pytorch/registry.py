"""Makes PyTorch models from Hugging Face folders: reads the files' word, chooses task, dtype and device, loads."""

from dataclasses import replace
from pathlib import Path

import structlog
import torch

from frameworks.devices import Device, ModelNeeds
from frameworks.errors import InvalidModel
from frameworks.pytorch.encoder import EncoderModel, TorchPooling
from frameworks.pytorch.loader import DTYPE_NAMES, DTYPES, default_dtype, load_encoder, page_in_kernels
from frameworks.pytorch.pinned import PINNED, PinnedBuffers
from frameworks.pytorch.quantize import check_int8_runs_on, quantize_encoder
from frameworks.pytorch.weights import WeightFiles, read_weight_files
from frameworks.quantization.copies import QuantizedCopies
from frameworks.runtime import ModelEntry
from frameworks.settings import PerformanceSettings, TorchModelEntry
from frameworks.text import TextTokenizer
from frameworks.text_config import TextConfig, read_text_config, transformer_folder
from frameworks.types import ModelSpec, TensorType, TextSpec, ValueSpec
from memory.sizes import format_size
from memory.tensor_pool import TensorPool

_INT8_BYTES_PER_ELEMENT = 2
_HOST = Device("cpu", 0, "", 0, 0)
log = structlog.get_logger(__name__)

_GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class TorchRegistry:
    """Loads encoders; see `frameworks.runtime.Registry`."""

    framework = "pytorch"

    def __init__(
        self,
        performance: PerformanceSettings,
        max_model_bytes: int,
        copies: QuantizedCopies,
        enable_memory_mapping: bool = True,
        pool: TensorPool | None = None,
    ) -> None:
        """`pool`: where tokens on their way to a GPU are put; None: in memory that it cannot read by itself."""
        self._copies = copies
        self._pool = pool
        if pool is not None and torch.cuda.is_available():
            pool.add_device(PINNED, PinnedBuffers())
        self._performance = performance
        self._max_model_bytes = max_model_bytes
        self._enable_memory_mapping = enable_memory_mapping

    def needs(self, entry: ModelEntry, path: Path) -> ModelNeeds:
        """As Registry.needs."""
        assert isinstance(entry, TorchModelEntry)
        folder = transformer_folder(path)
        weights = read_weight_files(folder)
        config = read_text_config(path)
        # The states of the largest batch's last layer.
        rows = entry.max_batch_size or self._performance.max_batch_size
        tokens = rows * config.max_tokens
        states = min(tokens, entry.max_batch_tokens or tokens) * config.hidden_size
        chosen = DTYPES.get(entry.dtype or "")
        host_dtype = chosen or DTYPES[default_dtype(_HOST, weights.dtype)]
        # An accelerator's own choice is a type of 16 bits.
        accelerator_dtype = chosen or DTYPES["f16"]
        host_size, accelerator_size = host_dtype.itemsize, accelerator_dtype.itemsize
        if entry.dtype == "int8" and self._performance.enable_quantization:
            # Its linear layers take one byte, tables of embeddings stay as they are.
            host_size = accelerator_size = _INT8_BYTES_PER_ELEMENT
        return ModelNeeds(
            host_bytes=weights.elements * host_size + states * host_dtype.itemsize,
            accelerator_bytes=weights.elements * accelerator_size + states * accelerator_dtype.itemsize,
            wanted=entry.device,
            usable=_usable_accelerators(),
        )

    def prepare(self, device: Device) -> None:
        """As Registry.prepare: on CUDA its context is half a gigabyte."""
        page_in_kernels(device)

    def load(self, entry: ModelEntry, path: Path, device: Device) -> list[EncoderModel]:
        """As Registry.load."""
        assert isinstance(entry, TorchModelEntry)
        folder = transformer_folder(path)
        weights = read_weight_files(folder)
        if weights.file_bytes > self._max_model_bytes:
            raise InvalidModel(
                f"{path}: {format_size(weights.file_bytes)} of weights, more than models.max_model_size = "
                f"{format_size(self._max_model_bytes)}; raise it or serve a smaller model"
            )
        config = read_text_config(path)
        _check_is_encoder(folder, entry, config)
        wanted_dtype = entry.dtype if entry.dtype in DTYPES else None
        is_int8 = self._wants_int8(entry)
        if is_int8:
            check_int8_runs_on(device, folder)
        dtype = wanted_dtype or default_dtype(device, weights.dtype)
        pooling = _pooling(config, weights)
        tokenizer = TextTokenizer(folder, config)
        needs_pooler = pooling in ("pooler", "logits")
        model = load_encoder(folder, config.classifies, needs_pooler, dtype, device, self._enable_memory_mapping)
        spec = _spec(model, config, device, dtype)
        threads = self._performance.num_intra_op_threads(entry.instances)
        if is_int8:
            encoder = EncoderModel(model, tokenizer, spec, pooling, config.pad_token_id, threads)
            report = quantize_encoder(model, encoder, entry, weights, self._copies)
            spec = replace(_spec(model, config, device, "int8"), quantization=report)
        # The module itself is not changed by a run: one is enough for any number of threads.
        return [
            EncoderModel(model, tokenizer, spec, pooling, config.pad_token_id, threads, self._pool)
            for _ in range(entry.instances)
        ]

    def _wants_int8(self, entry: TorchModelEntry) -> bool:
        if entry.dtype == "int8" and not self._performance.enable_quantization:
            log.warning("not quantised: performance.enable_quantization is false", model=entry.name)
            return False
        return entry.dtype == "int8"


def _check_is_encoder(folder: Path, entry: TorchModelEntry, config: TextConfig) -> None:
    if not config.model_type:
        raise InvalidModel(
            f"{folder / 'config.json'}: not there, or without model_type; it says which architecture to build"
        )
    if config.is_encoder_decoder or config.architecture.endswith(_GENERATES) or entry.model_type == "llama":
        raise InvalidModel(
            f"{folder}: {config.architecture or config.model_type} generates text; "
            "this version serves encoders (embed, classify)"
        )
    # "bert" names the family; any other model_type must be the folder's own.
    if entry.model_type not in (None, "bert", config.model_type):
        raise InvalidModel(
            f'{folder}: config.json says model_type "{config.model_type}", '
            f'the model\'s entry says "{entry.model_type}"; '
            "make them agree or leave it out"
        )


def _pooling(config: TextConfig, weights: WeightFiles) -> TorchPooling:
    """sentence-transformers' files decide, else BERT's own pooler if its weights are there, else the mean."""
    if config.classifies:
        return "logits"
    if config.pooling is not None:
        return config.pooling
    return "pooler" if any(name.endswith("pooler.dense.weight") for name in weights.names) else "mean"


def _spec(model: torch.nn.Module, config: TextConfig, device: Device, dtype: str) -> ModelSpec:
    size = len(config.labels) if config.classifies else int(getattr(model.config, "hidden_size", -1))
    embedding_size = 0 if config.classifies else max(0, size)
    tensors = [*model.parameters(), *model.buffers()]
    return ModelSpec(
        framework="pytorch",
        task="classify" if config.classifies else "embed",
        inputs=(ValueSpec("text", TensorType("string", (-1,))),),
        outputs=(ValueSpec("predictions" if config.classifies else "embeddings", TensorType("float32", (-1, size))),),
        device=device.id,
        dtype=DTYPE_NAMES[dtype],
        memory_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        text=TextSpec(
            max_tokens=config.max_tokens,
            normalize=config.normalize,
            labels=config.labels if config.classifies else (),
            multi_label=config.multi_label,
            embedding_size=embedding_size or None,
            shorter_sizes=tuple(shorter for shorter in config.shorter_sizes if shorter < embedding_size),
        ),
    )


def _usable_accelerators() -> tuple[str, ...]:
    """What this build of torch can drive: a CPU build on a machine with a GPU can drive nothing."""
    cuda = ("cuda",) if torch.cuda.is_available() else ()
    mps = ("mps",) if torch.backends.mps.is_available() else ()
    return (*cuda, *mps)
