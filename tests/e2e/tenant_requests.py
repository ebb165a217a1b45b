"""Every request that names a model, over HTTP and gRPC."""

from typing import Any

from app.grpc import messages

LATE = "red-late"
"""A model that is registered during a test, for tenant red."""

INPUTS = [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]
HTTP_REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/models/{name}", None),
    ("GET", "/v1/models/{name}", None),
    ("POST", "/v1/models/{name}:predict", {"instances": [1]}),
    ("GET", "/v2/models/{name}", None),
    ("GET", "/v2/models/{name}/ready", None),
    ("GET", "/v2/models/{name}/config", None),
    ("GET", "/v2/models/{name}/stats", None),
    ("GET", "/v2/models/{name}/versions/1", None),
    ("GET", "/v2/models/{name}/versions/1/ready", None),
    ("GET", "/v2/models/{name}/versions/1/config", None),
    ("GET", "/v2/models/{name}/versions/1/stats", None),
    ("POST", "/infer", {"model_name": "{name}", "input_data": [1]}),
    ("POST", "/infer", {"model_name": "{name}", "version": "9", "input_data": [1]}),
    ("POST", "/infer", {"model_name": "{name}", "input_data": [1] * 400_000}),
    ("POST", "/inference", {"model_name": "{name}", "prompt": "a"}),
    ("POST", "/models/{name}/infer", {"input_data": [1]}),
    ("POST", "/models/{name}/versions/1/infer", {"input_data": [1]}),
    ("POST", "/models/{name}/versions/9/infer", {"input_data": [1]}),
    ("POST", "/v1/completions", {"model": "{name}", "prompt": "a"}),
    ("POST", "/v1/chat/completions", {"model": "{name}", "messages": [{"role": "user", "content": "a"}]}),
    ("POST", "/v1/responses", {"model": "{name}", "input": "a"}),
    ("POST", "/v1/responses/input_tokens", {"model": "{name}", "input": "a"}),
    ("POST", "/v1/embeddings", {"model": "{name}", "input": "a"}),
    ("POST", "/v1/rerank", {"model": "{name}", "query": "a", "documents": ["b"]}),
    ("POST", "/v1/score", {"model": "{name}", "text_1": "a", "text_2": "b"}),
    ("POST", "/v1/tokenize", {"model": "{name}", "prompt": "a"}),
    ("POST", "/v1/detokenize", {"model": "{name}", "tokens": [1]}),
    ("POST", "/v2/models/{name}/infer", {"inputs": INPUTS}),
    ("POST", "/v2/models/{name}/versions/1/infer", {"inputs": INPUTS}),
    ("POST", "/v2/models/{name}/generate", {"text_input": "a"}),
    ("POST", "/v2/models/{name}/versions/1/generate_stream", {"text_input": "a"}),
    ("POST", "/models/{name}/load", None),
    ("POST", "/models/{name}/load", {"canary": {"version": "2", "percent": 5}}),
    ("POST", "/models/{name}/load", {"shadow": {"version": "2"}}),
    ("POST", "/models/{name}/unload", None),
    ("POST", "/models/{name}/rollback", None),
    ("DELETE", "/models/{name}", None),
    ("POST", "/v2/repository/models/{name}/load", None),
    ("POST", "/v2/repository/models/{name}/unload", None),
]

SERVICE = f"/{messages.INFERENCE_SERVICE}/"
_INPUT = {"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1]}}
GRPC_CALLS: list[tuple[str, Any, Any, dict[str, Any]]] = [
    (SERVICE + "ModelMetadata", messages.ModelMetadataRequest, messages.ModelMetadataResponse, {"name": LATE}),
    (SERVICE + "ModelReady", messages.ModelReadyRequest, messages.ModelReadyResponse, {"name": LATE}),
    (SERVICE + "ModelConfig", messages.ModelConfigRequest, messages.ModelConfigResponse, {"name": LATE}),
    (SERVICE + "ModelStatistics", messages.ModelStatisticsRequest, messages.ModelStatisticsResponse, {"name": LATE}),
    (
        SERVICE + "RepositoryModelLoad",
        messages.RepositoryModelLoadRequest,
        messages.RepositoryModelLoadResponse,
        {"model_name": LATE},
    ),
    (
        SERVICE + "RepositoryModelUnload",
        messages.RepositoryModelUnloadRequest,
        messages.RepositoryModelUnloadResponse,
        {"model_name": LATE},
    ),
    (
        SERVICE + "ModelInfer",
        messages.ModelInferRequest,
        messages.ModelInferResponse,
        {"model_name": LATE, "inputs": [_INPUT]},
    ),
    (
        SERVICE + "ModelStreamInfer",
        messages.ModelInferRequest,
        messages.ModelStreamInferResponse,
        {"model_name": LATE, "inputs": [_INPUT]},
    ),
    (
        f"/{messages.PREDICT_SERVICE}/Predict",
        messages.PredictRequest,
        messages.PredictResponse,
        {"model_name": LATE, "data": [1]},
    ),
]
