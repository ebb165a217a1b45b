"""/models: what is registered, and registering, loading, unloading and deleting at run time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.admin.model_descriptions import Deleted, ModelDetail, ModelList, describe, describe_in_detail
from app.config import ConfigError, parse_model_entry
from app.http.wire import json_answer, read_body
from app.inference.lifecycle import Lifecycle
from app.observability.metrics import Observer
from app.protocols.codec import check_media_type
from app.protocols.errors import EmptyBody, Forbidden, InvalidJson
from app.protocols.native.fields import ErrorResponse
from frameworks.errors import InvalidInput, InvalidModel, ModelFailed, UnknownField
from frameworks.manager import MLFrameworkManager
from frameworks.models.slot import ModelSlot
from frameworks.models.traffic import Share
from frameworks.settings import OnnxModelEntry, TorchModelEntry

FRAMEWORKS = ("onnx", "pytorch")


class ModelsApi:
    """The handlers of /models and their ways to the manager."""

    def __init__(
        self,
        manager: MLFrameworkManager,
        observer: Observer,
        lifecycle: Lifecycle,
        base_dir: Path,
        roots: tuple[Path, ...],
        max_body_bytes: int,
    ) -> None:
        """`base_dir`: what relative paths of a registration are relative to. `roots`: absolute folders."""
        self._manager = manager
        self._observer = observer
        self._lifecycle = lifecycle
        self._base_dir = base_dir
        self._roots = roots
        self._max_body_bytes = max_body_bytes

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        failures: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}}
        add = router.add_api_route
        add("/models", self.list_models, methods=["GET"], responses={200: {"model": ModelList}})
        add("/models", self.add_model, methods=["POST"], status_code=201,
            responses={201: {"model": ModelDetail}, **failures}, openapi_extra=_ENTRY_BODY)  # fmt: skip
        add("/models/{name}", self.show_model, methods=["GET"], responses={200: {"model": ModelDetail}, **failures})
        add("/models/{name}", self.delete_model, methods=["DELETE"], responses={200: {"model": Deleted}, **failures})
        for verb, handler, body in (
            ("load", self.load_model, _LOAD_BODY),
            ("unload", self.unload_model, _VERSION_BODY),
            ("rollback", self.roll_model_back, None),
        ):
            add(f"/models/{{name}}/{verb}", handler, methods=["POST"],
                responses={200: {"model": ModelDetail}, **failures}, openapi_extra=body)  # fmt: skip
        return router

    async def list_models(self) -> Response:
        """Every registered model."""
        return json_answer({"models": [describe(slot, self._observer.requests) for slot in self._manager.slots]})

    async def show_model(self, name: str) -> Response:
        """One model, with per-version detail."""
        return json_answer(self._detail(self._manager.slot(name)))

    async def add_model(self, request: Request) -> Response:
        """Registers and loads a model: the keys of a `[[models.…]]` entry of config.toml, and `framework`."""
        self._lifecycle.check_accepting()
        body = await self._read_object(request)
        framework = body.pop("framework", None)
        if framework not in FRAMEWORKS:
            raise InvalidInput("framework", f"wants one of {', '.join(FRAMEWORKS)}")
        entry = _read_entry(framework, body)
        slot = await self._manager.add(framework, entry, self._allowed_path(entry.path))
        return json_answer(self._detail(slot), 201)

    async def load_model(self, name: str, request: Request) -> Response:
        """Loads a model, or one version of it beside the one that serves; returns when it is ready, the traffic has
        turned over to it and the old version has left. With `canary` or `shadow` a version gets a share instead.
        """
        self._lifecycle.check_accepting()
        self._manager.slot(name)
        body = await self._read_order(request, "version", "canary", "shadow")
        with as_failed_model(name):
            if not body.keys() & {"canary", "shadow"}:
                slot = await self._manager.load(name, _read_version(body))
            else:
                if len(body) > 1:
                    raise InvalidInput(next(iter(body)), "does not go with the others; send one at a time")
                [(kind, share)] = body.items()
                slot = await self._manager.split(name, kind, _read_share(kind, share))
        return json_answer(self._detail(slot))

    async def roll_model_back(self, name: str) -> Response:
        """Turns the traffic back to the version that answered before; returns when the other one has left."""
        self._lifecycle.check_accepting()
        with as_failed_model(name):
            return json_answer(self._detail(await self._manager.rollback(name)))

    async def unload_model(self, name: str, request: Request) -> Response:
        """Unloads a model, or one version of it; returns after the requests in flight have been answered."""
        self._manager.slot(name)
        body = await self._read_order(request, "version")
        return json_answer(self._detail(await self._manager.unload(name, _read_version(body))))

    async def delete_model(self, name: str) -> Response:
        """Unloads a model and forgets its name."""
        await self._manager.remove(name)
        self._observer.forget(name)
        return json_answer({"deleted": name})

    def _detail(self, slot: ModelSlot) -> dict[str, Any]:
        return describe_in_detail(slot, self._observer.requests)

    async def _read_object(self, request: Request) -> dict[str, Any]:
        check_media_type(request.scope["headers"])
        return parse_object(await read_body(request.scope, request.receive, self._max_body_bytes))

    async def _read_order(self, request: Request, *known: str) -> dict[str, Any]:
        """The body, which may be left out. Raises UnknownField."""
        try:
            body = await self._read_object(request)
        except EmptyBody:
            return {}
        for field in body:
            if field not in known:
                raise UnknownField.among(field[:200], known)
        return body

    def _allowed_path(self, path: Path) -> Path:
        """The absolute path, symbolic links followed. Raises Forbidden where it is not below a root, InvalidInput where
        the system takes it for no path at all.
        """
        shown = f'"{str(path)[:200]}"'
        try:
            resolved = (self._base_dir / path).resolve()
        except (OSError, RuntimeError):  # links in a circle are a RuntimeError before Python 3.13
            raise InvalidInput("path", f"{shown} leads round in a circle of symbolic links") from None
        if not any(resolved.is_relative_to(root.resolve()) for root in self._roots):
            raise Forbidden(
                f"path: {shown} is not below models.roots ({', '.join(map(str, self._roots))}); put the model there"
            )
        try:
            resolved.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass  # who reads the model says what is missing
        except OSError as error:
            raise InvalidInput("path", f"{shown} cannot be read ({error.strerror})") from None
        return resolved


def parse_object(body: bytes) -> dict[str, Any]:
    """Raises InvalidJson, InvalidInput."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJson(f"the body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InvalidInput("body", "wants a JSON object")
    return content


