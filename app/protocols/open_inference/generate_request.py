"""Read the body of Triton's generate extension: a text and the options of a language model.

Triton's extension leaves the options to the model. Here they have vLLM's names, or TensorRT-LLM's names for the same
options. An option is a member of the body or of `parameters`. A number may be a string, because parameters of older
Triton versions have no fractions. Unknown options have no effect, as in Triton. Options that a backend supports and
this server does not are refused, because they would change the text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field

from app.protocols.bodies import MAX_INT32, read_body
from app.protocols.constraint_fields import (
    ConstraintFields,
    StructuredOutputs,
    to_constraint,
    to_structured_constraint,
)
from app.protocols.generation_fields import (
    MAX_TOP_LOGPROBS,
    NumChoices,
    SamplingFields,
    StoppingFields,
    num_top_logprobs,
    to_sampling,
    to_stopping,
)
from app.protocols.json_body import describe_type
from frameworks.errors import FieldError, InvalidInput
from frameworks.generation.types import Constraint, GenerateRequest, GenerationSpec
from frameworks.types import DEFAULT_PRIORITY, LAST_PRIORITY

DEFAULT_MAX_TOKENS = 20
"""The default of the generate API of the Open Inference Protocol."""
MAX_TIMEOUT_US = 2**63 - 1


class GenerateTextRequest(ConstraintFields, StoppingFields, SamplingFields):
    """Options are members of the body or of `parameters`, under the names of Triton's backends for language models. A
    number may be a string. Unknown options have no effect.
    """

    model_config = ConfigDict(extra="allow")

    text_input: str = Field(description="The text to continue.", examples=["The function returns"])
    id: str | None = Field(None, description="Repeated in the response.")
    parameters: dict[str, Any] | None = Field(
        None, description="More options.", examples=[{"temperature": 0, "max_tokens": 20}]
    )
    max_tokens: Annotated[int | None, Field(ge=1, le=MAX_INT32)] = Field(
        None, description=f"Maximum number of generated tokens. Default: {DEFAULT_MAX_TOKENS}."
    )
    n: NumChoices = 1
    end_id: int | None = Field(None, ge=-1, le=MAX_INT32, description="A token that ends a text; -1: none.")
    stream: bool | None = Field(
        None, description="generate_stream: false sends the whole text in one event. generate: true is refused."
    )
    exclude_input_in_output: bool | None = Field(
        None, description="generate: false puts text_input before the text. Default: true."
    )
    return_log_probs: bool | None = Field(None, description="Return TensorRT-LLM's output_log_probs and cum_log_probs.")
    return_cumulative_logprob: bool | None = Field(None, description="Return vLLM's cumulative_logprob.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | bool | None = Field(
        None, description="The number of most likely tokens in return_logprobs; true: 0."
    )
    return_logprobs: bool | None = Field(None, description="Return vLLM's logprobs, as JSON in a string.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="A constraint of the text, as an object or as its JSON in a string."
    )
    guided_decoding: StructuredOutputs | None = Field(None, description="vLLM's former name of structured_outputs.")
    guided_decoding_guide_type: Literal["json", "json_schema", "regex"] | None = Field(
        None, description="TensorRT-LLM's kind of constraint."
    )
    guided_decoding_guide: str | None = Field(None, description="The JSON schema or the pattern of the constraint.")
    priority: int | None = Field(
        None, ge=0, le=LAST_PRIORITY, description="Position in the queue: 1 is first; 0 is the default, 5."
    )
    timeout: int | None = Field(
        None, ge=0, le=MAX_TIMEOUT_US, description="Microseconds until the deadline of the request; 0: none."
    )


# TensorRT-LLM's names. Those of its LLM API have the prefix.
_PREFIX = "sampling_param_"
_SYNONYMS = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "stop_words": "stop",
    "num_return_sequences": "n",
    "streaming": "stream",
    "exclude_input_from_output": "exclude_input_in_output",
}
_NUMBERS = (SamplingFields.model_fields.keys() - {"logit_bias"}) | {
    *("max_tokens", "min_tokens", "n", "logprobs", "end_id", "priority", "timeout"),
}
_LISTS_AND_OBJECTS = frozenset({"logit_bias", "stop", "stop_token_ids", *ConstraintFields.model_fields})
_STRUCTURED = frozenset({"structured_outputs", "guided_decoding"})
_OPTIONS = GenerateTextRequest.model_fields.keys() - {"id", "parameters"}
_SAMPLING = "sampling_parameters."
_EMPTY: tuple[Any, ...] = ("", [], [""])
"""TensorRT-LLM requires lists of words in every request; its clients send these for none."""

_ONLY_TEXT = "this server reads only text; leave it out"
_NO_BEAMS = "texts are sampled, or greedy with temperature 0; leave it out"
_NO_LOGITS = "send return_log_probs instead"
_NO_ADAPTERS = "merge the adapter into the weights and serve them as a model of their own"
# Option → the values without an effect, and the remedy for every other value.
_NOT_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "bad_words": (_EMPTY, "give their tokens a logit_bias of -100"),
    "embedding_bias_words": (_EMPTY, "give their tokens a logit_bias"),
    "beam_width": ((1,), _NO_BEAMS),
    "use_beam_search": ((False,), _NO_BEAMS),
    "best_of": ((1,), "texts are not ranked; request all of them with n, and return_log_probs to rank them"),
    "return_context_logits": ((False,), _NO_LOGITS),
    "return_generation_logits": ((False,), _NO_LOGITS),
    "skip_special_tokens": ((True,), "special tokens are never returned; leave it out"),
    "include_stop_str_in_output": ((False,), "append the string to the text"),
    "image": (_EMPTY, _ONLY_TEXT),
    "image_url": (_EMPTY, _ONLY_TEXT),
    "image_input": (_EMPTY, _ONLY_TEXT),
    "lora_name": ((), _NO_ADAPTERS),
    "lora_task_id": ((), _NO_ADAPTERS),
}

_WHOLE = re.compile(r"-?[0-9]{1,20}")
_FRACTION = re.compile(r"-?[0-9]{1,20}\.?[0-9]{0,20}(?:[eE][-+]?[0-9]{1,3})?")
_FIELD_SEPARATOR = re.compile(r"[.\[]")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a body. `fields`: by the names of GenerateTextRequest. `names`: the caller's paths."""

    fields: Mapping[str, Any]
    names: Mapping[str, str]

    def rename(self, error: FieldError) -> FieldError:
        """Return the error with the caller's path of the field."""
        field = _FIELD_SEPARATOR.split(error.field, maxsplit=1)[0]
        if field not in self.names:
            return error
        return type(error)(self.names[field] + error.field[len(field) :], error.reason)


