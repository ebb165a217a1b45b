"""Route /models: list, register, load, unload and delete models at run time."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field, WithJsonSchema

from app.admin.bodies import DrainTimeout, describe_body, describe_optional, read_object, read_optional
from app.admin.models.allowed_paths import AllowedPaths
from app.admin.models.descriptions import describe, describe_in_detail, list_model
from app.admin.models.failures import as_failed_model
from app.admin.models.registrations import ENTRY_EXAMPLE, entry_schema, read_entry, read_path
from app.admin.models.schemas import Deleted, ModelDetail, ModelList
from app.admin.views import Views
from app.http.routes.model_paths import NAME
from app.http.routes.openapi import add_route
from app.http.routes.responses import json_response
from app.inference.lifecycle import Lifecycle
from app.protocols.native.fields import ErrorResponse
from app.protocols.shared.bodies import Body
from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidInput
from frameworks.core.settings.entries import Isolation
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version_folders import EXPECTED_FILES, framework_of_model
from frameworks.sources.contract import Framework

Percent = Annotated[int | float, Field(ge=0, le=100), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 100})]


class CanaryShare(Body):
    """Share of the requests without a version that the canary version answers; 0 percent ends the canary."""

    version: str
    percent: Percent


class ShadowShare(Body):
    """Share of the requests that are copied to the shadow version; 0 percent ends the shadow traffic."""

    version: str
    percent: Percent = 100


class UnloadRequest(Body):
    """A version to unload, and the time for its requests. The body may be omitted."""

    version: str | None = Field(None, description="Default: all versions.")
    drain_timeout_s: DrainTimeout = None


class LoadRequest(Body):
    """A version to load, or a share of the traffic for one: one of the fields. The body may be omitted."""

    # `load_model` checks it; null is no omitted field, as it ends a canary or shadow.
    model_config = ConfigDict(json_schema_extra={"maxProperties": 1})

    version: str | None = Field(None, description="Default: the versions that version_policy selects.")
    canary: CanaryShare | None = Field(None, description="Null ends the canary.")
    shadow: ShadowShare | None = Field(None, description="Null ends the shadow traffic.")


class ModelsApi:
    """Handlers of the routes; the manager does the work, on the models that the sender may use."""

    def __init__(
        self,
        views: Views,
        lifecycle: Lifecycle,
        paths: AllowedPaths,
        max_body_bytes: int,
        framework_of_address: Callable[[SourceAddress], Framework],
        isolation: Isolation = "none",
    ) -> None:
        """`paths`: those that may be registered. `framework_of_address`: as SourceStore.framework; it blocks.
        `isolation`: that of a model that has none of its own.
        """
        self._views = views
        self._lifecycle = lifecycle
        self._paths = paths
        self._max_body_bytes = max_body_bytes
        self._framework_of_address = framework_of_address
        self._isolation = isolation

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        add = partial(add_route, router)
        path, entry = f"/models/{NAME}", describe_body(entry_schema(), example=ENTRY_EXAMPLE)
        add("GET", "/models", self.list_models, "List models", ModelList)
        add("POST", "/models", self.add_model, "Register and load a model", ModelDetail, ErrorResponse,
            status=201, extra=entry)  # fmt: skip
        add("GET", path, self.show_model, "Show a model", ModelDetail, ErrorResponse)
        add("DELETE", path, self.delete_model, "Delete a model", Deleted, ErrorResponse)
        load_body = describe_optional(LoadRequest, examples=_LOAD_EXAMPLES)
        for verb, handler, summary, body in (
            ("load", self.load_model, "Load a model, or give a version a share of the traffic", load_body),
            ("unload", self.unload_model, "Unload a model", describe_optional(UnloadRequest)),
            ("rollback", self.roll_model_back, "Switch back to the previous version", None),
        ):
            add("POST", f"{path}/{verb}", handler, summary, ModelDetail, ErrorResponse, extra=body)
        return router

    async def list_models(self, request: Request) -> Response:
        """List the models that the key may use."""
        models, counts = self._views.for_request(request)
        await counts.refresh()
        slots = models.slots
        listed = {"models": [describe(slot, counts) for slot in slots], "object": "list"}
        return json_response({**listed, "data": list(map(list_model, slots))})

    async def show_model(self, name: str, request: Request) -> Response:
        """Show one model and its versions."""
        return await self._detail(self._views.for_request(request).models.slot(name), request)

    async def add_model(self, request: Request) -> Response:
        """Register and load a model. The body has the keys of a `[[models.…]]` entry of config.toml.

        The framework is found from the files, unless `framework` names it. A name or an alias that the key may not use
        is refused with 403.
        """
        self._lifecycle.check_accepting()
        body = await read_object(request, self._max_body_bytes)
        if "framework" not in body:
            body["framework"] = await self._find_framework(read_path(body))
        entry = read_entry(body, self._isolation)
        models = self._views.for_request(request).models
        models.check_may_register(entry)
        path = self._paths.check(entry.path)
        entry = entry.with_paths(self._paths.check, _draft_folders(models.slots))
        slot = await models.add(body["framework"], entry, path)
        return await self._detail(slot, request, 201)

    async def _find_framework(self, path: Path | SourceAddress) -> Framework:
        """Return the framework that loads the files.

        Raises Forbidden and InvalidInput; SourceUnavailable and InvalidModel for an address.
        """
        local = self._paths.check(path)
        if isinstance(path, SourceAddress):
            return await asyncio.to_thread(self._framework_of_address, path)
        framework = await asyncio.to_thread(framework_of_model, local)
        if framework is None:
            raise InvalidInput("path", f"expected {EXPECTED_FILES}, got none of them; name the files of a model")
        return framework

    async def load_model(self, name: str, request: Request) -> Response:
        """Load a model or one version. The response follows when the version is ready, the traffic has switched to it,
        and the old version is unloaded. With `canary` or `shadow`, a version gets a share of the traffic instead.
        """
        self._lifecycle.check_accepting()
        models = self._views.for_request(request).models
        models.slot(name)
        body = await read_optional(LoadRequest, request, self._max_body_bytes)
        kinds = [kind for kind in ("canary", "shadow") if kind in body.model_fields_set]
        if len(body.model_fields_set) > 1:
            raise InvalidInput(kinds[0], "expected as the only field, got others too; send one at a time")
        with as_failed_model(name):
            if kinds:
                slot = await models.split(name, kinds[0], _share(body.canary or body.shadow))
            else:
                slot = await models.load(name, body.version)
        return await self._detail(slot, request)

    async def roll_model_back(self, name: str, request: Request) -> Response:
        """Switch the traffic back to the previous version. The response follows when the other one is unloaded."""
        self._lifecycle.check_accepting()
        with as_failed_model(name):
            return await self._detail(await self._views.for_request(request).models.rollback(name), request)

    async def unload_model(self, name: str, request: Request) -> Response:
        """Unload a model or one version. The response follows when its running requests have completed.

        After `drain_timeout_s` they are ended; only batches that are being computed are still answered.
        """
        models = self._views.for_request(request).models
        models.slot(name)
        body = await read_optional(UnloadRequest, request, self._max_body_bytes)
        return await self._detail(await models.unload(name, body.version, body.drain_timeout_s), request)

    async def delete_model(self, name: str, request: Request) -> Response:
        """Unload a model and remove it from the list."""
        models = self._views.for_request(request).models
        name = models.slot(name).name
        await models.remove(name)
        self._views.forget(name)
        return json_response({"deleted": name})

    async def _detail(self, slot: ModelSlot, request: Request, status: int = 200) -> Response:
        counts = self._views.for_request(request).counts
        await counts.refresh()
        return json_response(describe_in_detail(slot, counts), status)


def _draft_folders(slots: Iterable[ModelSlot]) -> dict[str, Path]:
    """Return the paths of the models that may be a draft model, by name."""
    found = [slot for slot in slots if slot.framework == "pytorch" and not slot.has_address]
    return {name: slot.path for slot in found for name in slot.names}


def _share(body: CanaryShare | ShadowShare | None) -> Share | None:
    return Share(body.version, body.percent) if body is not None and body.percent else None


_LOAD_EXAMPLES = {
    "rollout": {"value": {"version": "2"}},
    "canary": {"value": {"canary": {"version": "3", "percent": 5}}},
}
