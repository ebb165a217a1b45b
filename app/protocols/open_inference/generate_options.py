"""Collect the options of a text from the members of a body, its objects of options, and the tensors of infer.

An option is a member of the body, of `parameters` or of `sampling_parameters`, or an input tensor. A number may be a
string, because parameters of older Triton versions have no fractions. Unknown members have no effect, as in Triton.
Options that a backend supports and this server does not are refused, because they would change the text.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import orjson

from app.protocols.open_inference.generate_fields import GenerateTextRequest
from app.protocols.shared.fields.constraints import ConstraintFields
from app.protocols.shared.fields.generation import SamplingFields
from app.protocols.shared.json.body import describe_type
from frameworks.core.errors import FieldError, InvalidInput

# TensorRT-LLM's names. Those of its LLM API have the prefix, and those of its engine `runtime_`.
_PREFIX = "sampling_param_"
_SYNONYMS = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "stop_words": "stop",
    "num_return_sequences": "n",
    "streaming": "stream",
    "exclude_input_from_output": "exclude_input_in_output",
}
_NUMBERS = (SamplingFields.model_fields.keys() - {"logit_bias", "bad_words"}) | {
    *("max_tokens", "min_tokens", "n", "logprobs", "end_id", "priority", "timeout"),
}
_WORDS = frozenset({"stop", "bad_words"})
_LISTS = _WORDS | {"stop_token_ids", "choice"}
_JSON = frozenset({"logit_bias", "response_format", "structured_outputs", "guided_decoding"})
_STRUCTURED = frozenset({"structured_outputs", "guided_decoding"})
_MESSAGES = "messages"
_LISTS_AND_OBJECTS = _LISTS | {_MESSAGES, "logit_bias", *ConstraintFields.model_fields}
_OPTIONS = GenerateTextRequest.model_fields.keys() - {"id", "parameters"}
_SAMPLING = "sampling_parameters."
_TENSORS = "inputs."
_EMPTY: tuple[Any, ...] = ("", [], [""])
"""TensorRT-LLM requires lists of words in every request; its clients send these for none."""
_WITHOUT_EFFECT = frozenset({"pad_id", "len_penalty", "length_penalty", "early_stopping", "beam_search_diversity_rate"})
"""Options of batches with padding, and of beams."""

RETURNED = {
    "finish_reason": "return_finish_reason",
    "cumulative_logprob": "return_cumulative_logprob",
    "logprobs": "return_logprobs",
    "num_input_tokens": "return_num_input_tokens",
    "num_output_tokens": "return_num_output_tokens",
    "cum_log_probs": "return_log_probs",
    "output_log_probs": "return_log_probs",
}
"""Outputs of infer, with the option that asks for each."""

_GENERATE = "/v2/models/{name}/generate"
_IN_MESSAGES = f"send messages with image_url parts to {_GENERATE}"
_NO_TABLES = "prompts have no embeddings of their own; leave it out"
_NO_BEAMS = "texts are sampled, or greedy with temperature 0; leave it out"
_NO_LOGITS = "send return_log_probs instead"
_NO_DRAFTS = "the server has no draft models; leave it out"
_ADAPTER_IN_NAME = "name the adapter in the name of the model, as base:adapter"
# Option → the values without an effect, and the remedy for every other value.
_NOT_SUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "embedding_bias_words": (_EMPTY, "give their tokens a logit_bias"),
    "embedding_bias_weights": (([],), "give the tokens a logit_bias"),
    "beam_width": ((1,), _NO_BEAMS),
    "use_beam_search": ((False,), _NO_BEAMS),
    "best_of": ((1,), "texts are not ranked; request all of them with n, and return_log_probs to rank them"),
    "return_context_logits": ((False,), _NO_LOGITS),
    "return_generation_logits": ((False,), _NO_LOGITS),
    "return_perf_metrics": ((False,), "GET /metrics has the times and the use of the cache"),
    "skip_special_tokens": ((True,), "special tokens are never returned; leave it out"),
    "include_stop_str_in_output": ((False,), "append the string to the text"),
    "image": (_EMPTY, _IN_MESSAGES),
    "image_url": (_EMPTY, _IN_MESSAGES),
    "image_input": (_EMPTY, _IN_MESSAGES),
    "prompt_embedding_table": ((), _NO_TABLES),
    "prompt_vocab_size": ((), _NO_TABLES),
    "prompt_table_extra_id": ((), _NO_TABLES),
    "decoder_text_input": (_EMPTY, "the models have no encoder; put the text into text_input"),
    "embedding_request": ((), "send the text as the input text to a model whose task is embed"),
    "num_draft_tokens": ((0,), _NO_DRAFTS),
    "use_draft_logits": ((False,), _NO_DRAFTS),
    "lora_name": ((), _ADAPTER_IN_NAME),
    "lora_task_id": ((), _ADAPTER_IN_NAME),
    "lora_weights": ((), _ADAPTER_IN_NAME),
    "lora_config": ((), _ADAPTER_IN_NAME),
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

    def returning(self, outputs: Iterable[str]) -> Self:
        """Return the options with those that ask for these outputs of infer."""
        wanted = {RETURNED[name]: True for name in outputs if name in RETURNED}
        return replace(self, fields={**self.fields, **wanted}) if wanted else self


def is_option(name: str) -> bool:
    """Whether an input tensor may have this name."""
    field = _field_of(name)
    return field in _OPTIONS or field in _NOT_SUPPORTED or field in _WITHOUT_EFFECT


def is_list(name: str) -> bool:
    """Whether an option may have several elements."""
    return _field_of(name) in _LISTS


def is_unsupported(name: str) -> bool:
    """Whether an option is refused, but for a value without an effect."""
    return name == _MESSAGES or _field_of(name) in _NOT_SUPPORTED


def collect_options(body: Any, with_id: bool = False, tensors: Mapping[str, Any] | None = None) -> Options:
    """Collect the options of a body from all places. Raises InvalidInput where two places differ.

    `with_id`: the body has the request's id. `tensors`: the values of input tensors by name.
    """
    if not isinstance(body, dict):
        raise InvalidInput("body", f"expected a JSON object, got {describe_type(body)}")
    fields: dict[str, Any] = {"id": body.get("id")} if with_id else {}
    names: dict[str, str] = {}
    for within, members in [(_TENSORS, tensors or {}), *_places(body)]:
        for name, given in members.items():
            field = _field_of(name)
            if given is None or (field not in _OPTIONS and field not in _NOT_SUPPORTED):
                continue
            if field in _WORDS and given in _EMPTY:
                continue
            if field == _MESSAGES and (within or tensors is not None):
                raise InvalidInput(
                    within + name, f"expected none here, got some; send messages as a member of the body of {_GENERATE}"
                )
            path, value = within + name, _unwrap(field, given, within + name)
            # vLLM's own client sends sampling_parameters and parameters, and its backend reads the first.
            if field in fields and fields[field] != value and within != _SAMPLING:
                raise InvalidInput(path, f"expected the value of {names[field]}, got another; send one of them")
            fields[field] = value
            names[field] = path
    options = Options(fields, names)
    _check_supported(options)
    return options


def parse_json(value: str, path: str) -> Any:
    """Parse the JSON in a string. Raises InvalidInput, which names `path`."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(path, f"expected JSON in the string, got an error: {error}") from None


def _places(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects that have options, each after its path. `sampling_parameters` may be JSON in a string."""
    places = [("", body)]
    for within in ("parameters.", _SAMPLING):
        name = within.removesuffix(".")
        value = body.get(name)
        if within == _SAMPLING:
            value = _without_list(value)
            value = parse_json(value, name) if isinstance(value, str) else value
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
    if field in _JSON and isinstance(value, str):
        value = parse_json(value, path)
    if field in _STRUCTURED and isinstance(value, dict):
        # `backend` selects a library of vLLM.
        value = {name: each for name, each in value.items() if name != "backend"}
    if field == "seed" and type(value) is int and 0 <= value < 2**64:
        return value % 2**63  # TensorRT-LLM's seeds have one bit more
    return value


def _without_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _check_supported(options: Options) -> None:
    for name, (neutral, remedy) in _NOT_SUPPORTED.items():
        value = options.fields.get(name)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise InvalidInput(options.names[name], f"not supported; {remedy}")
