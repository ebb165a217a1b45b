"""Read and write the tensors of infer requests to models that generate text, with the names of Triton's backends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from app.protocols.open_inference.generate_options import is_list, is_option, is_unsupported
from app.protocols.open_inference.generate_request import ParsedGenerate
from app.protocols.open_inference.generate_response import sum_logprobs, top_tokens
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, OutputTensor
from app.protocols.open_inference.signature import INDEX_OUTPUT, PROMPT_INPUT, TensorSignature
from app.protocols.shared.fields.generation import MAX_NAMED_TOKENS
from app.protocols.shared.json.output import list_to_json
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.generation.types import FinishReason, GenerateAnswer, TextDelta, TokenText, Usage
from frameworks.types import Array


def read_options(tensors: Sequence[InputTensor], declared: Mapping[str, TensorSignature]) -> dict[str, Any]:
    """Return the value of each input by its name. Raises InvalidInput and UnknownField.

    `declared`: the inputs of the signature. Other options may be inputs too, of any datatype that has their values.
    """
    values: dict[str, Any] = {}
    for name, datatype, value, _ in tensors:
        expected = declared.get(name)
        if expected is None and not is_option(name):
            raise UnknownField.among(name, declared, "inputs.")
        if name in values:
            raise InvalidInput(f"inputs.{name}", "expected one tensor of this name, got two; leave one out")
        if expected is not None and datatype != expected.datatype:
            raise InvalidInput(f"inputs.{name}", f"expected {expected.datatype}, got {datatype}")
        values[name] = _value_of(name, value)
    if PROMPT_INPUT not in values:
        raise InvalidInput(f"inputs.{PROMPT_INPUT}", "expected a tensor, got nothing; send the text as BYTES [1]")
    return values


def _value_of(name: str, value: Array) -> Any:
    flat = value.reshape(-1)
    if is_unsupported(name):
        # No value without an effect has more elements.
        return [_to_python(each) for each in flat[:2]]
    if is_list(name):
        if flat.size > MAX_NAMED_TOKENS:
            raise InvalidInput(f"inputs.{name}", f"expected at most {MAX_NAMED_TOKENS} elements, got {flat.size}")
        return [_to_python(each) for each in flat]
    if flat.size != 1:
        raise InvalidInput(f"inputs.{name}", f"expected one element, as [1] or [1, 1], got shape {list(value.shape)}")
    return _to_python(flat[0])


def _to_python(element: Any) -> Any:
    """Return a number, boolean or string of Python. An FP32 tensor with 0.1 means 0.1 and not the nearest FP32."""
    if isinstance(element, np.floating):
        return float(str(element))
    return element.item() if isinstance(element, np.generic) else element


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of one response, with an element for each. `indices`: of their choices.

    `tokens`: of these texts. `sums`: of the log probabilities of each choice up to here. `num_output_tokens`: of all
    choices, since the last response.
    """

    indices: Sequence[int]
    texts: Sequence[str]
    reasons: Sequence[FinishReason | None]
    tokens: Sequence[Sequence[TokenText]]
    sums: Sequence[float]
    num_input_tokens: int
    num_output_tokens: int


def generated_tensors(request: InferRequest, answer: GenerateAnswer) -> list[OutputTensor]:
    """Return the requested outputs of a whole response."""
    assert request.generation is not None
    choices, usage = answer.choices, answer.usage
    prefix = _prefix_of(request.generation)
    texts = _Texts(
        range(len(choices)),
        [prefix + choice.text for choice in choices],
        [choice.finish_reason for choice in choices],
        [choice.tokens for choice in choices],
        [sum_logprobs(choice.tokens) for choice in choices],
        usage.prompt_tokens,
        usage.tokens_generated,
    )
    return _tensors(request, texts)


