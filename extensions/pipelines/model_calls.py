"""Steps that run models: which inputs and outputs a model has, and how values become requests to it."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np

from extensions.pipelines.kinds import IMAGES, TEXTS, Kind, PredictionsType, Values
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import Port, StepFault
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.text.label_order import in_label_order
from frameworks.text.tokens import SpansAnswer, SpansRequest
from frameworks.types import (
    NUMPY_DTYPES,
    Array,
    ClassifyAnswer,
    EmbedAnswer,
    ModelSpec,
    PairRequest,
    ScoreAnswer,
    TensorBatch,
    TensorType,
    TextRequest,
)

_SCORES = TensorType("float32", (-1,))
_ROWS = TensorType("int64", (-1,))


class TensorCall:
    """Tensors to a model, by the names of its inputs and outputs."""

    def __init__(self, spec: ModelSpec, used: frozenset[str]) -> None:
        self.spec = spec
        if spec.framework == "pytorch":
            kind = "text" if spec.text is not None else "image"
            raise StepFault("inputs", f"expected the input {kind} of this model, got others; wire it")
        for value in spec.inputs:
            if value.required and not isinstance(value.type, TensorType):
                raise StepFault("model", f'expected tensors as inputs, got "{value.name}" of type {value.type}')
        self.ports = {
            value.name: Port(value.type, value.required) for value in spec.inputs if isinstance(value.type, TensorType)
        }
        self.outputs: dict[str, Kind] = {value.name: value.type for value in spec.outputs}
        names = tuple(value.name for value in spec.outputs if value.name in used)
        # One tuple for all requests: the model compares it, and computes no other output.
        self._output_names = None if len(names) == len(spec.outputs) else names or spec.first_output

    def request(self, values: Values) -> TensorBatch:
        return TensorBatch(values, self._output_names)

    def read(self, values: Values, answer: Any) -> Values:
        return answer  # type: ignore[no-any-return]


class TextCall:
    """Texts to a model that embeds or classifies them."""

    def __init__(self, entry: StepEntry, spec: ModelSpec) -> None:
        assert spec.text is not None
        self.spec = spec
        self.ports = {"text": Port(TEXTS)}
        self._normalize = entry.normalize
        self._truncate = entry.truncate is not False
        self.outputs = _outputs_of(spec, spec.text.labels, spec.text.embedding_size)
        if entry.normalize is not None and spec.task != "embed":
            raise StepFault("normalize", f"expected a model of task embed, got {spec.task}; remove this key")

    def request(self, values: Values) -> TextRequest:
        return TextRequest(_texts(values["text"]), self._normalize, self._truncate)

    def read(self, values: Values, answer: Any) -> Values:
        return _read(self.spec, answer)


class ImageCall:
    """Images to a model that embeds or classifies them, or returns tensors."""

    def __init__(self, entry: StepEntry, spec: ModelSpec) -> None:
        assert spec.image is not None
        self.spec = spec
        self.ports = {"image": Port(IMAGES)}
        self._normalize = entry.normalize
        self.outputs = _outputs_of(spec, spec.image.labels, spec.image.embedding_size)
        if entry.truncate is not None:
            raise StepFault("truncate", "expected no such key for a model that reads images; remove it")

    def request(self, values: Values) -> Any:
        return ImageRequest([_as_file(image) for image in values["image"]], self._normalize)

    def read(self, values: Values, answer: Any) -> Values:
        return _read(self.spec, answer)


class PairCall:
    """Pairs of a query and a text to a model that scores them. One query is for all texts, or `rows` has its row."""

    def __init__(self, entry: StepEntry, spec: ModelSpec) -> None:
        assert spec.text is not None
        self.spec = spec
        self.ports = {"query": Port(TEXTS), "text": Port(TEXTS), "rows": Port(_ROWS, required=False)}
        self.outputs: dict[str, Kind] = {"scores": _SCORES}
        self._truncate = entry.truncate is not False
        if spec.task == "classify" and len(spec.text.labels) != 1:
            raise StepFault("model", f"expected a model with one score for a pair, got {len(spec.text.labels)} labels")
        if entry.normalize is not None:
            raise StepFault("normalize", "expected no such key beside the input query; remove it")

    def request(self, values: Values) -> PairRequest:
        queries, texts, rows = values["query"].tolist(), values["text"].tolist(), values.get("rows")
        if rows is not None:
            if len(rows) != len(texts) or (len(rows) and not (rows.min() >= 0 and rows.max() < len(queries))):
                raise InvalidInput("rows", f"expected the row of one of {len(queries)} queries for each text")
            queries = [queries[row] for row in rows.tolist()]
        elif len(queries) == 1:
            queries *= len(texts)
        elif len(queries) != len(texts):
            message = f"expected 1 or {len(texts)}, one for each text, got {len(queries)}"
            raise InvalidInput("query", message)
        return PairRequest(list(zip(queries, texts, strict=True)), self._truncate)

    def read(self, values: Values, answer: Any) -> Values:
        assert isinstance(answer, ScoreAnswer)
        return {"scores": np.array(answer.scores, np.float32)}


class TokenizeCall:
    """The tokens of texts: `input_ids`, `attention_mask` and `token_type_ids`, int64 [n, longest], padded with 0."""

    def __init__(self, entry: StepEntry, spec: ModelSpec) -> None:
        if spec.text is None:
            raise StepFault("model", "expected a model with a tokenizer for texts, got another one; name another model")
        self.spec = spec
        self._max_tokens = spec.text.max_tokens
        self._truncate = entry.truncate is not False
        self.ports = {"text": Port(TEXTS)}
        rows = TensorType("int64", (-1, -1))
        self.outputs: dict[str, Kind] = {"input_ids": rows, "attention_mask": rows, "token_type_ids": rows}

    def request(self, values: Values) -> SpansRequest:
        return SpansRequest(tuple(_texts(values["text"])))

    def read(self, values: Values, answer: Any) -> Values:
        assert isinstance(answer, SpansAnswer)
        ids = [self._cut(*row) for row in zip(answer.token_ids, answer.spans, strict=True)]
        longest = max(map(len, ids), default=0)
        input_ids, mask = np.zeros((len(ids), longest), np.int64), np.zeros((len(ids), longest), np.int64)
        for at, row in enumerate(ids):
            input_ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        return {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}

    def _cut(self, ids: list[int], spans: list[tuple[int, int] | None]) -> list[int]:
        """Return the tokens within the limit of the model, with the special token at the end."""
        if len(ids) <= self._max_tokens:
            return ids
        if not self._truncate:
            raise InvalidInput("text", f"expected at most {self._max_tokens} tokens, got {len(ids)}; shorten it")
        ends = [ids[-1]] if spans[-1] is None else []
        return ids[: self._max_tokens - len(ends)] + ends


ModelCall = TensorCall | TextCall | ImageCall | PairCall | TokenizeCall
"""How a step calls a model with one spec: `request` makes the request, `read` the outputs of its answer."""


def make_call(entry: StepEntry, wired: frozenset[str], used: frozenset[str], spec: ModelSpec) -> ModelCall:
    """Return how a step calls a model. `wired`: its inputs; `used`: the outputs that other steps read.

    Raises StepFault where a step cannot run such a model.
    """
    if entry.builtin == "tokenize":
        return TokenizeCall(entry, spec)
    if spec.is_composite:
        raise StepFault("model", "expected a model, got a pipeline; add its steps to this one")
    if spec.generation is not None or spec.task == "generate":
        raise StepFault("model", "expected a model with tensors or scores, got one that generates text; leave it out")
    if spec.state is not None:
        raise StepFault("model", "expected a model without a state, as a pipeline has no sequences; leave it out")
    call: ModelCall
    if spec.text is not None and "text" in wired:
        call = PairCall(entry, spec) if "query" in wired else TextCall(entry, spec)
    elif spec.image is not None and "image" in wired and "image" not in spec.inputs_by_name:
        call = ImageCall(entry, spec)
    else:
        call = TensorCall(spec, used)
    if isinstance(call, TensorCall):
        for key in ("normalize", "truncate"):
            if getattr(entry, key) is not None:
                raise StepFault(key, "expected no such key for a model that reads tensors; remove it")
    return call


def empty_values(outputs: Mapping[str, Kind]) -> Values:
    """Return the outputs of a model for no rows."""
    return {name: _empty(kind) for name, kind in outputs.items()}


def _empty(kind: Kind) -> Any:
    if not isinstance(kind, TensorType):
        return []
    return np.empty((0, *(max(size, 0) for size in (kind.shape or ())[1:])), NUMPY_DTYPES[kind.dtype])


def _outputs_of(spec: ModelSpec, labels: tuple[str, ...], embedding_size: int | None) -> dict[str, Kind]:
    if spec.task == "classify":
        return {"predictions": PredictionsType(labels), "scores": TensorType("float32", (-1, len(labels)))}
    if spec.task == "embed":
        return {"embeddings": TensorType("float32", (-1, embedding_size or -1))}
    return {value.name: value.type for value in spec.outputs}


def _read(spec: ModelSpec, answer: Any) -> Values:
    if isinstance(answer, EmbedAnswer):
        return {"embeddings": answer.embeddings}
    if isinstance(answer, ClassifyAnswer):
        source = spec.text or spec.image
        assert source is not None
        scores = np.array(in_label_order(answer, source.labels), np.float32)
        return {"predictions": answer.predictions, "scores": scores.reshape(len(scores), len(source.labels))}
    assert isinstance(answer, dict)
    return answer


def _texts(value: Array) -> list[str]:
    if value.ndim != 1:
        raise InvalidInput("text", f"expected a list of texts, got the shape {list(value.shape)}")
    return value.tolist()  # type: ignore[no-any-return]


def _as_file(image: Any) -> bytes:
    """Return the file of an image; pixels are written without compression."""
    if isinstance(image, bytes):
        return image
    from PIL import Image

    file = BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG", compress_level=0)
    return file.getvalue()
