"""Load a model of a task from its folder, with the processors that its pipeline needs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from transformers.pipelines import PIPELINE_REGISTRY, _resolve_impl

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.core.extras import install_command
from frameworks.core.files import read_json
from frameworks.core.settings.entries import TorchModelEntry
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.media.container import is_installed, missing_reason
from frameworks.pytorch.encoders.kernels import choose_kernels
from frameworks.pytorch.loader import DTYPE_NAMES, load_model_of
from frameworks.pytorch.quantize import held_bytes
from frameworks.pytorch.tasks.model import TaskModel
from frameworks.pytorch.tasks.pipelines import RunnablePipeline
from frameworks.pytorch.tasks.trials import Trial
from frameworks.tasks.architectures import architecture_of
from frameworks.tasks.speaking import TASK_NAME, describe_speakers
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import InputKind, TaskSpec
from frameworks.types import ModelSpec, TensorType, ValueSpec

LOAD_OPTIONS = {"local_files_only": True, "trust_remote_code": False}
_MOST_LABELS = 1_000_000


@dataclass(frozen=True, slots=True)
class TaskLoading:
    """How a model of a task is loaded. `dtype`: f32, f16 or bf16. `intra_op_threads`: CPU threads of one run."""

    device: Device
    dtype: str
    intra_op_threads: int
    enable_memory_mapping: bool


def load_task_models(folder: Path, entry: TorchModelEntry, task: str, loading: TaskLoading) -> list[TaskModel]:
    """Load as many instances as the entry says, on one set of weights. Raises InvalidModel, OutOfMemory."""
    if task == TASK_NAME:
        loading = _in_float32(folder, entry, loading)
    architecture: type = getattr(transformers, architecture_of(folder))
    module = load_model_of(architecture, folder, loading.dtype, loading.device, loading.enable_memory_mapping)
    choose_kernels(module, entry, loading.device)
    pipeline = RunnablePipeline(load_pipeline(folder, task, module), task)
    spec = _spec(task, module, loading)
    trial = Trial(task)
    return [TaskModel(module, spec, pipeline, trial, loading.intra_op_threads) for _ in range(entry.instances)]


def load_pipeline(folder: Path, task: str, module: Any) -> Any:
    """Return the pipeline of a task around a loaded model. Raises InvalidModel where a processor is absent."""
    if ({"audio", "video"}.intersection(TASKS[task].inputs) or task == TASK_NAME) and not is_installed():
        raise InvalidModel(f"{folder}: {task}: {missing_reason()}")
    if task == "table-question-answering" and find_spec("pandas") is None:
        raise InvalidModel(f"{folder}: {task}: expected pandas, got none; {install_command('tables')}")
    _refuse_language_model(folder, task)
    implementation = _implementation(task)
    parts: dict[str, Any] = {}
    for name, auto in _PROCESSORS.items():
        wanted = getattr(implementation, f"_load_{name}")
        if wanted is False:
            continue
        try:
            parts[name] = auto().from_pretrained(str(folder), **LOAD_OPTIONS)
        except Exception as error:
            if wanted:
                raise InvalidModel(
                    f"{folder}: expected a {name.replace('_', ' ')} for {task}, got none that transformers can load: "
                    f"{type(error).__name__}: {_first_line(error)}"
                ) from error
    try:
        return implementation(model=module, task=task, device=module.device, **parts)
    except InvalidModel as error:
        raise InvalidModel(f"{folder}: {error.message}") from error
    except Exception as error:
        raise InvalidModel(f"{folder}: {task}: {type(error).__name__}: {_first_line(error)}") from error


def _in_float32(folder: Path, entry: TorchModelEntry, loading: TaskLoading) -> TaskLoading:
    """Return how speech is loaded: narrower floats cannot hold the numbers of its frames. Raises InvalidModel."""
    if entry.dtype not in (None, "f32"):
        raise InvalidModel(f'{folder}: dtype: expected "f32" for {TASK_NAME}, got "{entry.dtype}"; remove it')
    return replace(loading, dtype="f32")


def _refuse_language_model(folder: Path, task: str) -> None:
    """Raise InvalidModel for speech that a second model decodes: its texts would be other ones without it."""
    named = read_json(folder / PREPROCESSOR_FILE).get("processor_class")
    if task == "automatic-speech-recognition" and isinstance(named, str) and named.endswith("WithLM"):
        raise InvalidModel(
            f"{folder}: processor_class: expected a processor without a language model, got {named}, which decodes "
            f"with pyctcdecode; serve a folder whose {PREPROCESSOR_FILE} names Wav2Vec2Processor"
        )


def _implementation(task: str) -> Any:
    if task == "question-answering":
        # Few models need it.
        from frameworks.pytorch.tasks.question_answering import QuestionAnsweringPipeline

        return QuestionAnsweringPipeline
    if task == "video-classification":
        from frameworks.pytorch.tasks.video_classification import VideoClassification

        return VideoClassification
    if task == TASK_NAME:
        from frameworks.pytorch.tasks.text_to_audio import TextToAudio

        return TextToAudio
    if task == "automatic-speech-recognition":
        from frameworks.pytorch.tasks.speech import SpeechRecognition

        return SpeechRecognition
    if task == "mask-generation":
        from frameworks.pytorch.tasks.mask_generation import MaskGeneration

        return MaskGeneration
    _, described, _ = PIPELINE_REGISTRY.check_task(task)
    return _resolve_impl(described["impl"])


_PROCESSORS: dict[str, Callable[[], Any]] = {
    "tokenizer": lambda: transformers.AutoTokenizer,
    "image_processor": lambda: transformers.AutoImageProcessor,
    "feature_extractor": lambda: transformers.AutoFeatureExtractor,
    "video_processor": lambda: transformers.AutoVideoProcessor,
    "processor": lambda: transformers.AutoProcessor,
}
"""The processors that a pipeline may load, as its attributes `_load_…` say: True, False, or None for "if there"."""


def _spec(task: str, module: Any, loading: TaskLoading) -> ModelSpec:
    described = describe_task(task, module.config)
    return ModelSpec(
        framework="pytorch",
        task=task,
        inputs=tuple(ValueSpec(name, _type_of(name), name in described.required) for name in described.inputs),
        outputs=(ValueSpec("predictions", TensorType("string", (-1,))),),
        device=loading.device.id,
        dtype=DTYPE_NAMES[loading.dtype],
        memory_bytes=held_bytes(module),
        pipeline=described,
    )


def describe_task(task: str, config: Any) -> TaskSpec:
    """Return what a model of a task reads, with its labels. `config`: of transformers."""
    described = replace(TASKS[task], labels=_labels(TASKS[task], config))
    return describe_speakers(described, config) if task == TASK_NAME else described


def _labels(task: TaskSpec, config: Any) -> tuple[str, ...]:
    """Return the labels of a model in the order of their numbers; numbers without a label are left out."""
    if not task.has_labels:
        return ()
    named = getattr(config, "id2label", None) or {}
    return tuple(str(named[number]) for number in sorted(named)[:_MOST_LABELS])


def _type_of(_: InputKind) -> TensorType:
    return TensorType("string", (-1,))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
