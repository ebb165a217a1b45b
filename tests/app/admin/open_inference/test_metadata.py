"""Test that metadata and configuration of a model agree with each other and with Triton's messages."""

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import server_version
from app.admin.open_inference.metadata import VersionInfo, model_configuration, model_metadata, server_metadata
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.types import (
    NUMPY_DTYPES,
    ModelSpec,
    QuantizationReport,
    SequenceType,
    TensorType,
    TextSpec,
    ValueSpec,
)
from tests.app.protocols.native.specs import SPECS, WRITER
from tests.app.protocols.open_inference.messages import as_message, check_message

LIMITS = BatchLimits(max_rows=8, max_delay_s=0.0025)


def describe(
    spec: ModelSpec, timeout_ms: int | None = None, limits: BatchLimits = LIMITS, **settings: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and configuration of a model with this spec."""
    entry = OnnxModelEntry(name="m", path=Path("files"), **settings)
    slot = ModelSlot(ModelIdentity(spec.framework, entry, limits, ageing_s=1.0), Path("files"))
    info = VersionInfo(slot, slot.active, spec)
    return model_metadata(info, ["1"]), model_configuration(info, timeout_ms)


def tensor_model(
    inputs: dict[str, TensorType], outputs: dict[str, TensorType], *, is_batched: bool, device: str = "cpu"
) -> ModelSpec:
    return ModelSpec(
        "onnx",
        "tensor",
        tuple(ValueSpec(name, kind) for name, kind in inputs.items()),
        tuple(ValueSpec(name, kind) for name, kind in outputs.items()),
        device,
        "float32",
        0,
        batched_inputs=frozenset(inputs) if is_batched else frozenset(),
    )


SHAPES = st.none() | st.lists(st.sampled_from([-1, 0, 1, 3]), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.sampled_from("abc"), st.builds(TensorType, st.sampled_from(list(NUMPY_DTYPES)), SHAPES), max_size=3
)
ROWS = st.builds(lambda dtype, row: TensorType(dtype, (-1, *row)), st.sampled_from(list(NUMPY_DTYPES)), st.just((3,)))


@given(TENSORS, TENSORS, st.booleans())
def test_metadata_shapes_equal_configured_dims(
    inputs: dict[str, TensorType], outputs: dict[str, TensorType], is_batched: bool
) -> None:
    spec = tensor_model(inputs, outputs, is_batched=is_batched)
    metadata, configuration = describe(spec)
    rows = [-1] if configuration["max_batch_size"] else []
    for kind, declared in (("input", inputs), ("output", outputs)):
        shapes = {each["name"]: each["shape"] for each in metadata[f"{kind}s"]}
        assert shapes == {each["name"]: rows + each["dims"] for each in configuration[kind]}
        assert shapes == {name: [-1] if value.shape is None else list(value.shape) for name, value in declared.items()}
        for one, other in zip(metadata[f"{kind}s"], configuration[kind], strict=True):
            assert other["data_type"] == "TYPE_" + one["datatype"].replace("BYTES", "STRING")
    if any(value.shape is None for value in (*inputs.values(), *outputs.values())):
        assert configuration["max_batch_size"] == 0, "a tensor of unknown rank cannot be batched"
    assert ("dynamic_batching" in configuration) == (configuration["max_batch_size"] > 0)
    check_message("ModelMetadataResponse", metadata)
    check_message("ModelConfig", configuration)


@given(st.dictionaries(st.sampled_from("abc"), ROWS, min_size=1), st.dictionaries(st.sampled_from("xyz"), ROWS))
def test_dims_of_batched_model_omit_first_dimension(
    inputs: dict[str, TensorType], outputs: dict[str, TensorType]
) -> None:
    _, batched = describe(tensor_model(inputs, outputs, is_batched=True))
    assert batched["max_batch_size"] == 8
    assert [each["dims"] for each in (*batched["input"], *batched["output"])] == [[3]] * (len(inputs) + len(outputs))
    _, alone = describe(tensor_model(inputs, outputs, is_batched=False))
    assert alone["max_batch_size"] == 0
    assert [each["dims"] for each in (*alone["input"], *alone["output"])] == [[-1, 3]] * (len(inputs) + len(outputs))


def test_output_without_protocol_type_is_omitted() -> None:
    spec = replace(
        SPECS["mixed"],
        outputs=(
            ValueSpec("maps", SequenceType(TensorType("int64", None))),
            ValueSpec("s", TensorType("string", (2,))),
        ),
    )
    metadata, configuration = describe(spec)
    assert metadata["outputs"] == [{"name": "s", "datatype": "BYTES", "shape": [2]}]
    assert {each["name"]: each["optional"] for each in configuration["input"]} == {"x": False, "s": False, "b": True}


@pytest.mark.parametrize(
    ("spec", "inputs", "outputs", "max_batch_size", "dims"),
    [
        ("embed", {"text": ("BYTES", [-1])}, {"embeddings": ("FP32", [-1, 4])}, 8, [[], [4]]),
        ("classify", {"text": ("BYTES", [-1])}, {"scores": ("FP32", [-1, 2])}, 8, [[], [2]]),
        ("generate", None, None, 0, None),
    ],
)
def test_text_model_inputs_and_outputs(spec: str, inputs: Any, outputs: Any, max_batch_size: int, dims: Any) -> None:
    sized = SPECS[spec]
    if spec == "embed":
        sized = replace(sized, text=TextSpec(max_tokens=16, embedding_size=4))
    metadata, configuration = describe(sized)
    tensors = [
        {each["name"]: (each["datatype"], each["shape"]) for each in metadata[kind]} for kind in ("inputs", "outputs")
    ]
    assert inputs is None or tensors[0] == inputs
    assert outputs is None or tensors[1] == outputs
    assert configuration["max_batch_size"] == max_batch_size
    if dims is not None:
        assert [each["dims"] for each in (*configuration["input"], *configuration["output"])] == dims
    assert configuration["model_transaction_policy"] == {"decoupled": spec == "generate"}
    assert configuration["parameters"]["task"] == {"string_value": spec}
    check_message("ModelMetadataResponse", metadata)
    check_message("ModelConfig", configuration)


def test_generate_model_requires_only_prompt() -> None:
    metadata, configuration = describe(WRITER)
    assert metadata["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [1]}
    assert [each["name"] for each in configuration["input"] if not each["optional"]] == ["text_input"]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("latest", {"latest": {"num_versions": 1}}),
        ("all", {"all": {}}),
        ([3, 1], {"specific": {"versions": [1, 3]}}),
    ],
)
def test_version_policy_is_triton_policy(policy: Any, expected: Any) -> None:
    _, configuration = describe(SPECS["matrix"], version_policy=policy)
    assert configuration["version_policy"] == expected
    message = as_message("ModelConfig", configuration)
    assert message.version_policy.WhichOneof("policy_choice") == next(iter(expected))


@pytest.mark.parametrize(
    ("device", "kind", "gpus", "platform"),
    [
        ("cpu", "KIND_CPU", [], "onnxruntime_onnx"),
        ("cuda:1", "KIND_GPU", [1], "onnxruntime_onnx"),
        ("mps", "KIND_GPU", [0], "pytorch"),
    ],
)
def test_instance_group_and_platform_follow_device(device: str, kind: str, gpus: list[int], platform: str) -> None:
    framework = "onnx" if platform.startswith("onnx") else platform
    metadata, configuration = describe(replace(SPECS["matrix"], device=device, framework=framework), instances=3)
    (group,) = configuration["instance_group"]
    assert (group["kind"], group["gpus"], group["count"]) == (kind, gpus, 3)
    assert configuration["parameters"]["device"] == {"string_value": device}
    assert metadata["platform"] == configuration["platform"] == platform
    assert configuration["backend"] == platform.removesuffix("_onnx")


def test_configuration_of_batching_cache_and_quantization() -> None:
    spec = replace(
        tensor_model({"x": TensorType("float32", (-1, 3))}, {}, is_batched=True),
        quantization=QuantizationReport("int8", 0.99, 0.99, 2.0, 4, 1),
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"),
    )
    _, configuration = describe(spec, 1500, cache=True, max_queue_size=7)
    batching = configuration["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 2500
    assert (batching["priority_levels"], batching["default_priority_level"]) == (9, 5)
    assert batching["default_queue_policy"] == {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 1_500_000,
        "allow_timeout_override": True,
        "max_queue_size": 7,
    }
    assert configuration["response_cache"] == {"enable": True}
    assert describe(WRITER, cache=True)[1]["response_cache"] == {"enable": False}, (
        "responses with generated text are not cached"
    )
    parameters = {name: value["string_value"] for name, value in configuration["parameters"].items()}
    assert parameters["quantization"] == "int8"
    assert parameters["execution_providers"] == "CUDAExecutionProvider,CPUExecutionProvider"
    check_message("ModelConfig", configuration)


def test_server_metadata_names_supported_extensions() -> None:
    metadata = server_metadata()
    check_message("ServerMetadataResponse", metadata)
    assert metadata["name"] == "roundhouse"
    assert len(metadata["extensions"]) == len(set(metadata["extensions"]))
    assert not {"sequence", "trace", "logging", "system_shared_memory"} & set(metadata["extensions"])


def test_version_is_that_of_distribution() -> None:
    assert version("roundhouse-server") == server_version()


def test_generation_inputs_and_outputs() -> None:
    metadata, configuration = describe(SPECS["generate"])
    names = [each["name"] for each in metadata["inputs"]]
    assert names == [
        "text_input", "stream", "sampling_parameters", "exclude_input_in_output", "return_finish_reason",
        "return_cumulative_logprob", "return_logprobs", "return_num_input_tokens", "return_num_output_tokens",
    ]  # fmt: skip
    assert [each["optional"] for each in configuration["input"]] == [False] + [True] * 8
    assert {each["name"]: (each["datatype"], each["shape"]) for each in metadata["outputs"]} == {
        "text_output": ("BYTES", [-1]),
        "finish_reason": ("BYTES", [-1]),
        "cumulative_logprob": ("FP32", [-1]),
        "logprobs": ("BYTES", [-1]),
        "num_input_tokens": ("UINT32", [1]),
        "num_output_tokens": ("UINT32", [1]),
        "cum_log_probs": ("FP32", [-1]),
        "output_log_probs": ("FP32", [-1, -1]),
        "sequence_index": ("INT32", [-1, 1]),
    }
