"""A load of a generating model and its result, for each way to compute it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frameworks.core.devices import Device
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.generation.sources import SourcePrompt, SourceSpec
from frameworks.generation.speech.spec import SpeechSpec
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.runner import StepRunner
from frameworks.pytorch.generation.sampling.device_sampler import DeviceSampler
from frameworks.pytorch.generation.step.kernel_switch import KernelSwitch
from frameworks.pytorch.generation.step.parts import EndsWithModel
from frameworks.pytorch.generation.vision.tower import VisionTower
from frameworks.pytorch.generation.weights.linear_makers import Bits
from frameworks.pytorch.generation.weights.packed.building import build_causal_model
from frameworks.pytorch.generation.weights.packed.weight import WeightSource
from frameworks.pytorch.loader import load_causal_model
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.tasks.types import TaskPipeline, TaskSpec
from frameworks.types import ProductTrial, QuantizationReport

if TYPE_CHECKING:
    # transformers' processors take long to import.
    from frameworks.pytorch.generation.vision.prompts import ImagePrompts


@dataclass(frozen=True, slots=True)
class GeneratorPerformance:
    """`max_sequences`: in one step. `intra_op_threads`: CPU threads of a step, or of each rank in it. `ageing_s`: after
    which a waiting sequence gains a level of priority.
    """

    max_sequences: int
    intra_op_threads: int
    ageing_s: float = 1.0
    enable_memory_mapping: bool = True


@dataclass(frozen=True, slots=True)
class GeneratorLoad:
    """A load. `dtype`: of activations and KV cache, f32, f16 or bf16. `bits`: of the weights of linear layers; None: as
    `dtype`. `text_ids`: tokens of a text whose perplexity measures the accuracy of quantized weights.
    `source`: of weights that are packed in their files; None for a folder of plain ones. `tokenizer`: of the folder,
    a HuggingFaceTokenizer, or one of `prompts/source_tokenizer.py`.
    """

    folder: Path
    entry: TorchModelEntry
    device: Device
    dtype: str
    bits: Bits | None
    performance: GeneratorPerformance
    text_ids: tuple[int, ...] = ()
    source: WeightSource | None = None
    tokenizer: Any = None


@dataclass(frozen=True, slots=True)
class ServedSpeech:
    """How the sounds of a model are read. `task`: with the languages of the model. `alignment_heads`: layer and number
    of those whose attention says when a word is spoken.
    """

    spec: SpeechSpec
    task: TaskSpec
    pipeline: TaskPipeline
    alignment_heads: tuple[tuple[int, int], ...] = ()

    def trial_prompts(self) -> list[SourcePrompt]:
        """Return the prompts of two random sounds, without tokens of the decoder."""
        random, spec = np.random.default_rng(0), self.spec
        return [spec.source_of(random.standard_normal(spec.feature_shape, np.float32)) for _ in range(2)]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is ready to compute steps. `memory_bytes`: of its weights, and of the caches of all sequences.
    `adapters`: None where it supports none. `splits_prompts`: whether a prompt may be computed in parts.
    `unpaged_because`: why not by paged attention. `products`: the kernels of the linear layers on a CPU.
    `dtype`: of most weights, if the files have them packed; None: as the load says. `switch`: to compiled kernels,
    which the caller starts; None where the model waits for none. `graphs`: as ModelSpec.graphs. `device_sampler`:
    None where the host samples. `followers`: the other ranks of `tensor_parallel`, which end with the model.
    `devices`: of all ranks; empty: that of the load. `image_prompts`: None where it reads no images. `tower`: as
    EngineParts.tower. `source`: as GenerationSpec.source. `speech`: of a model whose encoder reads sounds.
    """

    runner: StepRunner
    pool: BlockPool
    max_context_tokens: int
    memory_bytes: int
    quantization: QuantizationReport | None = None
    adapters: AdapterSet | None = None
    splits_prompts: bool = True
    unpaged_because: str | None = None
    products: tuple[ProductTrial, ...] = ()
    dtype: str | None = None
    switch: KernelSwitch | None = None
    graphs: str | None = None
    device_sampler: DeviceSampler | None = None
    followers: EndsWithModel | None = None
    devices: tuple[str, ...] = ()
    image_prompts: "ImagePrompts | None" = None
    tower: VisionTower | None = None
    source: SourceSpec | None = None
    speech: ServedSpeech | None = None

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder reads the prompts."""
        return self.source is not None or self.speech is not None


def load_model(load: GeneratorLoad) -> Any:
    """Load the model of a folder, or of its source of packed weights. Raises InvalidModel, OutOfMemory."""
    if load.source is not None:
        return build_causal_model(load.folder, load.source, load.dtype, load.device)
    return load_causal_model(load.folder, load.dtype, load.device, load.performance.enable_memory_mapping)
