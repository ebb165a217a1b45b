"""Embed the texts or images of a request that is for no model of its own."""

import re
from collections.abc import Callable

from app.inference.context import RequestContext
from frameworks.core.errors import FieldError, InvalidInput
from frameworks.engine.text_answers import PAIR_FIELD
from frameworks.images.spec import ImageRequest
from frameworks.models.residency.subrequests import SubRequests
from frameworks.types import EmbedAnswer, ModelSpec, PairRequest, ScoreAnswer, TextRequest

Contents = list[str] | list[bytes]
"""Texts, or files of images."""
FieldOf = Callable[[int], str]
"""Returns the field of a text or image in the body, by its index."""

_INDEXED = re.compile(r"(?:text|image)(?:\[(\d+)\])?")


async def max_sims(
    parts: SubRequests,
    context: RequestContext,
    model: str,
    request: PairRequest,
    step: str,
    field_of: Callable[[int, int], str],
) -> ScoreAnswer:
    """Return the MaxSim of pairs of texts, by a model of late interaction. Otherwise as `embed`.

    `field_of`: the field of a text, by the index of its pair and its side.
    """
    try:
        answer = await parts.answer(context, model, lambda _: request, step, context.timings)
    except FieldError as error:
        found = PAIR_FIELD.fullmatch(error.field)
        if found is None:
            raise
        raise type(error)(field_of(int(found["pair"]), int(found["side"] or 0)), error.reason) from None
    assert isinstance(answer, ScoreAnswer)
    return answer


async def embed(
    parts: SubRequests,
    context: RequestContext,
    model: str,
    request: TextRequest | ImageRequest,
    step: str,
    field_of: FieldOf,
) -> EmbedAnswer:
    """Return the embeddings of texts or images, normalised as the model's files say. Their times count for the request.

    `step`: names the part in messages. Raises InvalidInput, whose field is `model` for one that cannot embed them, and
    what `SubRequests.answer` raises.
    """
    is_texts = isinstance(request, TextRequest)

    def make(spec: ModelSpec) -> TextRequest | ImageRequest:
        if spec.task != "embed" or (spec.text if is_texts else spec.image) is None:
            kind = "texts" if is_texts else "images"
            raise InvalidInput("model", f"expected a model that embeds {kind}, got one whose task is {spec.task}")
        return request

    try:
        answer = await parts.answer(context, model, make, step, context.timings)
    except FieldError as error:
        found = _INDEXED.fullmatch(error.field)
        if found is None:
            raise
        raise type(error)(field_of(int(found[1] or 0)), error.reason) from None
    assert isinstance(answer, EmbedAnswer)
    return answer
