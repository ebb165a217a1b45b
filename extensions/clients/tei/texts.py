"""The codecs of Text Embeddings Inference (TEI): those of its paths, and POST /."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from app.protocols.shared.bodies import got
from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.images import decode_images
from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal
from app.protocols.shared.fields.texts import (
    check_dimensions,
    read_function_to_apply,
    rename_text,
    texts_or_ids,
    to_texts,
    truncation_of,
)
from app.protocols.shared.json.output import array_to_json, list_to_json
from app.protocols.shared.ranking import best_first, check_scores_pairs, rename_pair
from extensions.clients.tei.requests import (
    RootParameters,
    SimilarityInput,
    TeiEmbedRequest,
    TeiEmbedSparseRequest,
    TeiPredictRequest,
    TeiRerankRequest,
    TeiRootRequest,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
)
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.text.tokens import SpansAnswer, SpansRequest
from frameworks.types import (
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    ModelSpec,
    PairRequest,
    ScoreAnswer,
    SparseAnswer,
    TextRequest,
    TextSpec,
    Truncation,
)

POLICY = FieldPolicy({"prompt_name": Refusal("put the prompt before each text")})
"""Refused fields of most routes."""


@dataclass(frozen=True, slots=True)
class TeiCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        error = self.renamed(error)
        return orjson.dumps({"error": error.message, "error_type": _type_of(error)})


def _type_of(error: ErrorReply) -> str:
    if error.code in ("overloaded", "quota_exceeded"):
        return "Overloaded"
    if error.status == 503:
        return "Unhealthy"
    return "Backend" if error.status >= 500 else "Validation"


_NUM_LABELS = 5
"""Of an image without `top_k`, as in the image-classification pipeline of transformers."""
_SIDES = ("query", "document")
"""Names that choose the encoder of a model with sides."""
_MAX_NAMES = 20
_EMBED = FieldPolicy({"encoding_format": Refusal("vectors are lists of numbers", ("float",))})
# Older clients of Hugging Face send options of its hub, as wait_for_model.
_ROOT = FieldPolicy({**_EMBED.refusals, "options": Ignored(neutral=({},))})


def _build_embed(body: TeiEmbedRequest | TeiRootRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    texts, token_ids = texts_or_ids(_embedded(body.inputs))
    return TextRequest(
        texts,
        normalize=body.normalize is not False,
        truncate=truncation_of(body.truncate, body.truncation_direction),
        dimensions=check_dimensions(body.dimensions, spec.text),
        token_ids=token_ids,
        **_named(body.prompt_name, token_ids is None, spec.text),
    )


def _named(name: str | None, has_texts: bool, text: TextSpec) -> dict[str, Any]:
    """Return the field of a TextRequest that a `prompt_name` sets: the prompt, or the side of a model with sides.

    A side has its own prompt. Without a name the model's files decide. Raises InvalidInput.
    """
    if name is None:
        return {}
    if text.has_sides and name in _SIDES:
        return {"are_queries": name == "query"}
    if has_texts and name in text.prompts:
        return {"prompt": text.prompts[name]}
    names = {*(text.prompts if has_texts else ()), *(_SIDES if text.has_sides else ())}
    known = ", ".join(sorted(names)[:_MAX_NAMES])
    expected = f"one of {known}" if known else "null"
    raise InvalidInput("prompt_name", f"expected {expected}, got {got(name)}; or put the prompt before each text")


def _embedded(inputs: Any) -> Any:
    if isinstance(inputs, list) and inputs and isinstance(inputs[0], list) and isinstance(inputs[0][0], str):
        raise InvalidInput("inputs", "expected a text or a list of texts, got lists of texts; send one list")
    return inputs


def _write_embed(decoded: BodyRequest, answer: EmbedAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(array_to_json(np.ascontiguousarray(answer.embeddings)), option=orjson.OPT_SERIALIZE_NUMPY)


def _build_sparse(body: TeiEmbedSparseRequest, spec: ModelSpec) -> TextRequest:
    assert spec.text is not None
    if "sparse" not in spec.text.kinds:
        raise InvalidInput(
            "model", "expected a model of sparse vectors, got one of another kind; post the texts to /embed or /infer"
        )
    texts, token_ids = texts_or_ids(_embedded(body.inputs))
    return TextRequest(
        texts,
        truncate=truncation_of(body.truncate, body.truncation_direction),
        token_ids=token_ids,
        **_named(body.prompt_name, token_ids is None, spec.text),
        vectors=("sparse",),
        kinds=("sparse",),
    )


def _write_sparse(decoded: BodyRequest, answer: SparseAnswer, context: AnswerContext) -> bytes:
    rows = list(zip(answer.indices, answer.values, strict=True))
    return orjson.dumps(list_to_json(rows, _elements_of))


def _elements_of(row: tuple[Array, Array]) -> list[dict[str, Any]]:
    indices, values = row
    # A float32 is written with the digits of its own, which those of a float64 would exceed.
    pairs = zip(indices.tolist(), values.astype(str).tolist(), strict=True)
    return [{"index": index, "value": float(value)} for index, value in pairs]


def _build_predict(body: TeiPredictRequest, spec: ModelSpec) -> TextRequest | PairRequest:
    truncate = truncation_of(body.truncate, body.truncation_direction)
    return _classified(body.inputs, truncate, bool(body.raw_scores), None)


def _classified(inputs: Any, truncate: Truncation, raw_scores: bool, top_k: int | None) -> TextRequest | PairRequest:
    """Return the request for the labels of texts, or of pairs of texts."""
    sequences = _sequences_of(inputs)
    lengths = set(map(len, sequences))
    if lengths == {1}:
        return TextRequest([text for (text,) in sequences], truncate=truncate, top_k=top_k, raw_scores=raw_scores)
    if lengths == {2}:
        return PairRequest([(one, other) for one, other in sequences], truncate, raw_scores, with_labels=True)
    raise InvalidInput("inputs", "expected texts or pairs of texts, got both; send a request for each kind")


def _sequences_of(inputs: Any) -> Sequence[Sequence[str]]:
    if isinstance(inputs, str):
        return [[inputs]]
    if isinstance(inputs[0], int) or (isinstance(inputs[0], list) and not isinstance(inputs[0][0], str)):
        raise InvalidInput("inputs", "expected texts, got token ids; send text")
    if isinstance(inputs[0], str):
        if len(inputs) > 2:
            raise InvalidInput(
                "inputs", f"expected a text or a pair of texts, got {len(inputs)} texts; send each text in a list"
            )
        return [inputs]
    if max(map(len, inputs)) > 2:
        raise InvalidInput("inputs", "expected lists of one or two texts, got more texts; send each text in a list")
    return inputs  # type: ignore[no-any-return]


def _is_batch(inputs: Any) -> bool:
    return isinstance(inputs, list) and isinstance(inputs[0], list)


def _write_predict(decoded: BodyRequest, answer: ClassifyAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(_predictions(answer, _is_batch(decoded.body.inputs)))


def _predictions(answer: ClassifyAnswer, is_batch: bool) -> Any:
    rows = list_to_json(answer.predictions, lambda row: [{"score": score, "label": label} for label, score in row])
    return rows if is_batch else rows[0]


def _build_similarity(body: TeiSimilarityRequest | TeiRootRequest, spec: ModelSpec) -> PairRequest:
    assert isinstance(body.inputs, SimilarityInput)
    options = body.parameters
    source = body.inputs.source_sentence
    pairs = [(source, each) for each in body.inputs.sentences]
    return PairRequest(
        pairs, True if options is None else truncation_of(options.truncate, options.truncation_direction)
    )


def _write_similarity(decoded: BodyRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(answer.scores)


def _build_root(body: TeiRootRequest, spec: ModelSpec) -> TextRequest | PairRequest | ImageRequest:
    if spec.text is None:
        _refuse_options_of_vectors(body.parameters)
        return _build_images(body, spec)
    if isinstance(body.inputs, SimilarityInput):
        _refuse_options_of_vectors(body.parameters)
        if spec.task != "embed":
            raise InvalidInput("inputs", f"expected texts for a model whose task is {spec.task}, got an object")
        return _build_similarity(body, spec)
    options = body.parameters
    is_cut = body.truncate is not False and (options is None or options.truncate is not False)
    side = body.truncation_direction or (None if options is None else options.truncation_direction)
    if spec.task == "embed":
        given = _options_of_vectors(body)
        update = {"truncate": is_cut, "truncation_direction": side} | given
        try:
            return _build_embed(body.model_copy(update=update), spec)
        except InvalidInput as error:
            if error.field not in given:
                raise
            raise InvalidInput(f"parameters.{error.field}", error.reason) from None
    if body.prompt_name is not None:
        raise InvalidInput(
            "prompt_name", f"expected null, got {got(body.prompt_name)}; put the prompt before each text"
        )
    _refuse_options_of_vectors(options)
    top_k, is_raw = (None, False) if options is None else (options.top_k, _asks_logits(options, spec))
    inputs = _as_hugging_face(body.inputs) if options is not None else body.inputs
    truncate = truncation_of(is_cut, side)
    return _classified(inputs, truncate, bool(body.raw_scores) or is_raw, top_k)


def _options_of_vectors(body: TeiRootRequest) -> dict[str, Any]:
    """Return the options of vectors that `parameters` gives. Raises InvalidInput for one that the body gives too."""
    given = {} if body.parameters is None else body.parameters.of_vectors()
    for name in given:
        if name in body.model_fields_set:
            raise InvalidInput(f"parameters.{name}", f"expected one value, got {name} too; leave one of them out")
    return given


def _refuse_options_of_vectors(options: RootParameters | None) -> None:
    """Raise InvalidInput for an option of vectors where the answer has none."""
    for name in () if options is None else options.of_vectors():
        raise InvalidInput(f"parameters.{name}", "expected texts for a model that embeds, got others; leave it out")


def _build_images(body: TeiRootRequest, spec: ModelSpec) -> ImageRequest:
    """Return the request for one image, or a list of them, in base64, for a model that reads only images."""
    options, inputs = body.parameters, body.inputs
    is_list = isinstance(inputs, list)
    images = decode_images(inputs if isinstance(inputs, list) else [inputs], "inputs", is_list)
    top_k, is_raw = (None, False) if options is None else (options.top_k, _asks_logits(options, spec))
    return ImageRequest(images, top_k=num_labels(top_k, spec), raw_scores=is_raw)


def num_labels(top_k: int | None, spec: ModelSpec) -> int | None:
    """Return how many labels an image gets: without `top_k` as many as transformers' pipeline returns."""
    return _NUM_LABELS if top_k is None and spec.task == "classify" else top_k


