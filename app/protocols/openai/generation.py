"""Functions that the routes of generated text share: options of streams, constraints, tools and counts."""

from collections.abc import Callable, Sequence
from typing import Any

from app.protocols.openai.requests import GenerationBody, StreamPadding, ToolField
from app.protocols.shared.fields.constraints import ConstraintFields, to_constraint, to_structured_constraint
from app.protocols.shared.json.output import list_to_json
from app.protocols.shared.tools import Tool, check_tools_size
from frameworks.core.errors import InvalidInput
from frameworks.engine.generation_limits import MAX_SEQUENCES
from frameworks.generation.types import Choice, Constraint, TextDelta, TokenText, Usage
from frameworks.types import ModelSpec

_MIN_LOGPROB = -9999.0
_CONSTRAINT_FIELDS = ConstraintFields.model_fields.keys() | {"structured_outputs"}


def constraint_of(body: GenerationBody) -> Constraint | None:
    """Return the constraint of the text, or None. Raises InvalidInput for more than one."""
    if _CONSTRAINT_FIELDS.isdisjoint(body.model_fields_set):
        return None
    constraint = to_constraint(body)
    if body.structured_outputs is None:
        return constraint
    structured = to_structured_constraint(body.structured_outputs, "structured_outputs")
    if constraint is not None:
        raise InvalidInput("structured_outputs", "expected one constraint, got several; send one of them")
    return structured


def num_choices_of(body: GenerationBody, num_prompts: int) -> int:
    """Return the number of texts for each prompt. Raises InvalidInput for too many texts in the request."""
    num_choices = body.n or 1
    if num_choices * num_prompts > MAX_SEQUENCES:
        raise InvalidInput(
            "n",
            f"expected at most {MAX_SEQUENCES} texts in all, got {num_choices} for each of {num_prompts} prompts",
        )
    return num_choices


def check_stream_options(body: GenerationBody) -> None:
    """Raise InvalidInput for options of a stream in a request without one."""
    if body.stream_options is not None and not body.stream:
        raise InvalidInput("stream_options", 'expected "stream": true too, got none; omit stream_options')


def ignored_stream_options(options: StreamPadding | None) -> tuple[str, ...]:
    """Return the options of a stream that have no effect."""
    return ("stream_options.include_obfuscation",) if options is not None and options.include_obfuscation else ()


class StreamedUsage:
    """The usage in the chunks of one stream. `write`: returns the `usage` of an object."""

    def __init__(self, body: GenerationBody, write: Callable[[Usage], dict[str, Any]]) -> None:
        options = body.stream_options
        self.is_last = options is not None and bool(options.include_usage)
        """Whether the stream ends with the usage."""
        self.is_in_all = options is not None and bool(options.continuous_usage_stats)
        """Whether each chunk has the usage so far, of the pieces that were counted."""
        self.is_asked = self.is_last or self.is_in_all
        """Whether a chunk has a member `usage`."""
        self._write = write
        self._at_begin = Usage(0, 0)
        self._generated: dict[int, int] = {}

    def begin(self, usage: Usage) -> None:
        """Note the prompts. `usage`: at the first piece."""
        self._at_begin = usage

    def count(self, piece: TextDelta) -> None:
        """Count the tokens of a piece before its chunks are written."""
        self._generated[piece.index] = max(self._generated.get(piece.index, 0), piece.num_generated)

    def member(self) -> dict[str, Any]:
        """Return the member `usage` of a chunk with choices, empty where the request did not ask for usage."""
        if self.is_in_all:
            return {"usage": self._so_far()}
        return {"usage": None} if self.is_last else {}

    def last(self, usage: Usage) -> dict[str, Any]:
        """Return the member `usage` of the last chunk, which has no choices."""
        return {"usage": self._write(usage)}

    def _so_far(self) -> dict[str, int]:
        """Return vLLM's three counts, of all choices together."""
        prompt, generated = self._at_begin.prompt_tokens, sum(self._generated.values())
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's `usage`."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.tokens_generated,
        "total_tokens": usage.prompt_tokens + usage.tokens_generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.rejected_tokens,
        },
    }


def chat_usage_of(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's `usage` of a chat, with the tokens of the model's thinking."""
    of_text = usage_of(usage)
    of_text["completion_tokens_details"] = {
        "reasoning_tokens": usage.reasoning_tokens, **of_text["completion_tokens_details"],
    }  # fmt: skip
    return of_text


def text_of(body: GenerationBody, part: Choice | TextDelta) -> str:
    """Return the text of a choice, or the next part of it, with the stop string if the request asks for that."""
    return part.text + (part.stop_string or "") if body.include_stop_str_in_output else part.text


def finite(logprob: float | None) -> float:
    """Return a log probability that JSON can write: OpenAI writes -9999 for minus infinity."""
    return _MIN_LOGPROB if logprob is None else max(logprob, _MIN_LOGPROB)


def token_name(token_id: int, text: str, body: GenerationBody) -> str:
    """Return a token as log probabilities name it: by its text, or as vLLM writes its id."""
    return f"token_id:{token_id}" if body.return_tokens_as_token_ids else text


def check_prompt_logprobs(body: GenerationBody) -> None:
    """Raise InvalidInput for log probabilities of a prompt in a stream, which vLLM does not send either."""
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidInput("prompt_logprobs", "expected none in a streamed response, got a number; send stream false")


def prompt_logprobs_of(body: GenerationBody, tokens: Sequence[TokenText]) -> Any:
    """Return vLLM's `prompt_logprobs`: for each token null, or token id → log probability, rank and text."""
    return list_to_json(tokens, lambda token: _with_ranks(token, body.prompt_logprobs or 0))


def _with_ranks(token: TokenText, num_top: int) -> dict[str, Any] | None:
    if token.logprob is None:
        return None
    own = (token.token_id, token.text, token.logprob)
    ranked = [(token.rank, own), *enumerate(token.top[:num_top], 1)]
    return {
        str(token_id): {"logprob": finite(logprob), "rank": rank, "decoded_token": text}
        for rank, (token_id, text, logprob) in ranked
    }


def check_tools(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Raise InvalidInput for tools beyond the bounds, before they are validated."""
    if "tools" in fields:
        check_tools_size(fields["tools"])


def tools_of(fields: Sequence[ToolField] | None) -> list[Tool]:
    """Return the tools of a validated body."""
    return [
        Tool(each.function.name, each.function.description, each.function.parameters, bool(each.function.strict))
        for each in fields or ()
    ]


def rename_tool(field: str) -> str:
    """Name the schema of a tool, which the pipeline knows as `tools[3]`."""
    return f"{field}.function.parameters" if field.startswith("tools[") and field.endswith("]") else field
