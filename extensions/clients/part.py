"""The routes of these APIs that describe the server."""

from collections.abc import Sequence

from fastapi import APIRouter

from app.admin.extension_part import ExtensionPart, ServerParts
from extensions.clients.ollama.models import OllamaApi
from extensions.clients.tei.info import TeiApi


class ClientsPart(ExtensionPart):
    """Ollama's description of models, and TEI's of the server."""

    def routers(self, parts: ServerParts) -> Sequence[APIRouter]:
        return (OllamaApi(parts.views, parts.settings.server.max_body_bytes).router(), TeiApi(parts.views).router())
