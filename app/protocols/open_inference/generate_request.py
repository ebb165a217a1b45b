"""Parse the options of Triton's generate extension, which infer for language models has too."""

from dataclasses import dataclass, replace
from typing import Any

from app.protocols.open_inference.generate_fields import DEFAULT_MAX_TOKENS, GenerateTextRequest
from app.protocols.open_inference.generate_options import RETURNED, Options, parse_json
from app.protocols.shared.bodies import read_body
from app.protocols.shared.fields.constraints import ConstraintFields, to_constraint, to_structured_constraint
from app.protocols.shared.fields.generation import num_top_logprobs, to_conversation, to_sampling, to_stopping
from frameworks.core.errors import FieldError, InvalidInput
from frameworks.generation.types import Constraint, GenerateRequest, GenerationSpec, Prompt
from frameworks.types import DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class ParsedGenerate:
    """The request and the form of its response. `stream`: None where the body does not have it.

    `include_input`: the text begins with the prompt. `log_probs`: return TensorRT-LLM's `output_log_probs` and
    `cum_log_probs`; `cumulative_logprob` and `logprobs`: return vLLM's fields of these names. `returned`: the outputs
    of infer that options ask for, besides the text.
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
    returned: frozenset[str] = frozenset()


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
            (_to_prompt(body, spec),),
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
        returned=frozenset(output for output, option in RETURNED.items() if getattr(body, option)),
    )


def _to_prompt(body: GenerateTextRequest, spec: GenerationSpec) -> Prompt:
    """Return the text or the conversation. Raises InvalidInput unless the body has exactly one of them."""
    if body.messages is None:
        if body.text_input is None:
            raise InvalidInput("text_input", "expected a string, got nothing; send the text to continue, or messages")
        return body.text_input
    if body.text_input is not None:
        raise InvalidInput("messages", "expected either text_input or messages, got both; send one of them")
    if body.exclude_input_in_output is False:
        raise InvalidInput("exclude_input_in_output", "expected true with messages, got false; leave it out")
    if not spec.has_chat_template:
        raise InvalidInput(
            "messages", "expected a model with a chat template, got another; send text_input, the text to continue"
        )
    return to_conversation(body.messages)


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
        constraint: dict[str, Any] = {kind: parse_json(guide, field) if kind == "json_schema" else guide}
        return to_constraint(read_body(ConstraintFields, constraint))
    except FieldError as error:
        raise InvalidInput(field, error.reason) from None
