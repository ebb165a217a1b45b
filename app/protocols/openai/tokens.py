"""/v1/tokenize and /v1/detokenize, as vLLM has them: what a model's tokenizer makes of a text, and back."""

from typing import Any

import orjson

from app.protocols.codec import AnswerContext
from app.protocols.generation_fields import read_flag
from app.protocols.json_body import describe_value
from app.protocols.openai.codec import Asked, Fields, OpenAiCodec, Question
from app.protocols.openai.field_policy import DETOKENIZE, TOKENIZE
from app.protocols.openai.prompts import check_has_template, read_chat, read_ids
from app.protocols.openai.texts import read_text
from frameworks.errors import InvalidInput
from frameworks.generation.types import Prompt
from frameworks.text.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from frameworks.types import ModelSpec, Task

_TASKS: tuple[Task, ...] = ("generate", "embed", "classify")
MOST_TOKENS = 1_000_000


def _read_tokenize(fields: Fields, spec: ModelSpec) -> Asked:
    if "prompt" in fields and "messages" in fields:
        raise InvalidInput("messages", "does not go with prompt; send one of them")
    prompt: Prompt
    if "messages" in fields:
        if spec.generation is None:
            raise InvalidInput("messages", f"goes with models that generate text; this one's task is {spec.task}")
        check_has_template(spec.generation, fields)
        prompt = read_chat(fields["messages"])
        if fields.get("add_special_tokens"):
            raise InvalidInput("add_special_tokens", "does not go with messages, whose template has them; leave it out")
    else:
        prompt = read_text(fields.get("prompt"), "prompt")
    adds = fields.get("add_special_tokens", True)
    if not isinstance(adds, bool):
        raise InvalidInput("add_special_tokens", f"is {describe_value(adds)}; wants true or false")
    return Asked(TokenizeRequest(prompt, adds, read_flag(fields, "return_token_strs")))


def _read_detokenize(fields: Fields, spec: ModelSpec) -> Asked:
    tokens: Any = fields.get("tokens")
    if not isinstance(tokens, list):
        given = "is missing" if tokens is None else f"is {describe_value(tokens)}"
        raise InvalidInput("tokens", f"{given}; wants a list of token ids")
    if len(tokens) > MOST_TOKENS:
        raise InvalidInput("tokens", f"has {len(tokens)} tokens; a request takes at most {MOST_TOKENS}, send several")
    highest = spec.generation.vocabulary_size if spec.generation else 2**31
    return Asked(DetokenizeRequest(read_ids(tokens, "tokens", highest) if tokens else ()))


def _write_tokenize(question: Question, answer: TokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(
        {
            "count": len(answer.token_ids),
            "max_model_len": answer.max_tokens,
            "tokens": answer.token_ids,
            "token_strs": answer.strings,
        }
    )


def _write_detokenize(question: Question, answer: DetokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"prompt": answer.text})


TOKENIZE_FORMAT = OpenAiCodec("/v1/tokenize", _TASKS, TOKENIZE, _read_tokenize, _write_tokenize)
DETOKENIZE_FORMAT = OpenAiCodec("/v1/detokenize", _TASKS, DETOKENIZE, _read_detokenize, _write_detokenize)
