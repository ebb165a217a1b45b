"""/api/chat and /api/generate: texts, whole or as a stream of lines."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from app.protocols.shared.bodies import read_body
from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.chat_turns import (
    TurnText,
    check_has_template,
    check_infills,
    effort_of,
    generation_of,
    ignored_effort,
    ignored_variables,
    variables_of,
)
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.constraints import json_schema_constraint
from app.protocols.shared.fields.generation import (
    MAX_MESSAGES,
    SamplingFields,
    StoppingFields,
    to_sampling,
    to_stopping,
)
from app.protocols.shared.fields.images import decode_image
from app.protocols.shared.tools import Tool, check_tools_size, use_tools
from extensions.clients.ollama.codec import OllamaCodec, error_body
from extensions.clients.ollama.requests import (
    CHAT,
    GENERATE,
    OPTIONS,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaTextRequest,
    ignored_of,
)
from frameworks.core.errors import InvalidInput
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.tools.events import CallArguments, CallBegin
from frameworks.generation.types import (
    Constraint,
    Conversation,
    GenerateAnswer,
    GenerateRequest,
    GenerationSpec,
    Message,
    MessageCall,
    MessageImage,
    Sampling,
    Stopping,
    TextDelta,
    Usage,
)
from frameworks.types import ModelSpec

_NO_OPTIONS = read_body(OllamaOptions, {})
_THINKING = "enable_thinking"
_LOADS = "a model loads at its first request, and POST /models/{name}/unload unloads it"
_RENAMED = {
    "max_tokens": "options.num_predict",
    "stop": "options.stop",
    "repetition_penalty": "options.repeat_penalty",
    "constraint": "format",
    "chat_template_kwargs": "think",
}


def _build_chat(body: OllamaChatRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    check_has_template(generation, body.model)
    tools = [
        Tool(each.function.name, each.function.description, each.function.parameters, False)
        for each in body.tools or ()
    ]
    use = use_tools(tools, "auto", None, True, generation, _constraint_of(body))
    effort, variables = _thinking_of(body, generation)
    conversation = Conversation(_turns_of(body.messages), use.for_template, effort, variables)
    return GenerateRequest((conversation,), *_limits_of(body, generation), use.constraint, text_format=use.text_format)


def _build_generate(body: OllamaGenerateRequest, spec: ModelSpec) -> GenerateRequest:
    generation = generation_of(spec)
    if not body.prompt:
        # Clients of Ollama load and unload models so.
        raise InvalidInput("prompt", f'expected a text, got ""; {_LOADS}')
    if body.suffix:
        check_infills(generation, body.model)
    if body.raw or body.suffix or not generation.has_chat_template:
        if body.system or body.images:
            field = "system" if body.system else "images"
            raise InvalidInput(field, "expected none for a prompt without a chat template, got some; omit the field")
        options = PromptOptions(suffix=body.suffix or None)
        limits = _limits_of(body, generation)
        return GenerateRequest((body.prompt,), *limits, _constraint_of(body), prompt_options=options)
    use = use_tools([], "none", None, True, generation, _constraint_of(body))
    effort, variables = _thinking_of(body, generation)
    system = (Message("system", body.system),) if body.system else ()
    user = Message("user", body.prompt, images=_images_of(body.images, ""))
    conversation = Conversation((*system, user), "", effort, variables)
    return GenerateRequest((conversation,), *_limits_of(body, generation), use.constraint, text_format=use.text_format)


def _limits_of(body: OllamaTextRequest, generation: GenerationSpec) -> tuple[Sampling, Stopping]:
    options = body.options or _NO_OPTIONS
    sampling = SamplingFields(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=None if options.seed == -1 else options.seed,
    )
    limit = options.num_predict if (options.num_predict or 0) > 0 else None
    stopping = StoppingFields(max_tokens=limit, stop=options.stop)
    return to_sampling(sampling, generation), to_stopping(stopping, generation, None)


def _constraint_of(body: OllamaTextRequest) -> Constraint | None:
    if not body.format:
        return None if body.format != {} else Constraint("json_object")
    return Constraint("json_object") if body.format == "json" else json_schema_constraint(body.format, "format")


def _thinking_of(body: OllamaTextRequest, generation: GenerationSpec) -> tuple[str | None, str]:
    """Return the reasoning effort and the variables of the chat template. Raises InvalidInput."""
    if body.think and not generation.text_format.thinks:
        raise InvalidInput("think", "expected a model that thinks, got one that does not; omit the field")
    if isinstance(body.think, str):
        return effort_of(body.think, generation), ""
    return None, variables_of(None if body.think is None else {_THINKING: body.think}, generation)


def _ignored(body: OllamaTextRequest, spec: ModelSpec) -> tuple[str, ...]:
    think, generation = body.think, generation_of(spec)
    names = ignored_of(body, spec)
    if isinstance(think, str):
        return names + ignored_effort(think, generation, "think")
    if think is not None and ignored_variables({_THINKING: think}, generation):
        return (*names, "think")
    return names


def _turns_of(messages: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    """Return the turns. A result without the id of its call is that of the first open call of its function."""
    turns: list[Message] = []
    open_calls: list[MessageCall] = []
    count = 0
    for index, each in enumerate(messages):
        calls = []
        for call in each.tool_calls or ():
            # Fixed ids, so that a prompt is found in the cache. Templates of Mistral require nine characters.
            call_id = call.id or f"call{count:05d}"
            calls.append(MessageCall(call_id, call.function.name, orjson.dumps(call.function.arguments).decode()))
            count += 1
        open_calls += calls
        answered = None
        if each.role == "tool":
            answered = next((call for call in open_calls if _is_result(each, call)), None)
            if answered is not None:
                open_calls.remove(answered)
        call_id = each.tool_call_id or (answered.id if answered else "")
        name = each.tool_name or (answered.name if answered else "")
        images = _images_of(each.images, f"messages[{index}].")
        turns.append(Message(each.role, each.content or "", tuple(calls), call_id, name, each.thinking or "", images))
    return tuple(turns)


def _images_of(given: Sequence[str] | None, within: str) -> tuple[MessageImage, ...]:
    """Return the files before a text. `within`: the field that has them. Raises InvalidInput."""
    return tuple(
        MessageImage(decode_image(each, f"{within}images[{index}]"), 0, f"{within}images[{index}]")
        for index, each in enumerate(given or ())
    )


def _is_result(message: OllamaMessage, call: MessageCall) -> bool:
    if message.tool_call_id:
        return call.id == message.tool_call_id
    return message.tool_name in (None, "", call.name)


def _check(fields: dict[str, Any], spec: ModelSpec) -> None:
    """Refuse options, and validate messages one by one, so that other threads run between them."""
    OPTIONS.apply_to(fields, "options")
    check_tools_size(fields.get("tools"))
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) <= MAX_MESSAGES:
        fields["messages"] = [_read_message(each, index) for index, each in enumerate(messages)]


def _read_message(message: Any, index: int) -> Any:
    if not isinstance(message, dict):
        return message
    return read_body(OllamaMessage, message, f"messages[{index}].")


class _Parts:
    """Sort the events of one text into members of the response."""

    def __init__(self, decoded: BodyRequest) -> None:
        names = frozenset(each.function.name for each in getattr(decoded.body, "tools", None) or ())
        self._turn = TurnText(decoded.request, names, None)
        self._is_chat = isinstance(decoded.body, OllamaChatRequest)
        self._call: tuple[str, list[str]] | None = None

    def push(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        """Return the members of the response that some more text completes. A call is sent whole."""
        events = self._turn.push(text)
        if finish_reason is not None:
            events += self._turn.finish(finish_reason)
        texts = {"content": "", "reasoning": ""}
        calls: list[dict[str, Any]] = []
        for event in events:
            if isinstance(event, CallArguments):
                assert self._call is not None
                self._call[1].append(event.text)
                continue
            calls += self._ended_call()
            if isinstance(event, CallBegin):
                self._call = (event.name, [])
            else:
                texts[event.kind] += event.text
        if finish_reason is not None:
            calls += self._ended_call()
        return self._members(texts, calls)

    def _ended_call(self) -> list[dict[str, Any]]:
        if self._call is None:
            return []
        (name, parts), self._call = self._call, None
        try:
            arguments = orjson.loads("".join(parts) or "{}")
        except orjson.JSONDecodeError:
            # The text was cut off within the call.
            return []
        return [{"function": {"name": name, "arguments": arguments}}] if isinstance(arguments, dict) else []

    def _members(self, texts: dict[str, str], calls: list[dict[str, Any]]) -> dict[str, Any]:
        thinking = {"thinking": texts["reasoning"]} if texts["reasoning"] else {}
        if not self._is_chat:
            return {"response": texts["content"], **thinking}
        message = {"role": "assistant", "content": texts["content"], **thinking}
        return {"message": {**message, "tool_calls": calls} if calls else message}


def _head(context: AnswerContext) -> dict[str, Any]:
    created = datetime.fromtimestamp(context.created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"model": context.model, "created_at": created}


def _end(finish_reason: str, usage: Usage, latency_ms: float, prompt_ms: float) -> dict[str, Any]:
    """Return the last members. `prompt_ms`: milliseconds to the first piece; 0 for a whole response."""
    return {
        "done": True,
        "done_reason": "length" if finish_reason == "length" else "stop",
        "total_duration": int(latency_ms * 1e6),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": int(prompt_ms * 1e6),
        "eval_count": usage.tokens_generated,
        "eval_duration": int(max(latency_ms - prompt_ms, 0) * 1e6),
    }


def _write(decoded: BodyRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    (choice,) = answer.choices
    members = _Parts(decoded).push(choice.text, choice.finish_reason)
    return orjson.dumps(
        {**_head(context), **members, **_end(choice.finish_reason, answer.usage, context.latency_ms, 0)}
    )


class _LineStream:
    """As StreamWriter of app/protocols/shared/codec.py: a line for each part of the text, and the last line."""

    def __init__(self, decoded: BodyRequest, context: AnswerContext) -> None:
        self._parts = _Parts(decoded)
        self._head = _head(context)
        self._empty = self._parts.push("", None)
        self._opened_ms, self._opened_s = context.latency_ms, time.perf_counter()
        self._prompt_ms = 0.0
        self._reason = "stop"

    def begin(self, usage: Usage) -> list[bytes]:
        self._prompt_ms = self._opened_ms + (time.perf_counter() - self._opened_s) * 1e3
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        self._reason = piece.finish_reason or self._reason
        members = self._parts.push(piece.text, piece.finish_reason)
        return [] if members == self._empty else [orjson.dumps({**self._head, **members, "done": False})]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        end = _end(self._reason, usage, latency_ms, self._prompt_ms)
        return [orjson.dumps({**self._head, **self._empty, **end})]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [error_body(error)]


def _rename(field: str) -> str:
    """Return the field of the body: other protocols name options and formats in another way."""
    if field in OllamaOptions.model_fields:
        return f"options.{field}"
    if field.startswith("tools[") and field.endswith("]"):
        return f"{field}.function.parameters"
    return _RENAMED.get(field, field)


CHAT_CODEC = OllamaCodec(
    "/api/chat", ("generate",), OllamaChatRequest, _build_chat, _write, CHAT, _LineStream, _rename, _check,
    ignored=_ignored,
)  # fmt: skip
GENERATE_CODEC = OllamaCodec(
    "/api/generate", ("generate",), OllamaGenerateRequest, _build_generate, _write, GENERATE, _LineStream, _rename,
    _check, ignored=_ignored,
)  # fmt: skip
