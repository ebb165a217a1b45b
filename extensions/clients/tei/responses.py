"""Response bodies of Text Embeddings Inference as OpenAPI shows them. The codecs write them without these classes."""

from typing import Literal

from pydantic import ConfigDict, RootModel

from app.protocols.shared.bodies import ResponseBody


class TeiVectors(RootModel[list[list[float]]]):
    """One vector for each text, in the order of the texts."""

    model_config = ConfigDict(defer_build=True)


class TeiRankedText(ResponseBody):
    """The score of one text. `text`: on request."""

    index: int
    score: float
    text: str | None = None


class TeiRanks(RootModel[list[TeiRankedText]]):
    """Texts by descending score."""

    model_config = ConfigDict(defer_build=True)


class TeiPrediction(ResponseBody):
    """The score of one label."""

    score: float
    label: str


class TeiPredictions(RootModel[list[TeiPrediction] | list[list[TeiPrediction]]]):
    """The labels of a text by descending score; for a list of texts a list of such."""

    model_config = ConfigDict(defer_build=True)


class TeiSimilarities(RootModel[list[float]]):
    """One cosine for each sentence."""

    model_config = ConfigDict(defer_build=True)


class TeiRootResponse(RootModel[list[list[float]] | list[float] | list[TeiPrediction] | list[list[TeiPrediction]]]):
    """The response of /embed, /predict or /similarity."""

    model_config = ConfigDict(defer_build=True)


class TeiToken(ResponseBody):
    """One token. `start`, `stop`: its first character, and the one after its last; null for a special token."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiTokens(RootModel[list[list[TeiToken]]]):
    """The tokens of each text."""

    model_config = ConfigDict(defer_build=True)


class TeiErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer"]
