"""/v1/chat/completions: answer a conversation."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest, error_body
from app.protocols.openai.field_policy import CHAT
from app.protocols.openai.generation import (
    StreamedUsage,
    chat_usage_of,
    check_prompt_logprobs,
    check_stream_options,
    check_tools,
    constraint_of,
    finite,
    ignored_stream_options,
    num_choices_of,
    prompt_logprobs_of,
    rename_tool,
    text_of,
    token_name,
    tools_of,
)
from app.protocols.openai.messages import to_conversation
from app.protocols.openai.requests import ChatRequest, NamedTool
from app.protocols.shared.chat_turns import (
    TurnText,
    check_has_template,
    effort_of,
    ending_of,
    generation_of,
    ignored_effort,
    ignored_variables,
    variables_of,
)
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.generation import to_sampling, to_stopping
from app.protocols.shared.json.output import list_to_json
from app.protocols.shared.tools import ToolMode, ToolUse, new_call_id, use_tools
from frameworks.core.errors import InvalidInput
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.tools.events import CallArguments, CallBegin, Event
from frameworks.generation.types import (
    Conversation,
    GenerateAnswer,
    GenerateRequest,
    GenerationSpec,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
)
from frameworks.types import ModelSpec


class ChatText:
    """The text of one choice, parsed. `max_calls`, `tool_names`: of the request's tools."""

    def __init__(self, request: GenerateRequest, tool_names: frozenset[str], max_calls: int | None) -> None:
        self._turn = TurnText(request, tool_names, max_calls)

    def push(self, text: str) -> list[dict[str, Any]]:
        """Return the deltas that some more text completes."""
        return [self._delta(event) for event in self._turn.push(text)]

    def finish(self, finish_reason: str) -> list[dict[str, Any]]:
        """Return the last deltas."""
        return [self._delta(event) for event in self._turn.finish(finish_reason)]

    def reason(self, finish_reason: str) -> str:
        """Return OpenAI's finish_reason."""
        return "tool_calls" if finish_reason == "stop" and self._turn.has_calls else finish_reason

    def whole(self, text: str, finish_reason: str) -> dict[str, Any]:
        """Return the message of a whole text, with the members of all deltas."""
        texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}
        calls: list[dict[str, Any]] = []
        arguments: list[list[str]] = []
        for delta in self.push(text) + self.finish(finish_reason):
            for call in delta.pop("tool_calls", ()):
                if "id" in call:
                    arguments.append([])
                    calls.append(call)
                arguments[call["index"]].append(call["function"]["arguments"])
            for name, part in delta.items():
                texts[name].append(part)
        content = "".join(texts["content"])
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._turn.format.thinks:
            message["reasoning_content"] = "".join(texts["reasoning_content"]) or None
        if calls:
            message["content"] = content or None
            for call, parts in zip(calls, arguments, strict=True):
                del call["index"]
                call["function"]["arguments"] = "".join(parts)
            message["tool_calls"] = calls
        return message

    def _delta(self, event: Event) -> dict[str, Any]:
        if isinstance(event, CallBegin):
            function = {"name": event.name, "arguments": ""}
            call_id = new_call_id(self._turn.format.tools)
            return {"tool_calls": [{"index": event.call, "id": call_id, "type": "function", "function": function}]}
        if isinstance(event, CallArguments):
            return {"tool_calls": [{"index": event.call, "function": {"arguments": event.text}}]}
        return {"reasoning_content" if event.kind == "reasoning" else "content": event.text}


