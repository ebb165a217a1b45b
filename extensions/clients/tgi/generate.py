"""The codecs of Text Generation Inference (TGI): /generate and /generate_stream. POST / is in root.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyCodec, BodyRequest
from app.protocols.shared.chat_turns import generation_of
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.constraints import grammar_constraint
from app.protocols.shared.fields.generation import SamplingFields, StoppingFields, to_sampling, to_stopping
from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal
from app.protocols.shared.json.output import list_to_json
from extensions.clients.tgi.requests import TgiParameters, TgiRequest, TgiStreamRequest, TgiWholeRequest
from frameworks.generation.prompt_scores import PromptOptions
from frameworks.generation.types import Choice, Constraint, GenerateAnswer, GenerateRequest, TextDelta, TokenText, Usage
from frameworks.types import ModelSpec

PARAMETERS = FieldPolicy(
    {
        "adapter_id": Refusal("name the adapter in model, as base:adapter"),
        "best_of": Refusal("texts are not ranked: request several of /v1/completions by n", (1,)),
        "truncate": Refusal("a prompt is read whole: shorten it"),
        "typical_p": Refusal("send top_p or min_p", (1, 1.0)),
        "watermark": Refusal("texts have no watermark: omit the field", (False,)),
    }
)
"""Refused members of `parameters`."""
BODY = FieldPolicy({"options": Ignored(neutral=({},))})
"""Older clients of Hugging Face send options of its hub, as wait_for_model."""


@dataclass(frozen=True, slots=True)
class TgiCodec(BodyCodec):
    """As Codec of app/protocols/shared/codec.py."""

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return error_body(self.renamed(error))


def error_body(error: ErrorReply) -> bytes:
    """Write TGI's error body."""
    return orjson.dumps({"error": error.message, "error_type": _type_of(error)})


def _type_of(error: ErrorReply) -> str:
    if error.status in (429, 503):
        return "overloaded"
    return "generation" if error.status >= 500 else "validation"


_DEFAULT_MAX_TOKENS = 100
_GRAMMAR = "parameters.grammar.value"


def _build(body: TgiRequest, spec: ModelSpec) -> GenerateRequest:
    return build_text(body, spec, shows_tokens=bool(body.options.details))


def _build_stream(body: TgiRequest, spec: ModelSpec) -> GenerateRequest:
    return build_text(body, spec, shows_tokens=True)


def build_text(
    body: TgiRequest, spec: ModelSpec, shows_tokens: bool, stopping: StoppingFields | None = None
) -> GenerateRequest:
    """Return the request of a body. `shows_tokens`: the response has single tokens. That of an echoed prompt has the
    end token too. `stopping`: None: as the options say. Raises InvalidInput.
    """
    options, generation = body.options, generation_of(spec)
    has_prompt = bool(options.decoder_input_details and options.details)
    if stopping is None:
        stopping = StoppingFields(max_tokens=options.max_new_tokens, stop=options.stop)
    return GenerateRequest(
        (body.inputs,),
        to_sampling(_sampling_of(options), generation, (options.top_n_tokens or 0) if shows_tokens else None),
        to_stopping(stopping, generation, _DEFAULT_MAX_TOKENS),
        _constraint_of(options),
        prompt_options=PromptOptions(
            is_echoed=shows_tokens and generation.source is None, top_logprobs=0 if has_prompt else None
        ),
    )


def _sampling_of(options: TgiParameters) -> SamplingFields:
    """Return the sampling by TGI's defaults, which are not those of the model's files."""
    given = (options.temperature, options.top_k, options.top_p)
    is_drawn = options.do_sample or any(each is not None for each in given)
    return SamplingFields(
        temperature=(1.0 if options.temperature is None else options.temperature) if is_drawn else 0.0,
        top_k=options.top_k or 0,
        top_p=1.0 if options.top_p is None else options.top_p,
        min_p=0.0,
        repetition_penalty=options.repetition_penalty or 1.0,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
    )


def _constraint_of(options: TgiParameters) -> Constraint | None:
    return None if options.grammar is None else grammar_constraint(options.grammar, _GRAMMAR)


def check_parameters(fields: dict[str, Any], spec: ModelSpec) -> tuple[str, ...]:
    """Refuse parameters that would change the response."""
    return PARAMETERS.apply_to(fields, "parameters")


def _ignored_in_whole(body: TgiWholeRequest, spec: ModelSpec) -> tuple[str, ...]:
    return ("stream",) if body.stream else ()


def _ignored_in_stream(body: TgiStreamRequest, spec: ModelSpec) -> tuple[str, ...]:
    return ("stream",) if body.stream is False else ()


