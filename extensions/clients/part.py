"""The routes of these APIs that describe the server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.admin.extension_part import ExtensionPart, ServerParts

if TYPE_CHECKING:
    from fastapi import APIRouter


class ClientsPart(ExtensionPart):
    """Ollama's description of models, and TEI's of the server."""

    def routers(self, parts: ServerParts) -> "Sequence[APIRouter]":
        from extensions.clients.ollama.models import OllamaApi
        from extensions.clients.tei.info import TeiApi

        return (OllamaApi(parts.views, parts.settings.server.max_body_bytes).router(), TeiApi(parts.views).router())
