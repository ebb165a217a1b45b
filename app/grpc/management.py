"""Answer the calls other than inference: health, metadata, configuration, statistics and the model repository."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from app.admin.open_inference.management import Management
from app.admin.open_inference.metadata import server_metadata
from app.admin.open_inference.schemas import RepositoryUnloadRequest
from app.admin.views import View, Views
from app.auth.permissions import GRPC_ACCESS
from app.grpc.call import Call, Unary
from app.grpc.handler import as_grpc_error, begin_record
from app.grpc.messages import INFERENCE_SERVICE, POOL, Message, parse
from app.observability.audit import log_outcome
from app.observability.metrics import Observer, RequestRecord
from app.protocols.shared.bodies import read_body
from app.protocols.shared.errors import MAX_MANAGEMENT_BYTES, TooLarge

Answer = Callable[[Message, RequestRecord], Awaitable[bytes]]
"""Takes the request and its record, and returns the serialized response. Raises RoundhouseError, GrpcError."""
Fields = dict[str, Any]
Method = Callable[[Message, View], Fields | Awaitable[Fields]]
"""Takes the request and the view of its sender, and returns the fields of the response."""

_METHODS = {
    f"/{INFERENCE_SERVICE}/{method.name}": method
    for method in POOL.FindServiceByName(INFERENCE_SERVICE).methods
    if method.name not in ("ModelInfer", "ModelStreamInfer")
}
REQUESTS: dict[str, Message] = {path: GetMessageClass(method.input_type) for path, method in _METHODS.items()}
"""Full method name -> class of its request."""
_RESPONSES: dict[str, Message] = {path: GetMessageClass(method.output_type) for path, method in _METHODS.items()}


def management_methods(answer: Answer, observer: Observer) -> dict[str, Unary]:
    """Return full method name -> handler. It parses the request, logs the call and maps errors to statuses."""
    return {path: _handler(path, kind, answer, observer) for path, kind in REQUESTS.items()}


def _handler(path: str, kind: Message, answer: Answer, observer: Observer) -> Unary:
    access = GRPC_ACCESS.get(path)
    action = "" if access is None else access.action

    async def handle(request: bytes, call: Call) -> bytes:
        record = begin_record(path, call, None)
        try:
            if len(request) > MAX_MANAGEMENT_BYTES:
                raise TooLarge.for_management()
            message = parse(kind, request)
            if action:
                record.model = message.model_name
            response = await answer(message, record)
            record.status = 200
            return response
        except Exception as error:
            raise as_grpc_error(error, record) from error
        finally:
            record.timings.compute_s = time.perf_counter() - record.started_s
            observer.log_request(record, record.timings.compute_s)
            if action:
                log_outcome(record, action)

    return handle


class ManagementCalls:
    """Answer the requests where the models are managed. Owned by the event loop."""

    def __init__(self, management: Management, views: Views) -> None:
        self._management = management
        self._views = views
        m = management
        methods: dict[str, Method] = {
            "ServerLive": lambda _, view: {"live": True},
            "ServerReady": lambda _, view: {"ready": m.why_not_ready(view) is None},
            "ModelReady": lambda asked, view: {"ready": m.why_model_not_ready(view, asked.name, asked.version) is None},
            "ServerMetadata": lambda _, view: server_metadata(),
            "ModelMetadata": lambda asked, view: m.model_metadata(view, asked.name, asked.version),
            "ModelConfig": self._model_config,
            "ModelStatistics": lambda asked, view: m.model_statistics(view, asked.name, asked.version),
            "RepositoryIndex": lambda asked, view: {"models": m.repository_index(view, asked.ready)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        self._methods = {f"/{INFERENCE_SERVICE}/{name}": method for name, method in methods.items()}

    async def answer(self, request: Message, record: RequestRecord) -> bytes:
        """Implement Answer."""
        found = self._methods[record.path](request, self._views.of(record.principal))
        fields = await found if isinstance(found, Awaitable) else found
        # Fields that only the REST response has are dropped.
        answer = ParseDict(fields, _RESPONSES[record.path](), ignore_unknown_fields=True)
        response: bytes = answer.SerializeToString()
        return response

    async def _model_config(self, request: Message, view: View) -> Fields:
        return {"config": await self._management.model_configuration(view, request.name, request.version)}

    async def _load(self, request: Message, view: View) -> Fields:
        await self._management.load(view, request.model_name, request.parameters)
        return {}

    async def _unload(self, request: Message, view: View) -> Fields:
        parameters = {name: _value_of(parameter) for name, parameter in request.parameters.items()}
        body = read_body(RepositoryUnloadRequest, {"parameters": parameters})
        await self._management.unload(view, request.model_name, body.parameters.drain_timeout_s)
        return {}


def _value_of(parameter: Message) -> Any:
    """Return the value of a ModelRepositoryParameter."""
    chosen = parameter.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(parameter, chosen)
