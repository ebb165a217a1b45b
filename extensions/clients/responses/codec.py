"""/v1/responses: answer a conversation, with typed items and events, or count its tokens."""

from typing import Any

import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import INPUT_TOKENS, RESPONSES
from app.protocols.openai.generation import ignored_stream_options
from app.protocols.shared.chat_turns import TurnText, generation_of
from app.protocols.shared.codec import AnswerContext, NamedEvent
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.generation import StoppingFields, to_sampling, to_stopping
from extensions.clients.responses.content_tokens import ContentTokens
from extensions.clients.responses.conversation import (
    check_fields,
    conversation_of,
    ignored_fields,
    rename_field,
    tool_use_of,
)
from extensions.clients.responses.output import Output
from extensions.clients.responses.requests import FunctionTool, InputTokensRequest, NamedFunctionTool, ResponsesRequest
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest, TextDelta, Usage
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest
from frameworks.types import ModelSpec

_LOGPROBS = "message.output_text.logprobs"

Shown = dict[str, Any]


def _head_of(decoded: OpenAiRequest, context: AnswerContext) -> Shown:
    """Return the members that are known before the text."""
    body: ResponsesRequest = decoded.body
    sampling = decoded.request.sampling
    return {
        "id": f"resp_{context.request_id}",
        "object": "response",
        "created_at": context.created_s,
        "model": context.model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": _format_of(body)},
        "tool_choice": _choice_of(body),
        "tools": [_tool(each) for each in body.tools or ()],
        "top_logprobs": sampling.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _response_begun(head: Shown) -> Shown:
    """Return the response before its text."""
    return _response(head, "in_progress", [])


def _response_ended(head: Shown, output: list[Shown], finish_reason: str, usage: Usage, latency_ms: float) -> Shown:
    """Return the whole response."""
    usage_shown = _usage_of(usage)
    if finish_reason == "length":
        reason = {"reason": "max_output_tokens"}
        return {**_response(head, "incomplete", output), "incomplete_details": reason, "usage": usage_shown}
    completed_at = head["created_at"] + round(latency_ms / 1000)
    return {**_response(head, "completed", output), "completed_at": completed_at, "usage": usage_shown}


def _response_failed(head: Shown, output: list[Shown], message: str) -> Shown:
    """Return the response whose text ended with an error."""
    return {**_response(head, "failed", output), "error": {"code": "server_error", "message": message}}


def _response(head: Shown, status: str, output: list[Shown]) -> Shown:
    return {
        **head,
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "output": output,
        "usage": None,
    }


def _usage_of(usage: Usage) -> Shown:
    return {
        "input_tokens": usage.prompt_tokens,
        # Clients require `cache_write_tokens`. No tokens are charged for writing them to the cache.
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.tokens_generated,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.tokens_generated,
    }


def _format_of(body: ResponsesRequest) -> Shown:
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    return body.text.format.model_dump(by_alias=True)


def _choice_of(body: ResponsesRequest) -> Any:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()


def _tool(tool: FunctionTool) -> Shown:
    return {**tool.model_dump(), "strict": bool(tool.strict)}


def _build(body: ResponsesRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    if body.stream_options is not None and not body.stream:
        raise InvalidInput("stream_options", 'expected "stream": true too, got none; omit stream_options')
    use = tool_use_of(body, generation)
    return GenerateRequest(
        (conversation_of(body, use, generation),),
        to_sampling(body, generation, _num_top_logprobs(body)),
        to_stopping(
            StoppingFields(ignore_eos=body.ignore_eos), generation, None, body.max_output_tokens, "max_output_tokens"
        ),
        use.constraint,
        text_format=use.text_format,
    )


def _ignored(body: ResponsesRequest, spec: ModelSpec) -> tuple[str, ...]:
    return ignored_fields(body, spec) + ignored_stream_options(body.stream_options)


def _num_top_logprobs(body: ResponsesRequest) -> int | None:
    if _LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidInput(
            "top_logprobs", f'expected "include": ["{_LOGPROBS}"] too, got none; send it or omit top_logprobs'
        )
    return None


def _output_of(decoded: OpenAiRequest) -> Output:
    body: ResponsesRequest = decoded.body
    names = frozenset(each.name for each in body.tools or ())
    is_single = body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedFunctionTool)

    def turn() -> TurnText:
        return TurnText(decoded.request, names, 1 if is_single else None)

    return Output(turn(), None if decoded.request.sampling.top_logprobs is None else ContentTokens(turn()))


def _write(decoded: OpenAiRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    (choice,) = answer.choices
    output = _output_of(decoded)
    output.push(choice.text, choice.tokens)
    output.finish(choice.finish_reason)
    head = _head_of(decoded, context)
    return orjson.dumps(_response_ended(head, output.shown(), choice.finish_reason, answer.usage, context.latency_ms))


class _ResponseStream:
    """As StreamWriter of app/protocols/shared/codec.py: events have the names of their types, the last the response."""

    def __init__(self, decoded: OpenAiRequest, context: AnswerContext) -> None:
        self._head = _head_of(decoded, context)
        self._output = _output_of(decoded)
        self._finish_reason = ""
        self._num_sent = 0

    def begin(self, usage: Usage) -> list[NamedEvent]:
        begun = _response_begun(self._head)
        return self._events([{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")])

    def piece(self, piece: TextDelta) -> list[NamedEvent]:
        events = self._output.push(piece.text, piece.tokens)
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            events += self._output.finish(piece.finish_reason)
        return self._events(events)

    def end(self, usage: Usage, latency_ms: float) -> list[NamedEvent]:
        ended = _response_ended(self._head, self._output.shown(), self._finish_reason, usage, latency_ms)
        return self._events([{"type": f"response.{ended['status']}", "response": ended}])

    def error(self, error: ErrorReply) -> list[NamedEvent]:
        self._output.fail()
        failed = _response_failed(self._head, self._output.shown(), error.message)
        content = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return self._events([content, {"type": "response.failed", "response": failed}])

    def _events(self, events: list[dict[str, Any]]) -> list[NamedEvent]:
        first = self._num_sent
        self._num_sent += len(events)
        return [
            NamedEvent(event["type"].encode(), orjson.dumps({**event, "sequence_number": number}))
            for number, event in enumerate(events, first)
        ]


RESPONSES_CODEC = OpenAiCodec(
    "/v1/responses", ("generate",), ResponsesRequest, _build, _write, RESPONSES, _ResponseStream, rename_field,
    check_fields, ignored=_ignored,
)  # fmt: skip


def _build_count(body: InputTokensRequest, spec: ModelSpec) -> TokenizeRequest:
    generation = generation_of(spec)
    if body.input is None and body.instructions is None:
        raise InvalidInput("input", "expected a string or items, got nothing; send input, instructions or both")
    return TokenizeRequest(conversation_of(body, tool_use_of(body, generation), generation))


def _write_count(decoded: OpenAiRequest, answer: TokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": len(answer.token_ids)})


INPUT_TOKENS_CODEC = OpenAiCodec(
    "/v1/responses/input_tokens", ("generate",), InputTokensRequest, _build_count, _write_count, INPUT_TOKENS,
    rename=rename_field, check=check_fields, ignored=ignored_fields,
)  # fmt: skip
