"""A model for runs in tests: the embedding of a text is its length and its number of words."""

from typing import Any

import numpy as np
import orjson

from extensions.offline.contract import RequestRefused, RowAnswer, RunModelDescription
from frameworks.types import EmbedAnswer

REFUSED = "refuse this"


class FakeModel:
    """A RunModel. `bodies`: all requests, in their order."""

    concurrency = 3
    rows_per_request = 4

    def __init__(self, identity: str = "1") -> None:
        self.description = RunModelDescription("fake", "embed", {}, {}, {"identity": identity})
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, body: bytes) -> RowAnswer:
        content = orjson.loads(body)
        self.bodies.append(content)
        texts = content["text"] if isinstance(content["text"], list) else [content["text"]]
        if REFUSED in texts:
            raise RequestRefused("text: refused")
        return EmbedAnswer(np.array([[len(text), len(text.split())] for text in texts], np.float32), tokens=len(texts))
