"""The routes of /infer, with their description for OpenAPI."""

from app.protocols.native.fields import ErrorResponse, InferRequest, InferResponse
from app.protocols.native.files import CODEC
from app.protocols.native.form_fields import FileOptions, InferFiles
from app.protocols.shared.routes import Route, RouteDescription

_DESCRIPTION = RouteDescription(
    "infer",
    "Run a model on tensors, texts, images or a prompt",
    InferRequest,
    InferResponse,
    ErrorResponse,
    streams=True,
    form=InferFiles,
    query=FileOptions,
)
ROUTES = tuple(
    Route(path, CODEC, _DESCRIPTION)
    for path in ("/infer", "/inference", "/models/{name}/infer", "/models/{name}/versions/{version}/infer")
)
