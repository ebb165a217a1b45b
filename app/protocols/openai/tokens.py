"""/v1/tokenize and /v1/detokenize, as vLLM has them: from text to tokens and back."""

import orjson

from app.protocols.openai import requests
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import TOKENIZE
from app.protocols.openai.generation import check_tools, tools_of
from app.protocols.openai.messages import to_conversation
from app.protocols.shared.chat_turns import check_has_template, ending_of, ignored_variables, variables_of
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.generation import check_token_ids
from app.protocols.shared.tools import use_tools
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Prompt
from frameworks.text.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from frameworks.types import ModelSpec, Task

_TASKS: tuple[Task, ...] = ("generate", "embed", "classify")


def _build_tokenize(body: requests.TokenizeRequest, spec: ModelSpec) -> TokenizeRequest:
    return TokenizeRequest(_prompt_of(body, spec), body.add_special_tokens is not False, bool(body.return_token_strs))


def _prompt_of(body: requests.TokenizeRequest, spec: ModelSpec) -> Prompt:
    if body.messages is None:
        if body.tools:
            raise InvalidInput("tools", "expected messages with the tools, got none; send messages, or no tools")
        if body.prompt is None:
            raise InvalidInput("prompt", "expected a string, got nothing; send prompt or messages")
        return body.prompt
    if body.prompt is not None:
        raise InvalidInput("messages", "expected either prompt or messages, got both; send one of them")
    if spec.generation is None:
        raise InvalidInput("messages", f"expected a model whose task is generate, got {spec.task}; send prompt")
    check_has_template(spec.generation, body.model)
    if body.add_special_tokens:
        raise InvalidInput(
            "add_special_tokens",
            "expected nothing with messages, got true; the chat template adds them: omit the field",
        )
    use = use_tools(tools_of(body.tools), "auto", None, True, spec.generation, None)
    variables = variables_of(body.chat_template_kwargs, spec.generation)
    ending = ending_of(body.add_generation_prompt, body.continue_final_message, body.messages[-1])
    return to_conversation(body.messages, use.for_template, variables=variables, ending=ending)


def _ignored(body: requests.TokenizeRequest, spec: ModelSpec) -> tuple[str, ...]:
    if spec.generation is None or body.messages is None:
        # A prompt is not formatted.
        given = {
            "chat_template_kwargs": bool(body.chat_template_kwargs),
            "add_generation_prompt": body.add_generation_prompt is False,
            "continue_final_message": bool(body.continue_final_message),
        }
        return tuple(name for name, is_given in given.items() if is_given)
    return ignored_variables(body.chat_template_kwargs, spec.generation)


def _build_detokenize(body: requests.DetokenizeRequest, spec: ModelSpec) -> DetokenizeRequest:
    if spec.generation is not None:
        check_token_ids(body.tokens, "tokens", spec.generation.vocabulary_size)
    return DetokenizeRequest(tuple(body.tokens))


def _write_tokenize(decoded: OpenAiRequest, answer: TokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(
        {
            "count": len(answer.token_ids),
            "max_model_len": answer.max_tokens,
            "tokens": answer.token_ids,
            "token_strs": answer.strings,
        }
    )


def _write_detokenize(decoded: OpenAiRequest, answer: DetokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"prompt": answer.text})


TOKENIZE_CODEC = OpenAiCodec(
    "/v1/tokenize", _TASKS, requests.TokenizeRequest, _build_tokenize, _write_tokenize, TOKENIZE, check=check_tools,
    ignored=_ignored,
)  # fmt: skip
DETOKENIZE_CODEC = OpenAiCodec(
    "/v1/detokenize", _TASKS, requests.DetokenizeRequest, _build_detokenize, _write_detokenize
)
