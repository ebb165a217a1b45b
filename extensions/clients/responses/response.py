"""The Response object: the members of the request that it repeats, its status, its output and its usage."""

from typing import Any

from app.protocols.openai.codec import OpenAiRequest
from app.protocols.shared.codec import AnswerContext
from extensions.clients.responses.requests import FunctionTool, ResponsesRequest
from frameworks.generation.types import Usage

Shown = dict[str, Any]


def head_of(decoded: OpenAiRequest, context: AnswerContext) -> Shown:
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


def begun(head: Shown) -> Shown:
    """Return the response before its text."""
    return _response(head, "in_progress", [])


def ended(head: Shown, output: list[Shown], finish_reason: str, usage: Usage, latency_ms: float) -> Shown:
    """Return the whole response."""
    usage_shown = _usage_of(usage)
    if finish_reason == "length":
        reason = {"reason": "max_output_tokens"}
        return {**_response(head, "incomplete", output), "incomplete_details": reason, "usage": usage_shown}
    completed_at = head["created_at"] + round(latency_ms / 1000)
    return {**_response(head, "completed", output), "completed_at": completed_at, "usage": usage_shown}


def failed(head: Shown, output: list[Shown], message: str) -> Shown:
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
