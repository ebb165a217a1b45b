"""What is asked of a language model in the words of Triton's backends for them (vLLM's, TensorRT-LLM's).

Triton's generate extension leaves the options to the model. Here their names are those of `Sampling`, as vLLM has them,
and what TensorRT-LLM calls the same. An option stands beside `text_input` or in `parameters`; as a number, or as a
string that is one: Triton's parameters long knew no fractions. What nobody knows is harmless, as it is to Triton; what
a backend knows and this server cannot do is refused, for the text would be another one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.protocols.constraint_fields import CONSTRAINT_FIELDS
from app.protocols.generation_fields import (
    SAMPLING_FIELDS,
    STOPPING_FIELDS,
    Fields,
    read_flag,
    read_num_choices,
    read_sampling,
    read_stopping,
    read_top_logprobs,
    read_whole,
)
from app.protocols.json_body import describe_type, describe_value
from app.protocols.open_inference.generate_constraints import CONSTRAINT_NAMES, read_any_constraint, read_json
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateRequest, GenerationSpec, Stopping

DEFAULT_MAX_TOKENS = 20
"""As the generate API of the Open Inference Protocol has it."""

# Of TensorRT-LLM's backends; the names of its LLM API begin with the prefix.
_PREFIX = "sampling_param_"
_OTHER_NAMES = {
    "min_length": "min_tokens",
    "random_seed": "seed",
    "stop_words": "stop",
    "num_return_sequences": "n",
    "streaming": "stream",
    "exclude_input_from_output": "exclude_input_in_output",
}
_NUMBERS = SAMPLING_FIELDS - {"logit_bias"} | {
    *("max_tokens", "min_tokens", "n", "logprobs", "end_id", "priority", "timeout"),
}
_FLAGS = frozenset(
    {
        *("stream", "ignore_eos", "exclude_input_in_output"),
        *("return_log_probs", "return_logprobs", "return_cumulative_logprob"),
    }
)
_SAMPLING = "sampling_parameters."
_SINGLE = _NUMBERS | _FLAGS | CONSTRAINT_NAMES | {"text_input"}
_KNOWN = _SINGLE | SAMPLING_FIELDS | STOPPING_FIELDS | CONSTRAINT_FIELDS
_NOTHING: tuple[Any, ...] = ("", [], [""])
"""How clients of TensorRT-LLM, which wants them in every request, leave lists of words out."""

_ONLY_TEXT = "this server reads nothing but text; leave it out"
_NO_BEAMS = "texts are sampled, or greedy with temperature 0; leave it out"
_NO_LOGITS = "ask for return_log_probs instead"
_NO_ADAPTERS = "merge the adapter into the model's weights, and serve them as a model of their own"
# What a backend would do, unless it has one of these values, and what to do here instead.
_NOT_SERVED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "bad_words": (_NOTHING, "give their tokens a logit_bias of -100"),
    "embedding_bias_words": (_NOTHING, "give their tokens a logit_bias"),
    "beam_width": ((1,), _NO_BEAMS),
    "use_beam_search": ((False,), _NO_BEAMS),
    "best_of": ((1,), "texts are not ranked; ask for all of them with n, and for return_log_probs to rank them by"),
    "return_context_logits": ((False,), _NO_LOGITS),
    "return_generation_logits": ((False,), _NO_LOGITS),
    "skip_special_tokens": ((True,), "special tokens are never shown; leave it out"),
    "include_stop_str_in_output": ((False,), "put the string behind the text yourself"),
    "image": (_NOTHING, _ONLY_TEXT),
    "image_url": (_NOTHING, _ONLY_TEXT),
    "image_input": (_NOTHING, _ONLY_TEXT),
    "lora_name": ((), _NO_ADAPTERS),
    "lora_task_id": ((), _NO_ADAPTERS),
}

_WHOLE = re.compile(r"-?[0-9]{1,20}")
_FRACTION = re.compile(r"-?[0-9]{1,20}\.?[0-9]{0,20}(?:[eE][-+]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Options:
    """`fields`: by our names. `names`: what the caller calls them."""

    fields: Fields
    names: Mapping[str, str]

    def renamed(self, error: InvalidInput) -> InvalidInput:
        """The error in the caller's own words."""
        ours = re.split(r"[.\[]", error.field, maxsplit=1)[0]
        if ours not in self.names:
            return error
        return InvalidInput(self.names[ours] + error.field[len(ours) :], error.reason)


