"""Request bodies of Text Embeddings Inference. Each class validates its body, and OpenAPI shows its schema.

Not in these classes: the fields that the policies of the codecs refuse.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32, Body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.texts import MAX_TEXTS, Dimensions, Texts, TextsOrIds, Truncate, TruncationSide

_Inputs = Annotated[
    TextsOrIds,
    Field(
        description="A text or a list of texts. Token ids are refused unless the model's entry has token_ids.",
        examples=["Bread rises overnight."],
    ),
]
_RawScores = Annotated[bool | None, Field(description="Return the logits of a classification model.")]
_Normalize = Annotated[bool | None, Field(description="L2-normalise. Default: true.")]
_PromptName = Annotated[
    str | None, Field(description="Name of a prompt of the model's files, which is put before each text.")
]
_SomeTexts = Annotated[list[str], Field(max_length=MAX_TEXTS, fail_fast=True)]
_Sequence = Annotated[list[str], Field(min_length=1, max_length=2)]


class TeiEmbedRequest(RequestBody):
    """Texts to embed."""

    inputs: _Inputs
    prompt_name: _PromptName = None
    normalize: _Normalize = True
    truncate: Truncate = True
    truncation_direction: TruncationSide = None
    dimensions: Dimensions = None


class TeiEmbedSparseRequest(RequestBody):
    """Texts to embed as sparse vectors."""

    inputs: _Inputs
    prompt_name: _PromptName = None
    truncate: Truncate = True
    truncation_direction: TruncationSide = None


class TeiRerankRequest(RequestBody):
    """Texts to rank by their relevance to a query."""

    query: str
    texts: _SomeTexts
    truncate: Truncate = True
    truncation_direction: TruncationSide = None
    raw_scores: _RawScores = False
    return_text: bool | None = Field(False, description="Repeat the texts in the response.")
    top_n: int | None = Field(None, ge=0, le=MAX_INT32, description="Number of best texts. Default, and 0: all.")


PredictInputs = Annotated[
    str | _Sequence | Annotated[list[_Sequence], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)],
    Field(
        description="A text, a pair of texts, or a list of such: each a list of one or two texts.",
        examples=["Bread rises overnight."],
    ),
]


class TeiPredictRequest(RequestBody):
    """Texts, or pairs of texts, to classify."""

    inputs: PredictInputs
    truncate: Truncate = True
    truncation_direction: TruncationSide = None
    raw_scores: _RawScores = False


class SimilarityInput(Body):
    """A sentence, and others to compare with it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"source_sentence": "…", "sentences": ["…"]}]})

    source_sentence: str
    sentences: _SomeTexts


class SimilarityParameters(Body):
    """Options of /similarity."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"truncate": True}]})

    truncate: Truncate = True
    truncation_direction: TruncationSide = None


class TeiSimilarityRequest(RequestBody):
    """Sentences to compare with another one."""

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None


class RootParameters(SimilarityParameters):
    """Options of huggingface_hub's InferenceClient."""

    top_k: int | None = Field(None, ge=1, le=MAX_INT32, description="Number of labels. Default: all; of an image five.")
    function_to_apply: Literal["none", "softmax", "sigmoid"] | None = Field(
        None, description="none: return the logits. Others: only the model's own."
    )
    normalize: bool | None = Field(None, description="Of embeddings: as the field of the body. Default: true.")
    dimensions: Dimensions = None
    prompt_name: _PromptName = None

    def of_vectors(self) -> dict[str, Any]:
        """Return the options of embeddings that are given, by their names."""
        options = {"normalize": self.normalize, "dimensions": self.dimensions, "prompt_name": self.prompt_name}
        return {name: value for name, value in options.items() if value is not None}


class TeiRootRequest(RequestBody):
    """The body of /embed, /predict or /similarity, by the task of the model and the form of `inputs`."""

    inputs: TextsOrIds | PredictInputs | SimilarityInput = Field(examples=["Bread rises overnight."])
    prompt_name: _PromptName = None
    normalize: _Normalize = True
    truncate: Truncate = True
    truncation_direction: TruncationSide = None
    dimensions: Dimensions = None
    raw_scores: _RawScores = False
    parameters: RootParameters | None = Field(
        None, description="Options of huggingface_hub. With them labels are answered as a list for each text."
    )


class TeiTokenizeRequest(RequestBody):
    """Texts to tokenize."""

    inputs: Texts = Field(description="A text or a list of texts.", examples=["Bread rises overnight."])
    add_special_tokens: bool | None = Field(True, description="Add the special tokens of the model's files.")
