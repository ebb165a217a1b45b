"""/v1/responses: answer a conversation, with typed items and events."""

import re
from typing import Any

import orjson

from app.protocols.chat_turns import TurnText, check_has_template, effort_of, generation_of
from app.protocols.codec import AnswerContext, NamedEvent
from app.protocols.constraint_fields import (
    ConstraintFields,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedJsonSchema,
    TextFormat,
    to_constraint,
)
from app.protocols.errors import ErrorReply
from app.protocols.generation_fields import StoppingFields, to_sampling, to_stopping
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import RESPONSES, RESPONSES_REASONING, RESPONSES_TEXT, RESPONSES_TOOL
from app.protocols.openai.respond import response
from app.protocols.openai.respond.content_tokens import ContentTokens
from app.protocols.openai.respond.items import to_messages
from app.protocols.openai.respond.output import Output
from app.protocols.openai.respond.requests import NamedFunctionTool, ResponsesRequest, TextOptions
from app.protocols.tools import Tool, ToolMode, ToolUse, check_tools_size, use_tools
from frameworks.errors import InvalidInput
from frameworks.generation.types import (
    Constraint,
    Conversation,
    GenerateAnswer,
    GenerateRequest,
    GenerationSpec,
    Message,
    Piece,
    Usage,
)
from frameworks.types import ModelSpec

_LOGPROBS = "message.output_text.logprobs"
_OPTIONS = (("text", RESPONSES_TEXT), ("reasoning", RESPONSES_REASONING))
_TOOL_FIELD = re.compile(r"(tools\[\d+\])(?:\.function)?(\..*)?")
# Names of fields in shared code, and in this route.
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "constraint": "text.format.schema",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}


def _check(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Refuse tools beyond the bounds and of other kinds, and options that would change the response."""
    tools = fields.get("tools")
    check_tools_size(tools)
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            _check_tool(tool, f"tools[{index}].")
    for name, policy in _OPTIONS:
        if isinstance(fields.get(name), dict):
            policy.apply(fields[name], f"{name}.")
    choice = fields.get("tool_choice")
    if isinstance(choice, dict) and isinstance(kind := choice.get("type"), str) and kind != "function":
        remedy = "send only those tools" if kind == "allowed_tools" else "the server runs no tools of its own"
        raise InvalidInput("tool_choice.type", f'expected "function", got "{kind[:64]}"; {remedy}')


def _check_tool(tool: dict[str, Any], within: str) -> None:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "function":
        raise InvalidInput(
            f"{within}type",
            f'expected "function", got "{kind[:64]}"; the server runs no tools: offer it as a function of the client',
        )
    RESPONSES_TOOL.apply(tool, within)


def _build(body: ResponsesRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    check_has_template(generation, body.model, "input")
    if body.stream_options is not None and not body.stream:
        raise InvalidInput("stream_options", 'expected "stream": true too, got none; omit stream_options')
    use = _tool_use(body, generation)
    effort = effort_of(body.reasoning.effort if body.reasoning else None, generation, "reasoning.effort")
    return GenerateRequest(
        (Conversation(_messages_of(body), use.for_template, effort),),
        to_sampling(body, generation, _num_top_logprobs(body)),
        to_stopping(StoppingFields(), generation, None, body.max_output_tokens, "max_output_tokens"),
        use.constraint,
        text_format=use.text_format,
    )


def _messages_of(body: ResponsesRequest) -> tuple[Message, ...]:
    instructions = [] if body.instructions is None else [Message("system", body.instructions)]
    if isinstance(body.input, str):
        return (*instructions, Message("user", body.input))
    return (*instructions, *to_messages(body.input))


def _tool_use(body: ResponsesRequest, generation: GenerationSpec) -> ToolUse:
    tools = [Tool(each.name, each.description, each.parameters, bool(each.strict)) for each in body.tools or ()]
    choice = body.tool_choice or "auto"
    chosen = choice.name if isinstance(choice, NamedFunctionTool) else None
    mode: ToolMode = "named" if isinstance(choice, NamedFunctionTool) else choice
    if not tools and mode in ("required", "named"):
        raise InvalidInput("tool_choice", "expected tools to choose from, got none; send tools or omit tool_choice")
    return use_tools(tools, mode, chosen, body.parallel_tool_calls is not False, generation, _constraint_of(body.text))


def _constraint_of(text: TextOptions | None) -> Constraint | None:
    if text is None or text.format is None:
        return None
    form: TextFormat | JsonObjectFormat | JsonSchemaFormat
    if isinstance(text.format, TextFormat | JsonObjectFormat):
        form = text.format
    else:
        form = JsonSchemaFormat(type="json_schema", json_schema=NamedJsonSchema(schema=text.format.schema_))
    return to_constraint(ConstraintFields(response_format=form))


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
    head = response.head_of(decoded, context)
    return orjson.dumps(response.ended(head, output.shown(), choice.finish_reason, answer.usage, context.latency_ms))


class _Stream:
    """As StreamWriter of app/protocols/codec.py: each event has the name of its type, and the last the response."""

    def __init__(self, decoded: OpenAiRequest, context: AnswerContext) -> None:
        self._head = response.head_of(decoded, context)
        self._output = _output_of(decoded)
        self._finish_reason = ""
        self._num_sent = 0

    def begin(self, usage: Usage) -> list[NamedEvent]:
        begun = response.begun(self._head)
        return self._events([{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")])

    def piece(self, piece: Piece) -> list[NamedEvent]:
        events = self._output.push(piece.text, piece.tokens)
        if piece.finish_reason is not None:
            self._finish_reason = piece.finish_reason
            events += self._output.finish(piece.finish_reason)
        return self._events(events)

    def end(self, usage: Usage, latency_ms: float) -> list[NamedEvent]:
        ended = response.ended(self._head, self._output.shown(), self._finish_reason, usage, latency_ms)
        return self._events([{"type": f"response.{ended['status']}", "response": ended}])

    def error(self, error: ErrorReply) -> list[NamedEvent]:
        self._output.fail()
        failed = response.failed(self._head, self._output.shown(), error.message)
        content = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return self._events([content, {"type": "response.failed", "response": failed}])

    def _events(self, events: list[dict[str, Any]]) -> list[NamedEvent]:
        first = self._num_sent
        self._num_sent += len(events)
        return [
            NamedEvent(event["type"].encode(), orjson.dumps({**event, "sequence_number": number}))
            for number, event in enumerate(events, first)
        ]


def _rename(field: str) -> str:
    """Return the name of a field in this route."""
    if match := _TOOL_FIELD.fullmatch(field):
        return match[1] + (match[2] or ".parameters")
    return _NAMES.get(field, field)


RESPONSES_CODEC = OpenAiCodec(
    "/v1/responses", ("generate",), ResponsesRequest, _build, _write, RESPONSES, _Stream, _rename, _check
)