@dataclass(frozen=True, slots=True)
class WantedText:
    """What a caller asks, and what it wants to be told. `stream` None: it did not say.

    `log_probs`, `cumulative_logprob`, `logprobs`: whether the answer has TensorRT-LLM's `output_log_probs` and
    `cum_log_probs`, vLLM's `cumulative_logprob`, and its `logprobs`.
    """

    request: GenerateRequest
    stream: bool | None
    with_input: bool
    log_probs: bool
    cumulative_logprob: bool
    logprobs: bool


def gather(body: Any) -> Options:
    """The options of a body, wherever in it they stand. Raises InvalidInput where two of them do not agree."""
    if not isinstance(body, dict):
        raise InvalidInput("body", f"is {describe_type(body)}; wants a JSON object")
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for within, members in _places(body):
        for name, given in members.items():
            ours = _our_name(name)
            if given is None or (ours not in _KNOWN and ours not in _NOT_SERVED):
                continue
            if ours == "stop" and given in _NOTHING:
                continue
            theirs, value = within + name, _plain(ours, given)
            # vLLM's own client sends sampling_parameters and parameters, and its backend reads the first.
            if ours in fields and fields[ours] != value and within != _SAMPLING:
                raise InvalidInput(theirs, f"says otherwise than {names[ours]}; send one of them")
            fields[ours] = value
            names[ours] = theirs
    options = Options(fields, names)
    _check_served(options)
    return options


def read_wanted_text(options: Options, spec: GenerationSpec) -> WantedText:
    """Raises InvalidInput, UnknownField."""
    fields = options.fields
    text = fields.get("text_input")
    if not isinstance(text, str):
        given = "is missing" if text is None else f"is {describe_value(text)}"
        raise InvalidInput("text_input", f"{given}; wants a string, the text to go on from")
    log_probs, logprobs = read_flag(fields, "return_log_probs"), read_flag(fields, "return_logprobs")
    cumulative_logprob = read_flag(fields, "return_cumulative_logprob")
    top_logprobs = read_top_logprobs(fields)
    request = GenerateRequest(
        (text,),
        read_sampling(fields, spec, 0 if top_logprobs is None and (log_probs or cumulative_logprob) else top_logprobs),
        _read_stopping(fields, spec),
        read_any_constraint(fields),
        read_num_choices(fields),
    )
    return WantedText(
        request,
        stream=read_flag(fields, "stream") if "stream" in fields else None,
        with_input="exclude_input_in_output" in fields and not read_flag(fields, "exclude_input_in_output"),
        log_probs=log_probs,
        cumulative_logprob=cumulative_logprob,
        logprobs=logprobs and top_logprobs is not None,
    )


def _places(body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Where options stand, and what their names begin with there. vLLM's backend has them also as one string."""
    places = [("", body)]
    for within in ("parameters.", _SAMPLING):
        name = within.removesuffix(".")
        value = body.get(name)
        if within == _SAMPLING:
            value = _without_list(value)
            value = read_json(value, name) if isinstance(value, str) else value
        if value is None:
            continue
        if not isinstance(value, dict):
            raise InvalidInput(name, f'is {describe_type(value)}; wants an object like {{"temperature": 0}}')
        places.append((within, value))
    return places


def _our_name(name: str) -> str:
    name = name.removeprefix(_PREFIX)
    return _OTHER_NAMES.get(name, name)


def _plain(name: str, value: Any) -> Any:
    """A value without what Triton's tensors and parameters put around it."""
    if name in _SINGLE or name in _NOT_SERVED:
        value = _without_list(value)
    if name in _NUMBERS and isinstance(value, str):
        if _WHOLE.fullmatch(value):
            value = int(value)
        elif _FRACTION.fullmatch(value):
            value = float(value)
    if name == "seed" and type(value) is int and 0 <= value < 2**64:
        return value % 2**63  # theirs has one bit more
    return value


def _without_list(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _check_served(options: Options) -> None:
    for name, (neutral, remedy) in _NOT_SERVED.items():
        value = options.fields.get(name)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise InvalidInput(options.names[name], f"is not served; {remedy}")


def _read_stopping(fields: Fields, spec: GenerationSpec) -> Stopping:
    stopping = read_stopping(fields, spec, DEFAULT_MAX_TOKENS)
    end_id = read_whole(fields, "end_id", -1, spec.vocabulary_size - 1)
    return stopping if end_id in (None, -1) else replace(stopping, token_ids=stopping.token_ids | {end_id})