class StreamedTensors:
    """The responses of one streamed request: its outputs, with the new text of a piece.

    With several choices the outputs have an element for each, as in Triton's vLLM backend. If `sequence_index` is
    requested, they are those of one choice, as in TensorRT-LLM's; a request with `stream` false then gets a response
    with the whole text of each choice.
    """

    def __init__(self, request: InferRequest) -> None:
        assert request.generation is not None
        self._request = request
        self._parsed = request.generation
        self._num_choices = self._num_unfinished = self._parsed.request.num_choices
        self._by_choice = any(output.name == INDEX_OUTPUT for output in request.outputs)
        self._sums = [0.0] * self._num_choices
        self._num_output_tokens = 0
        self._pieces: list[list[TextDelta]] = [[] for _ in range(self._num_choices)]

    @property
    def is_last(self) -> bool:
        """Whether the response to the last piece ends the request."""
        return not self._num_unfinished

    def add(self, piece: TextDelta, usage: Usage) -> list[OutputTensor] | None:
        """Return the outputs of the response to a piece, None if it has none. `usage`: so far."""
        index = piece.index
        self._sums[index] += sum_logprobs(piece.tokens)
        self._num_unfinished -= piece.finish_reason is not None
        if self._parsed.stream is False:
            self._pieces[index].append(piece)
            if piece.finish_reason is None:
                return None
            pieces, self._pieces[index] = self._pieces[index], []
            text = _prefix_of(self._parsed) + "".join(each.text for each in pieces)
            piece = TextDelta(
                index, text, piece.finish_reason, tuple(token for each in pieces for token in each.tokens)
            )
        num_new = usage.tokens_generated - self._num_output_tokens
        self._num_output_tokens = usage.tokens_generated
        indices = [index] if self._by_choice else list(range(self._num_choices))
        texts = _Texts(
            indices,
            [piece.text if each == index else "" for each in indices],
            [piece.finish_reason if each == index else None for each in indices],
            [piece.tokens if each == index else () for each in indices],
            [self._sums[each] for each in indices],
            usage.prompt_tokens,
            num_new,
        )
        return _tensors(self._request, texts)


def _prefix_of(parsed: ParsedGenerate) -> str:
    return str(parsed.request.prompts[0]) if parsed.include_input else ""


def _tensors(request: InferRequest, texts: _Texts) -> list[OutputTensor]:
    assert request.generation is not None
    parsed = request.generation
    return [OutputTensor(name, *_values_of(name, texts, parsed), binary) for name, _, binary in request.outputs]


def _values_of(name: str, texts: _Texts, parsed: ParsedGenerate) -> tuple[str, Array]:
    """Return the datatype and the values of one output."""
    match name:
        case "text_output":
            return "BYTES", _strings(texts.texts)
        case "finish_reason":
            return "BYTES", _strings([str(reason) for reason in texts.reasons])
        case "cumulative_logprob" | "cum_log_probs":
            return "FP32", np.array(texts.sums, np.float32)
        case "output_log_probs":
            return "FP32", _padded(texts.tokens)
        case "logprobs":
            # Triton's vLLM backend writes null for a request without a number of log probabilities.
            return "BYTES", _strings([_json_of(tokens) if parsed.logprobs else "null" for tokens in texts.tokens])
        case "num_input_tokens":
            return "UINT32", np.array([texts.num_input_tokens], np.uint32)
        case "num_output_tokens":
            return "UINT32", np.array([texts.num_output_tokens], np.uint32)
        case "sequence_index":
            return "INT32", np.array(texts.indices, np.int32).reshape(-1, 1)
    raise AssertionError(f"the signature has no output {name}")


def _json_of(tokens: Sequence[TokenText]) -> str:
    return orjson.dumps(list_to_json(tokens, top_tokens)).decode()


def _padded(tokens: Sequence[Sequence[TokenText]]) -> Array:
    """Return the log probabilities as float32 [texts, tokens]; those of a shorter text end with 0."""
    rows = np.zeros((len(tokens), max(map(len, tokens), default=0)), np.float32)
    for row, of_text in zip(rows, tokens, strict=True):
        row[: len(of_text)] = [-np.inf if token.logprob is None else token.logprob for token in of_text]
    return rows


def _strings(texts: Sequence[str]) -> Array:
    strings = np.empty(len(texts), dtype=object)
    strings[:] = texts
    return strings
