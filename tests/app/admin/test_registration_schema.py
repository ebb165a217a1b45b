"""The schema of a registration in OpenAPI agrees with the bodies that `POST /models` accepts."""

from typing import Any

import pytest

from app.admin.models.registrations import entry_schema, read_entry
from frameworks.core.errors import InvalidInput, UnknownField
from tests.support.json_schema import meets

SCHEMA = entry_schema()
COMMON: dict[str, list[Any]] = {
    "name": [
        *("a", "a.b-c_1", "", "-a", "a b", "a" * 129, None, 5),
        *("org/a", "a/", "/a", "a//b", "a/../b", "a/b/c", "a/load", "load/a", "a/loads", f"a/{'b' * 127}"),
    ],
    "aliases": [[], ["a"], ["org/a", "b"], ["a/load"], [""], "a", None, [1]],
    "path": ["./m", "m", "", " ", None, 5],
    "max_batch_size": [1, 2**31 - 1, None, 0, 2**31, "1", 1.5, True],
    "max_queue_delay_ms": [0, 1.5, 60_000, -1, 60_001, None, "1"],
    "max_batch_tokens": [1, None, 0],
    "instances": [1, 1024, 0, 1025, None],
    "load": ["startup", "lazy", "eager", None],
    "pinned": [True, False, None, 1, "true"],
    "min_cosine": [0, 1, 0.5, None, 1.5, -1],
    "version_policy": ["latest", "all", [1], [1, 3], [], [0], ["1"], "newest", 1, None],
    "watch": [True, None],
    "cache": [False, "x"],
    "token_ids": ["own", None, "other", True],
    "isolation": ["none", "process", None, "thread", True],
    "unknown": [1],
}
ISOLATED: dict[str, list[Any]] = {
    "max_batch_seconds": [1, 0.5, 86_400, None, 0, -1, 86_401, "1", True],
    "max_process_memory": [1, None, 0, -1, "2GiB", "1.5 GB", "512", "1.5B", "GiB", True, 1.5],
    "cpus": ["0", "4-7", "0,2-3", None, "", "4-", "-4", "a", "0, 1", ",", "12345", "0," * 200 + "0", 1, [1]],
}
"""Keys of a model with a process of its own."""
ONNX: dict[str, list[Any]] = {
    "input_shape": [[1, 2], None, [0], ["1"], [1.5], 1],
    "quantized": [True, False, "mixed", None, "int8", 1],
    "execution_providers": [["CPU"], ["CUDA", "CPU"], None, [], "CPU", ["FPGA"], [1]],
    "sequence_axis": [1, 31, None, 0, 32],
    "device": ["cpu"],
}
TORCH: dict[str, list[Any]] = {
    "model_type": ["bert", None, "", 1],
    "device": ["auto", "cpu", "mps", "cuda", "cuda:1", "cuda:", "tpu", None, 1],
    "dtype": ["f32", "int8", None, "int4", 1],
    "kv_cache_bytes": [1, None, 0, -1, "2GiB", "1.5 GB", "512", "512B", "1.5B", "GiB", "2 bytes", True, 1.5],
    "max_num_batched_tokens": [1, None, 0],
    "adapters": [[], [{"name": "a", "path": "./a"}], [{"name": "a:b", "path": "./a"}], [{"name": "a"}], None, "a", [1]],
    "input_shape": [[1]],
}


def is_accepted(body: dict[str, Any]) -> bool:
    """Whether the body is one of its framework; without one, of the framework that the files would have."""
    if "framework" not in body:
        return any(is_accepted({**body, "framework": each}) for each in ("onnx", "pytorch"))
    try:
        read_entry(body)
    except (InvalidInput, UnknownField):
        return False
    return True


@pytest.mark.parametrize(
    ("framework", "key"),
    [(framework, key) for framework, keys in (("onnx", COMMON | ONNX), ("pytorch", COMMON | TORCH)) for key in keys],
)
def test_schema_describes_accepted_values(framework: str, key: str) -> None:
    for value in (COMMON | (ONNX if framework == "onnx" else TORCH))[key]:
        body = {"framework": framework, "name": "m", "path": "./m", key: value}
        assert meets(SCHEMA, body) == is_accepted(body), value
        del body["framework"]
        assert meets(SCHEMA, body) == is_accepted(body), value


@pytest.mark.parametrize("framework", ["onnx", "pytorch"])
@pytest.mark.parametrize("key", ISOLATED)
def test_schema_describes_keys_of_isolated_model(framework: str, key: str) -> None:
    for value in ISOLATED[key]:
        body = {"framework": framework, "name": "m", "path": "./m", "isolation": "process", key: value}
        assert meets(SCHEMA, body) == is_accepted(body), value


@pytest.mark.parametrize("key", ["pad_values", "mask_input"])
def test_schema_describes_keys_beside_sequence_axis(key: str) -> None:
    values: list[Any] = [{"x": 0}, {"x": 1.5}, {"x": "0"}, [0]] if key == "pad_values" else ["mask", "", 1]
    for value in values:
        for others in ({}, {"sequence_axis": 1}):
            body = {"framework": "onnx", "name": "m", "path": "./m", **others, key: value}
            assert meets(SCHEMA, body) == is_accepted(body), body


@pytest.mark.parametrize(
    "body",
    [
        {}, {"framework": "onnx"}, {"framework": "candle", "name": "m", "path": "m"}, {"name": "m"},
        {"framework": "onnx", "path": "m"}, {"framework": None, "name": "m", "path": "m"},
    ],
)  # fmt: skip
def test_schema_requires_what_is_required(body: dict[str, Any]) -> None:
    assert not meets(SCHEMA, body)
    assert not is_accepted(body)
