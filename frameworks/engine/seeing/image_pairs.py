"""Score how well images match a text, by the vectors of both."""

from collections.abc import Sequence

import numpy as np

from frameworks.engine.contract import Run
from frameworks.engine.images import ImageService
from frameworks.engine.text_answers import max_sim
from frameworks.engine.texts import TextService
from frameworks.images.spec import ImageRequest
from frameworks.types import Array, EmbedAnswer, ImagePairRequest, ScoreAnswer, TextRequest, Vectors


async def score_images(run: Run, request: ImagePairRequest, texts: TextService, images: ImageService) -> ScoreAnswer:
    """Return the cosines of a text and images, of a model with a tower for each. Raises InvalidInput as both services.

    The field of the text is `text[0]`, that of an image `image[2]`.
    """
    if not request.images:
        return ScoreAnswer([], tokens=0)
    query = await texts.answer(run, TextRequest([request.query], normalize=True, truncate=request.truncate))
    found = await images.answer(run, ImageRequest(request.images, normalize=True))
    assert isinstance(query, EmbedAnswer)
    assert isinstance(found, EmbedAnswer)
    return ScoreAnswer(similarities("dense", query.embeddings[0], list(found.embeddings)), query.tokens)


def similarities(kind: Vectors, query: Array, rows: Sequence[Array]) -> list[float]:
    """Return the cosine of the query and each row, or the MaxSim of their vectors. All vectors are normalised."""
    if kind == "multi":
        scores: list[float] = max_sim(query, rows).tolist()
        return scores
    cosines: Array = np.stack(rows).astype(np.float64) @ query.astype(np.float64)
    found: list[float] = cosines.clip(-1.0, 1.0).tolist()
    return found