def _write(decoded: BodyRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps(text_of(decoded, answer))


def text_of(decoded: BodyRequest, answer: GenerateAnswer) -> dict[str, Any]:
    """Return the members of a whole text."""
    (choice,), options = answer.choices, decoded.body.options
    text = (decoded.body.inputs if options.return_full_text else "") + choice.text + (choice.stop_string or "")
    if not options.details:
        return {"generated_text": text}
    details = {
        "finish_reason": _reason(choice),
        "generated_tokens": answer.usage.tokens_generated,
        "seed": options.seed,
        "prefill": list_to_json(choice.prompt_tokens, _token),
        "tokens": list_to_json(choice.tokens, _token),
    }
    if options.top_n_tokens:
        details["top_tokens"] = list_to_json(choice.tokens, _top_tokens)
    return {"generated_text": text, "details": details}


class TokenStream:
    """As StreamWriter of app/protocols/shared/codec.py: an event for each token. The last one has the whole text."""

    def __init__(self, decoded: BodyRequest, context: AnswerContext) -> None:
        self._options: TgiParameters = decoded.body.options
        self._prompt: str = decoded.body.inputs if self._options.return_full_text else ""
        # A stop string may end the text after its last token was sent.
        self._holds_last = bool(decoded.request.stopping.strings)
        self._texts: list[str] = []
        self._count = 0
        self._held: list[dict[str, Any]] = []
        # Text whose token has not arrived.
        self._pending = ""
        self._details: dict[str, Any] = {}

    def begin(self, usage: Usage) -> list[bytes]:
        return []

    def piece(self, piece: TextDelta) -> list[bytes]:
        if piece.is_prompt:
            return []
        text = piece.text + (piece.stop_string or "")
        self._texts.append(text)
        self._pending += text
        if piece.tokens:
            self._held += [self._event(token, part) for token, part in _parts_of(self._pending, piece.tokens)]
            self._pending = ""
        if piece.finish_reason is not None:
            self._details = {"finish_reason": _reason(piece), "seed": self._options.seed}
        kept = 1 if self._holds_last or piece.finish_reason is not None else 0
        ready = self._held[: len(self._held) - kept]
        del self._held[: len(ready)]
        return [orjson.dumps(event) for event in ready]

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        last = self._held[-1] if self._held else self._event(TokenText(0, "", has_text=False), "")
        last["token"]["text"] += self._pending
        counts = {"generated_tokens": usage.tokens_generated, "input_length": usage.prompt_tokens}
        text = self._prompt + "".join(self._texts)
        return [orjson.dumps({**last, "generated_text": text, "details": {**self._details, **counts}})]

    def error(self, error: ErrorReply) -> list[bytes]:
        return [*map(orjson.dumps, self._held), error_body(error)]

    def _event(self, token: TokenText, text: str) -> dict[str, Any]:
        self._count += 1
        event = {"index": self._count, "token": {**_token(token), "text": text}}
        if self._options.top_n_tokens:
            event["top_tokens"] = _top_tokens(token)
        return {**event, "generated_text": None, "details": None}


def _parts_of(text: str, tokens: Sequence[TokenText]) -> list[tuple[TokenText, str]]:
    """Return each token with its part of the text, which has whole characters. Joined, the parts are the text."""
    parts: list[tuple[TokenText, str]] = []
    for number, token in enumerate(tokens, 1):
        own = token.text if token.has_text and text.startswith(token.text) else ""
        if number == len(tokens):
            own = text
        text = text[len(own) :]
        parts.append((token, own))
    return parts


def _token(token: TokenText) -> dict[str, Any]:
    return {"id": token.token_id, "text": token.text, "logprob": token.logprob, "special": not token.has_text}


def _top_tokens(token: TokenText) -> list[dict[str, Any]]:
    return [_token(TokenText(token_id, text, logprob)) for token_id, text, logprob in token.top]


def _reason(ended: Choice | TextDelta) -> str:
    if ended.stop_string is not None:
        return "stop_sequence"
    return "length" if ended.finish_reason == "length" else "eos_token"


def rename(field: str) -> str:
    """Return the field of the body: other protocols name the prompt and the number of tokens in another way."""
    return {
        "prompt": "inputs",
        "max_tokens": "parameters.max_new_tokens",
        "stop": "parameters.stop",
        "constraint": _GRAMMAR,
    }.get(field, field)


GENERATE_CODEC = TgiCodec(
    "/generate", ("generate",), TgiWholeRequest, _build, _write, BODY, rename=rename, check=check_parameters,
    ignored=_ignored_in_whole,
)  # fmt: skip
STREAM_CODEC = TgiCodec(
    "/generate_stream", ("generate",), TgiStreamRequest, _build_stream, _write, BODY, stream=TokenStream,
    rename=rename, check=check_parameters, ignored=_ignored_in_stream,
)  # fmt: skip
