"""Serve GET / (links to every part) and GET /docs (Swagger UI, from files of this installation)."""

import importlib.util
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse

from app import server_version
from app.http.prefixes import prefix_of
from app.http.routes.openapi import describe_responses
from app.http.routes.responses import json_response
from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.errors import NotFound

LINKS = {
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health",
    "metrics": "/metrics",
    "models": "/models",
}
# The package `fastapi-offline` carries Swagger UI. Only its files are used: its code is never imported.
_PACKAGE = "fastapi_offline"
_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}


class ServerIndex(ResponseBody):
    """The server's name and version, and the path of each part by name."""

    name: str
    version: str
    links: dict[str, str]


class PagesApi:
    """The handlers of / and /docs."""

    def router(self) -> APIRouter:
        """Describe GET /, and GET /docs as HTML. The files of the page are left out of the description."""
        router = APIRouter(tags=["server"])
        html: dict[int | str, dict[str, Any]] = {
            200: {"content": {"text/html": {}}, "description": "Swagger UI for this server"}
        }
        router.add_api_route("/", self.index, methods=["GET"], responses=describe_responses(ServerIndex))
        router.add_api_route("/docs", self.docs, methods=["GET"], response_class=Response, responses=html)
        router.add_api_route("/openapi.json", self.openapi, methods=["GET"], include_in_schema=False)
        router.add_api_route("/docs/{file}", self.docs_file, methods=["GET"], include_in_schema=False)
        return router

    async def index(self, request: Request) -> Response:
        """The server's name, its version and the paths of its parts."""
        prefix = prefix_of(request.scope)
        links = {name: prefix + path for name, path in LINKS.items()}
        return json_response({"name": "roundhouse", "version": server_version(), "links": links})

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document; its server is the prefix, if there is one."""
        document = request.app.openapi()
        prefix = prefix_of(request.scope)
        return json_response({**document, "servers": [{"url": prefix}]} if prefix else document)

    async def docs(self, request: Request) -> Response:
        """A page to read and try every route, without internet."""
        # Relative addresses: the page also works behind a proxy that adds a prefix to the path.
        root = ".." if request.scope["raw_path"].endswith(b"/") else "."
        return get_swagger_ui_html(
            openapi_url=f"{root}/openapi.json",
            title="Roundhouse",
            swagger_js_url=f"{root}/docs/swagger-ui-bundle.js",
            swagger_css_url=f"{root}/docs/swagger-ui.css",
            swagger_favicon_url=f"{root}/docs/favicon.png",
            swagger_ui_parameters={"validatorUrl": None},
        )

    async def docs_file(self, file: str) -> Response:
        """Return one file of Swagger UI. Raises NotFound for any other name."""
        media_type = _MEDIA_TYPES.get(file)
        if media_type is None:
            raise NotFound(f"there is nothing at /docs/{file[:200]}; GET /docs lists every route")
        return FileResponse(_static_folder() / file, media_type=media_type)


def _static_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    assert spec is not None, f"{_PACKAGE} is a dependency"
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"
