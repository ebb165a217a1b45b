"""/v1/messages: answer a conversation, or count its tokens."""

from dataclasses import replace
from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.chat_turns import TurnText, check_has_template, effort_of, generation_of, ignored_effort
from app.protocols.shared.codec import AnswerContext, NamedEvent
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.constraints import json_schema_constraint
from app.protocols.shared.fields.generation import StoppingFields, to_sampling, to_stopping
from app.protocols.shared.tools import Tool, ToolMode, ToolUse, check_tools_size, use_tools
from extensions.clients.anthropic.codec import AnthropicCodec, error_body
from extensions.clients.anthropic.content import ContentBlocks, delta_of, whole_content
from extensions.clients.anthropic.conversation import to_conversation
from extensions.clients.anthropic.requests import (
    COUNT_TOKENS_POLICY,
    MESSAGES_POLICY,
    AnyTool,
    ChosenTool,
    CountTokensRequest,
    DisabledThinking,
    EnabledThinking,
    MessagesBody,
    MessagesRequest,
    NoTool,
)
from frameworks.core.errors import InvalidInput
from frameworks.generation.tools.events import Event
from frameworks.generation.types import (
    Constraint,
    Conversation,
    FinishReason,
    GenerateAnswer,
    GenerateRequest,
    GenerationSpec,
    TextDelta,
    Usage,
)
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest
from frameworks.types import ModelSpec

_RENAMED = {"stop": "stop_sequences", "constraint": "output_config.format.schema"}
_MODES: dict[type, ToolMode] = {AnyTool: "required", ChosenTool: "named", NoTool: "none"}