@dataclass(frozen=True, slots=True)
class ParsedGenerate:
    """The request and the form of its response. `stream`: None where the body does not have it.

    `include_input`: the text begins with the prompt. `log_probs`: return TensorRT-LLM's `output_log_probs` and
    `cum_log_probs`; `cumulative_logprob` and `logprobs`: return vLLM's fields of these names.
    """

    request: GenerateRequest
    id: str
    priority: int
    timeout_ms: float | None
    stream: bool | None
    include_input: bool
    log_probs: bool
    cumulative_logprob: bool
    logprobs: bool


def collect_options(body: Any, with_id: bool = False) -> Options:
    """Collect the options of a body from all places. Raises InvalidInput where two places differ.

    `with_id`: the body has the request's id.
    """
    if not isinstance(body, dict):
        raise InvalidInput("body", f"expected a JSON object, got {describe_type(body)}")
    fields: dict[str, Any] = {"id": body.get("id")} if with_id else {}
    names: dict[str, str] = {}
    for within, members in _places(body):
        for name, given in members.items():
            field = _field_of(name)
            if given is None or (field not in _OPTIONS and field not in _NOT_SUPPORTED):
                continue
            if field == "stop" and given in _EMPTY:
                continue
            path, value = within + name, _unwrap(field, given, within + name)
            # vLLM's own client sends sampling_parameters and parameters, and its backend reads the first.
            if field in fields and fields[field] != value and within != _SAMPLING:
                raise InvalidInput(path, f"expected the value of {names[field]}, got another; send one of them")
            fields[field] = value
            names[field] = path
    options = Options(fields, names)
    _check_supported(options)
    return options