@contextmanager
def as_failed_model(name: str) -> Iterator[None]:
    """Files that cannot be served are the model's failure here: the request that orders it loaded is right."""
    try:
        yield
    except InvalidModel as error:
        raise ModelFailed(f'model "{name}" failed to load: {error.message}') from error


def _read_version(body: dict[str, Any]) -> str | None:
    version = body.get("version")
    if version is not None and not isinstance(version, str):
        raise InvalidInput("version", 'wants a string, like "2"')
    return version


def _read_share(kind: str, content: object) -> Share | None:
    """`{"version": "3", "percent": 5}`; null or no percent of the requests ends it. A shadow gets all unless it says
    otherwise.
    """
    if content is None:
        return None
    if not isinstance(content, dict):
        raise InvalidInput(kind, 'wants an object like {"version": "3", "percent": 5}, or null to end it')
    for field in content:
        if field not in ("version", "percent"):
            raise UnknownField.among(field[:200], ("version", "percent"), f"{kind}.")
    version, percent = content.get("version"), content.get("percent", 100 if kind == "shadow" else None)
    if not isinstance(version, str):
        raise InvalidInput(f"{kind}.version", 'wants a string, like "2"')
    if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
        raise InvalidInput(f"{kind}.percent", "wants a number from 0 to 100")
    return Share(version, percent) if percent else None


def _read_entry(framework: str, body: dict[str, Any]) -> OnnxModelEntry | TorchModelEntry:
    """Raises UnknownField or InvalidInput, with every fault of the body in its message."""
    try:
        entry = parse_model_entry(framework, body)
    except ConfigError as error:
        first, *others = error.issues
        message = "; ".join([first.message, *(f"{issue.key}: {issue.message}" for issue in others)])
        kind = UnknownField if first.kind == "unknown_key" else InvalidInput
        raise kind(first.key or "body", message) from None
    return entry


_ENTRY_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["framework", "name", "path"],
                    "properties": {
                        "framework": {"enum": list(FRAMEWORKS)},
                        "name": {"type": "string"},
                        "path": {"type": "string", "description": "below one of models.roots"},
                    },
                    "additionalProperties": {"description": "the other keys of a config.toml entry"},
                },
                "example": {"framework": "onnx", "name": "digits-2", "path": "./models/digits"},
            }
        },
    }
}
_VERSION = {"version": {"type": "string", "description": "left out: all that the entry has served"}}
_SHARE = {
    "type": ["object", "null"],
    "required": ["version"],
    "properties": {"version": {"type": "string"}, "percent": {"type": "number", "minimum": 0, "maximum": 100}},
}
_VERSION_BODY = {
    "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": _VERSION}}}}
}
_LOAD_BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {**_VERSION, "canary": _SHARE, "shadow": _SHARE}},
                "examples": {
                    "swap": {"value": {"version": "2"}},
                    "canary": {"value": {"canary": {"version": "3", "percent": 5}}},
                },
            }
        }
    }
}