def _asks_logits(options: RootParameters, spec: ModelSpec) -> bool:
    """Return whether the scores are to be logits. Raises InvalidInput for a function that the model does not have."""
    value = options.function_to_apply
    return value is not None and read_function_to_apply(value, spec, "parameters.function_to_apply")


def _as_hugging_face(inputs: Any) -> Any:
    """Return the batch that huggingface_hub means: to its pipelines, a list of texts is no pair."""
    return [[text] for text in inputs] if isinstance(inputs, list) and isinstance(inputs[0], str) else inputs


def _write_root(decoded: BodyRequest, answer: Any, context: AnswerContext) -> bytes:
    if isinstance(answer, EmbedAnswer):
        return _write_embed(decoded, answer, context)
    if isinstance(answer, ScoreAnswer):
        return _write_similarity(decoded, answer, context)
    if isinstance(decoded.request, ImageRequest):
        is_batch = isinstance(decoded.body.inputs, list)
    else:
        is_batch = decoded.body.parameters is not None or _is_batch(decoded.body.inputs)
    return orjson.dumps(_predictions(answer, is_batch))


def _build_ranking(body: TeiRerankRequest, spec: ModelSpec) -> PairRequest:
    check_scores_pairs(spec)
    truncate = truncation_of(body.truncate, body.truncation_direction)
    return PairRequest([(body.query, text) for text in body.texts], truncate, bool(body.raw_scores))