def _build(body: MessagesRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    use = _tool_use(body, generation)
    fields = StoppingFields(max_tokens=body.max_tokens, stop=body.stop_sequences)
    # The protocol requires a limit, so that clients send that of Anthropic's models, such as 128,000 tokens.
    stopping = replace(to_stopping(fields, generation, None), may_be_fewer=True)
    return GenerateRequest(
        (_conversation_of(body, use, generation),),
        to_sampling(body, generation),
        stopping,
        use.constraint,
        text_format=use.text_format,
    )


def _build_count(body: CountTokensRequest, spec: ModelSpec) -> TokenizeRequest:
    generation = generation_of(spec)
    return TokenizeRequest(_conversation_of(body, _tool_use(body, generation), generation))


def _conversation_of(body: MessagesBody, use: ToolUse, generation: GenerationSpec) -> Conversation:
    check_has_template(generation, body.model)
    conversation = to_conversation(body.system, body.messages, use.for_template, _effort_of(body, generation))
    if conversation.ending == "last_message" and _format_of(body) is not None:
        raise InvalidInput(
            "output_config.format",
            "expected none with a last message of the assistant, which the text continues, got an object; "
            "send one of them",
        )
    return conversation


def _tool_use(body: MessagesBody, generation: GenerationSpec) -> ToolUse:
    tools = [Tool(each.name, each.description, each.input_schema, bool(each.strict)) for each in body.tools or ()]
    choice = body.tool_choice
    mode = _MODES.get(type(choice), "auto")
    chosen = choice.name if isinstance(choice, ChosenTool) else None
    return use_tools(tools, mode, chosen, not _is_single(body), generation, _format_of(body))


def _is_single(body: MessagesBody) -> bool:
    """Return whether the response may have one call at most."""
    choice = body.tool_choice
    return isinstance(choice, ChosenTool) or bool(getattr(choice, "disable_parallel_tool_use", False))


def _format_of(body: MessagesBody) -> Constraint | None:
    form = None if body.output_config is None else body.output_config.format
    if form is None:
        return None
    return json_schema_constraint(form.schema_, "output_config.format.schema")


def _effort_of(body: MessagesBody, generation: GenerationSpec) -> str | None:
    """Return the reasoning effort for the chat template. Raises InvalidInput for thinking that the model lacks."""
    thinking = body.thinking
    effort = effort_of(_sent_effort(body), generation)
    if isinstance(thinking, DisabledThinking):
        return effort_of("none", generation)
    if isinstance(thinking, EnabledThinking) and not generation.text_format.thinks:
        raise InvalidInput("thinking", "expected a model that thinks, got one that does not; omit the field")
    if isinstance(thinking, EnabledThinking) and generation.has_reasoning_effort:
        return effort or "medium"
    return effort


def _sent_effort(body: MessagesBody) -> str | None:
    return None if body.output_config is None else body.output_config.effort


def _ignored(body: MessagesBody, spec: ModelSpec) -> tuple[str, ...]:
    return ignored_effort(_sent_effort(body), generation_of(spec), "output_config.effort")


def _check_tools(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Raise InvalidInput for tools beyond the bounds, before they are validated."""
    check_tools_size(fields.get("tools"))


def _text_of(decoded: BodyRequest) -> TurnText:
    names = frozenset(each.name for each in decoded.body.tools or ())
    return TurnText(decoded.request, names, 1 if _is_single(decoded.body) else None)


def _write(decoded: BodyRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    (choice,) = answer.choices
    text = _text_of(decoded)
    content = whole_content([*text.push(choice.text), *text.finish(choice.finish_reason)], text.format.tools)
    end = _end(choice.finish_reason, choice.stop_string, text)
    return orjson.dumps({**_head(context), "content": content, **end, "usage": _usage(answer.usage)})


def _write_count(decoded: BodyRequest, answer: TokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"input_tokens": len(answer.token_ids)})


class _MessageStream:
    """As StreamWriter of app/protocols/shared/codec.py: the message without content, its blocks, and its end."""

    def __init__(self, decoded: BodyRequest, context: AnswerContext) -> None:
        self._context = context
        self._text = _text_of(decoded)
        self._blocks = ContentBlocks(self._text.format.tools)
        self._end: dict[str, str | None] = {}

    def begin(self, usage: Usage) -> list[NamedEvent]:
        message = {**_head(self._context), "content": [], "stop_reason": None, "stop_sequence": None}
        return [_event("message_start", message={**message, "usage": _usage(usage)}), _event("ping")]

    def piece(self, piece: TextDelta) -> list[NamedEvent]:
        events = self._text.push(piece.text)
        if piece.finish_reason is not None:
            events += self._text.finish(piece.finish_reason)
            self._end = _end(piece.finish_reason, piece.stop_string, self._text)
        return [payload for event in events for payload in self._payloads(event)]

    def end(self, usage: Usage, latency_ms: float) -> list[NamedEvent]:
        delta = _event("message_delta", delta=self._end, usage=_usage(usage))
        return [*self._block_end(), delta, _event("message_stop")]

    def error(self, error: ErrorReply) -> list[NamedEvent]:
        return [NamedEvent(b"error", error_body(error, self._context.request_id))]

    def _payloads(self, event: Event) -> list[NamedEvent]:
        """Return the end of the last block and the beginning of a new one, if the event begins one, and its delta."""
        payloads: list[NamedEvent] = []
        ended = self._block_end()
        block = self._blocks.begin(event)
        index = self._blocks.count - 1
        if block is not None:
            payloads = [*ended, _event("content_block_start", index=index, content_block=block)]
        delta = delta_of(event)
        if delta is not None:
            payloads.append(_event("content_block_delta", index=index, delta=delta))
        return payloads

    def _block_end(self) -> list[NamedEvent]:
        count = self._blocks.count
        return [_event("content_block_stop", index=count - 1)] if count else []


def _event(name: str, **fields: Any) -> NamedEvent:
    return NamedEvent(name.encode(), orjson.dumps({"type": name, **fields}))


def _head(context: AnswerContext) -> dict[str, Any]:
    return {"id": f"msg_{context.request_id}", "type": "message", "role": "assistant", "model": context.model}


def _end(finish_reason: FinishReason, stop_string: str | None, text: TurnText) -> dict[str, str | None]:
    """Return why a text ended. A text that ended at a stop string may have calls before it."""
    if finish_reason == "length":
        reason = "max_tokens"
    elif stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if text.has_calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": stop_string}


def _usage(usage: Usage) -> dict[str, int]:
    """Return Anthropic's `usage`, whose input tokens are those not found in the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.tokens_generated,
    }


def _rename(field: str) -> str:
    """Return the field of the body: other protocols have other names for tools and stop strings."""
    if field in _RENAMED:
        return _RENAMED[field]
    if not field.startswith("tools["):
        return field
    if field.endswith("]"):
        return f"{field}.input_schema"
    return field.replace(".function.parameters", ".input_schema").replace(".function.name", ".name")


MESSAGES_CODEC = AnthropicCodec(
    "/v1/messages", ("generate",), MessagesRequest, _build, _write, MESSAGES_POLICY, _MessageStream, _rename,
    _check_tools, ignored=_ignored,
)  # fmt: skip
COUNT_TOKENS_CODEC = AnthropicCodec(
    "/v1/messages/count_tokens", ("generate",), CountTokensRequest, _build_count, _write_count, COUNT_TOKENS_POLICY,
    rename=_rename, check=_check_tools, ignored=_ignored,
)  # fmt: skip
