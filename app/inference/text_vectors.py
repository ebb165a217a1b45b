"""Embed the texts of a request that is for no model of its own."""

from app.inference.context import RequestContext
from frameworks.errors import InvalidInput
from frameworks.models.subrequests import SubRequests
from frameworks.types import EmbedAnswer, ModelSpec, TextRequest


async def embed_texts(
    parts: SubRequests, context: RequestContext, model: str, texts: list[str], step: str, truncate: bool = True
) -> EmbedAnswer:
    """Return the embeddings of texts, normalised as the model's files say. Their times count for the request.

    `step`: names the part in messages. Raises InvalidInput for a model of another task, whose field is `model`, and
    what `SubRequests.answer` raises.
    """

    def make(spec: ModelSpec) -> TextRequest:
        if spec.text is None or spec.task != "embed":
            raise InvalidInput("model", f"expected a model that embeds texts, got one whose task is {spec.task}")
        return TextRequest(texts, truncate=truncate)

    answer = await parts.answer(context, model, make, step, context.timings)
    assert isinstance(answer, EmbedAnswer)
    return answer