def _write_ranking(decoded: BodyRequest, answer: ScoreAnswer, context: AnswerContext) -> bytes:
    pairs, scores = decoded.request.pairs, answer.scores
    with_text = bool(decoded.body.return_text)

    def rank(index: int) -> dict[str, Any]:
        text = {"text": pairs[index][1]} if with_text else {}
        return {"index": index, **text, "score": scores[index]}

    return orjson.dumps(list_to_json(best_first(scores, decoded.body.top_n), rank))


def _build_tokens(body: TeiTokenizeRequest, spec: ModelSpec) -> SpansRequest:
    return SpansRequest(tuple(to_texts(body.inputs)), body.add_special_tokens is not False)


def _write_tokens(decoded: BodyRequest, answer: SpansAnswer, context: AnswerContext) -> bytes:
    rows = zip(decoded.request.texts, answer.token_ids, answer.strings, answer.spans, strict=True)
    return orjson.dumps([list_to_json(list(zip(*row, strict=True)), _token_of(text)) for text, *row in rows])


def _token_of(text: str) -> Any:
    def describe(token: tuple[int, str, tuple[int, int] | None]) -> dict[str, Any]:
        token_id, string, span = token
        if span is None:
            return {"id": token_id, "text": string, "special": True, "start": None, "stop": None}
        start, stop = span
        return {"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop}

    return describe


def _rename(field: str) -> str:
    """Return the field of a text as the bodies name it."""
    return rename_pair(rename_text(field, "inputs"), "inputs.source_sentence", "inputs.sentences")


def _rename_in_predict(field: str) -> str:
    return rename_text(field.replace("pairs", "text", 1), "inputs") if field.startswith("pairs") else _rename(field)


def _drop_null_parameters(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Take away options that are null: huggingface_hub sends all of them."""
    options = fields.get("parameters")
    if isinstance(options, dict):
        fields["parameters"] = {name: value for name, value in options.items() if value is not None}


def _check_parameters(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Refuse options that would change the response."""
    _drop_null_parameters(fields, spec)
    if isinstance(fields.get("parameters"), dict):
        POLICY.apply(fields["parameters"], "parameters.")


EMBED_CODEC = TeiCodec(
    "/embed", ("embed",), TeiEmbedRequest, _build_embed, _write_embed, _EMBED, rename=_rename,
)  # fmt: skip
EMBED_SPARSE_CODEC = TeiCodec(
    "/embed_sparse", ("embed",), TeiEmbedSparseRequest, _build_sparse, _write_sparse, rename=_rename,
)  # fmt: skip
PREDICT_CODEC = TeiCodec(
    "/predict", ("classify",), TeiPredictRequest, _build_predict, _write_predict, POLICY, rename=_rename_in_predict
)
SIMILARITY_CODEC = TeiCodec(
    "/similarity", ("embed",), TeiSimilarityRequest, _build_similarity, _write_similarity, rename=_rename,
    check=_check_parameters,
)  # fmt: skip
ROOT_CODEC = TeiCodec(
    "/", ("embed", "classify"), TeiRootRequest, _build_root, _write_root, _ROOT, rename=_rename,
    check=_drop_null_parameters, reads_images=True,
)  # fmt: skip
RERANK_CODEC = TeiCodec(
    "/rerank",
    ("embed", "classify"),
    TeiRerankRequest,
    _build_ranking,
    _write_ranking,
    POLICY,
    rename=lambda field: rename_pair(field, "query", "texts"),
    kinds=("rerank", "embed"),
)
TOKENIZE_CODEC = TeiCodec(
    "/tokenize", ("embed", "classify"), TeiTokenizeRequest, _build_tokens, _write_tokens,
    POLICY, rename=lambda field: rename_text(field, "inputs"),
)  # fmt: skip
# Of texts with `parameters`, which are those of a classifier.
LABELS_CODEC = replace(ROOT_CODEC, kinds=("classify", "rerank", "embed"))