def parse_generate(options: Options, spec: GenerationSpec) -> ParsedGenerate:
    """Validate the options. Raises InvalidInput and UnknownField with the caller's path of the field."""
    try:
        body = read_body(GenerateTextRequest, options.fields)
        top_logprobs = num_top_logprobs(body.logprobs)
        returns_sums = bool(body.return_log_probs or body.return_cumulative_logprob)
        stopping = to_stopping(body, spec, DEFAULT_MAX_TOKENS)
        if body.end_id is not None and body.end_id >= 0:
            if body.end_id >= spec.vocabulary_size:
                raise InvalidInput(
                    "end_id", f"expected an integer from -1 to {spec.vocabulary_size - 1}, got {body.end_id}"
                )
            stopping = replace(stopping, token_ids=stopping.token_ids | {body.end_id})
        request = GenerateRequest(
            (body.text_input,),
            to_sampling(body, spec, 0 if top_logprobs is None and returns_sums else top_logprobs),
            stopping,
            _to_constraint(body),
            body.n or 1,
        )
    except FieldError as error:
        raise options.rename(error) from None
    return ParsedGenerate(
        request,
        id=body.id or "",
        priority=body.priority or DEFAULT_PRIORITY,
        timeout_ms=body.timeout / 1e3 if body.timeout else None,
        stream=body.stream,
        include_input=body.exclude_input_in_output is False,
        log_probs=bool(body.return_log_probs),
        cumulative_logprob=bool(body.return_cumulative_logprob),
        logprobs=bool(body.return_logprobs) and top_logprobs is not None,
    )


def _places(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects that have options, each after its path. `sampling_parameters` may be JSON in a string."""
    places = [("", body)]
    for within in ("parameters.", _SAMPLING):
        name = within.removesuffix(".")
        value = body.get(name)
        if within == _SAMPLING:
            value = _without_list(value)
            value = _parse_json(value, name) if isinstance(value, str) else value
        if value is None:
            continue
        if not isinstance(value, dict):
            raise InvalidInput(name, f'expected an object like {{"temperature": 0}}, got {describe_type(value)}')
        places.append((within, value))
    return places


def _field_of(name: str) -> str:
    name = name.removeprefix(_PREFIX)
    return _SYNONYMS.get(name, name)


def _unwrap(field: str, value: Any, path: str) -> Any:
    """Return a value without the list, string or JSON that tensors and parameters of Triton put around it."""
    if field not in _LISTS_AND_OBJECTS:
        value = _without_list(value)
    if field in _NUMBERS and isinstance(value, str):
        if _WHOLE.fullmatch(value):
            value = int(value)
        elif _FRACTION.fullmatch(value):
            value = float(value)
    if field in _STRUCTURED:
        value = _parse_json(value, path) if isinstance(value, str) else value
        if isinstance(value, dict):
            # `backend` selects a library of vLLM.
            value = {name: each for name, each in value.items() if name != "backend"}
    if field == "seed" and type(value) is int and 0 <= value < 2**64:
        return value % 2**63  # TensorRT-LLM's seeds have one bit more
    return value


def _without_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _parse_json(value: str, path: str) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(path, f"expected JSON in the string, got an error: {error}") from None


def _check_supported(options: Options) -> None:
    for name, (neutral, remedy) in _NOT_SUPPORTED.items():
        value = options.fields.get(name)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise InvalidInput(options.names[name], f"not supported; {remedy}")


def _to_constraint(body: GenerateTextRequest) -> Constraint | None:
    """Return the constraint that one of the backends' fields describes. Raises InvalidInput for more than one."""
    found = [("", to_constraint(body))]
    for field in ("structured_outputs", "guided_decoding"):
        structured = getattr(body, field)
        if structured is not None:
            found.append((field, to_structured_constraint(structured, field)))
    found.append(("guided_decoding_guide_type", _to_guide(body)))
    constraints = [(field, constraint) for field, constraint in found if constraint is not None]
    if len(constraints) > 1:
        raise InvalidInput(constraints[1][0], "expected one constraint, got several; send one of them")
    return constraints[0][1] if constraints else None


def _to_guide(body: GenerateTextRequest) -> Constraint | None:
    kind, guide = body.guided_decoding_guide_type, body.guided_decoding_guide
    if kind is None:
        if guide is not None:
            raise InvalidInput("guided_decoding_guide_type", "expected json, json_schema or regex, got nothing")
        return None
    if kind == "json":
        return Constraint("json_schema", "true")
    field = "guided_decoding_guide"
    if guide is None:
        raise InvalidInput(field, "expected a string, the schema or the pattern, got nothing")
    try:
        constraint: dict[str, Any] = {kind: _parse_json(guide, field) if kind == "json_schema" else guide}
        return to_constraint(read_body(ConstraintFields, constraint))
    except FieldError as error:
        raise InvalidInput(field, error.reason) from None
