"""What both routes of text generation ask, and what both say of how much it was."""

from typing import Any

from app.inference.generation import MOST_SEQUENCES
from app.protocols.constraint_fields import read_constraint, read_structured_outputs
from app.protocols.generation_fields import read_flag, read_num_choices, read_sampling, read_stopping
from app.protocols.json_body import describe_type
from app.protocols.openai.codec import Fields
from frameworks.errors import InvalidInput, UnknownField
from frameworks.generation.types import Constraint, GenerateRequest, GenerationSpec, Prompt, Usage
from frameworks.types import ModelSpec

_LOWEST_LOGPROB = -9999.0


def generation_of(spec: ModelSpec) -> GenerationSpec:
    """Of a model whose task is `generate`."""
    assert spec.generation is not None
    return spec.generation


def read_generation(
    fields: Fields,
    spec: GenerationSpec,
    prompts: tuple[Prompt, ...],
    top_logprobs: int | None,
    default_max_tokens: int | None,
    max_tokens_field: str = "max_tokens",
) -> GenerateRequest:
    """Raises InvalidInput, UnknownField."""
    num_choices = read_num_choices(fields)
    if num_choices * len(prompts) > MOST_SEQUENCES:
        raise InvalidInput(
            "n", f"{num_choices} texts for each of {len(prompts)} prompts; a request asks for at most {MOST_SEQUENCES}"
        )
    return GenerateRequest(
        prompts,
        read_sampling(fields, spec, top_logprobs),
        read_stopping(fields, spec, default_max_tokens, max_tokens_field),
        _read_constraint(fields),
        num_choices,
    )


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer comes piece by piece, and whether it then ends with the usage."""
    stream, options = read_flag(fields, "stream"), fields.get("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise InvalidInput("stream_options", 'goes with "stream": true; leave it out')
    if not isinstance(options, dict):
        raise InvalidInput(
            "stream_options", f'is {describe_type(options)}; wants an object like {{"include_usage": true}}'
        )
    for name in options:
        if name not in ("include_usage", "include_obfuscation"):
            raise UnknownField.among(name[:200], ("include_usage",), "stream_options.")
    if _read_flag_of(options, "stream_options", "include_obfuscation"):
        raise InvalidInput("stream_options.include_obfuscation", "is not served; leave it out")
    return stream, _read_flag_of(options, "stream_options", "include_usage")


def usage_of(usage: Usage) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.tokens_generated,
        "total_tokens": usage.prompt_tokens + usage.tokens_generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def written(logprob: float | None) -> float:
    """A log probability for JSON, which has no infinity: OpenAI writes -9999 for what is next to impossible."""
    return _LOWEST_LOGPROB if logprob is None else max(logprob, _LOWEST_LOGPROB)


def _read_constraint(fields: Fields) -> Constraint | None:
    """As the others name it, or within vLLM's `structured_outputs`."""
    structured = fields.get("structured_outputs")
    if structured is None:
        return read_constraint(fields)
    constraint = read_structured_outputs(structured, "structured_outputs")
    if read_constraint(fields) is not None:
        raise InvalidInput("structured_outputs", "does not go with the other ways to say what the text has to be")
    return constraint


def _read_flag_of(options: dict[str, Any], within: str, name: str) -> bool:
    field = f"{within}.{name}"
    return read_flag({field: options.get(name)}, field)