def _build(body: ChatRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    check_has_template(generation, body.model)
    check_stream_options(body)
    check_prompt_logprobs(body)
    use = _tool_use(body, generation)
    return GenerateRequest(
        (_conversation_of(body, use, generation),),
        to_sampling(body, generation, _num_top_logprobs(body)),
        _stopping_of(body, generation),
        use.constraint,
        num_choices_of(body, num_prompts=1),
        use.text_format,
        PromptOptions(top_logprobs=body.prompt_logprobs),
    )


def _conversation_of(body: ChatRequest, use: ToolUse, generation: GenerationSpec) -> Conversation:
    effort = effort_of(body.reasoning_effort, generation)
    variables = variables_of(body.chat_template_kwargs, generation) if body.chat_template_kwargs else ""
    ending = ending_of(body.add_generation_prompt, body.continue_final_message, body.messages[-1])
    return to_conversation(body.messages, use.for_template, effort, variables, ending)


def _ignored(body: ChatRequest, spec: ModelSpec) -> tuple[str, ...]:
    generation = generation_of(spec)
    ignored = ignored_effort(body.reasoning_effort, generation, "reasoning_effort")
    if body.chat_template_kwargs:
        ignored += ignored_variables(body.chat_template_kwargs, generation)
    return ignored + ignored_stream_options(body.stream_options)


def _tool_use(body: ChatRequest, generation: GenerationSpec) -> ToolUse:
    tools = tools_of(body.tools) if body.tools else []
    choice = body.tool_choice or "auto"
    mode: ToolMode = "named" if isinstance(choice, NamedTool) else choice
    chosen = choice.function.name if isinstance(choice, NamedTool) else None
    is_parallel = body.parallel_tool_calls is not False
    return use_tools(tools, mode, chosen, is_parallel, generation, constraint_of(body))


def _text_of(decoded: OpenAiRequest) -> ChatText | None:
    """Return a parser of one text; None for a text that is content as it is."""
    if not decoded.request.text_format.marks:
        return None
    names = frozenset(each.function.name for each in decoded.body.tools or ())
    is_single = decoded.body.parallel_tool_calls is False or isinstance(decoded.body.tool_choice, NamedTool)
    return ChatText(decoded.request, names, 1 if is_single else None)


def _stopping_of(body: ChatRequest, generation: GenerationSpec) -> Stopping:
    limit = body.max_completion_tokens
    if limit is None:
        return to_stopping(body, generation, None)
    if body.max_tokens not in (None, limit):
        raise InvalidInput(
            "max_tokens",
            f"expected {limit}, as max_completion_tokens, got {body.max_tokens}; send one of them",
        )
    return to_stopping(body, generation, None, limit, "max_completion_tokens")


def _num_top_logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidInput("top_logprobs", 'expected "logprobs": true too, got none; send it or omit top_logprobs')
    return None


def _write(decoded: OpenAiRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    choices = []
    for index, choice in enumerate(answer.choices):
        text, reason = _text_of(decoded), str(choice.finish_reason)
        whole = text_of(decoded.body, choice)
        message = (
            {"role": "assistant", "content": whole, "refusal": None} if text is None else text.whole(whole, reason)
        )
        choices.append(
            {
                "index": index,
                "message": message,
                "logprobs": _logprobs(decoded, choice.tokens),
                "finish_reason": reason if text is None else text.reason(reason),
            }
        )
    body: ChatRequest = decoded.body
    more = {}
    if body.prompt_logprobs is not None:
        more = {"prompt_logprobs": prompt_logprobs_of(body, answer.choices[0].prompt_tokens)}
    head = _head(context, "chat.completion")
    return orjson.dumps({**head, "choices": choices, "usage": chat_usage_of(answer.usage), **more})


class _ChatStream:
    """As StreamWriter of app/protocols/shared/codec.py: role, pieces of the text and finish reason of each choice."""

    def __init__(self, decoded: OpenAiRequest, context: AnswerContext) -> None:
        self._decoded = decoded
        self._head = _head(context, "chat.completion.chunk")
        self._usage = StreamedUsage(decoded.body, chat_usage_of)
        self._has_logprobs = decoded.request.sampling.top_logprobs is not None
        self._texts = [_text_of(decoded) for _ in range(decoded.request.num_choices)]

    def begin(self, usage: Usage) -> list[bytes]:
        self._usage.begin(usage)
        role = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, role) for index in range(self._decoded.request.num_choices)]

    def piece(self, piece: TextDelta) -> list[bytes]:
        if self._usage.is_in_all:
            self._usage.count(piece)
        text, reason = self._texts[piece.index], piece.finish_reason
        part = text_of(self._decoded.body, piece) if piece.stop_string else piece.text
        deltas: list[dict[str, Any]] = [{"content": part}] if part or piece.tokens else []
        if text is not None:
            deltas = text.push(part)
            if reason is not None:
                deltas += text.finish(reason)
            if piece.tokens and not deltas:
                deltas = [{"content": ""}]
        # The log probabilities of the piece are in its first chunk.
        logprobs = _logprobs(self._decoded, piece.tokens) if self._has_logprobs and deltas else None
        chunks = []
        for delta in deltas:
            chunks.append(self._chunk(piece.index, delta, logprobs))
            logprobs = None
        if reason is not None:
            chunks.append(self._chunk(piece.index, {}, finish_reason=reason if text is None else text.reason(reason)))
        return chunks

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        if not self._usage.is_last:
            return [b"[DONE]"]
        return [orjson.dumps({**self._head, "choices": [], **self._usage.last(usage)}), b"[DONE]"]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [error_body(error)]

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head, "choices": [choice]}
        if self._usage.is_asked:
            chunk |= self._usage.member()
        return orjson.dumps(chunk)


def _head(context: AnswerContext, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{context.request_id}",
        "object": kind,
        "created": context.created_s,
        "model": context.model,
    }


def _logprobs(decoded: OpenAiRequest, tokens: Sequence[TokenText]) -> dict[str, Any] | None:
    if decoded.request.sampling.top_logprobs is None:
        return None
    body: ChatRequest = decoded.body
    return {"content": list_to_json(tokens, lambda token: _token_with_top(token, body)), "refusal": None}


def _token_with_top(token: TokenText, body: ChatRequest) -> dict[str, Any]:
    def shown(token_id: int, text: str, logprob: float | None) -> dict[str, Any]:
        utf8 = list(token.bytes_of(token_id, text))
        return {"token": token_name(token_id, text, body), "logprob": finite(logprob), "bytes": utf8}

    own = shown(token.token_id, token.text, token.logprob)
    return {**own, "top_logprobs": [shown(*each) for each in token.top]}


CHAT_CODEC = OpenAiCodec(
    "/v1/chat/completions", ("generate",), ChatRequest, _build, _write, CHAT, _ChatStream, rename_tool, check_tools,
    ignored=_ignored,
)  # fmt: skip
