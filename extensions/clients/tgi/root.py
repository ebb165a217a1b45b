"""The codec of POST / and POST /models/{name} for models that generate text.

Hugging Face's client sends the tasks of models with an encoder there: translation, summarization and others.
"""

from typing import Any

import orjson

from app.protocols.shared.body_codec import BodyRequest
from app.protocols.shared.chat_turns import generation_of
from app.protocols.shared.codec import AnswerContext
from app.protocols.shared.fields.generation import StoppingFields, to_languages, to_search
from app.protocols.shared.fields.policy import FieldPolicy, Refusal
from extensions.clients.tgi.generate import (
    BODY,
    TgiCodec,
    TokenStream,
    build_text,
    check_parameters,
    rename,
    text_of,
)
from extensions.clients.tgi.requests import HubParameters, TgiRootRequest
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer, GenerateRequest, GenerationSpec
from frameworks.types import ModelSpec

_NESTED = "generate_parameters"
"""The object of huggingface_hub for options of `generate`, which are members of `parameters` as well."""
_KEYS = {"summarization": "summary_text", "translation": "translation_text"}
"""The member of the response with the text, by task; of other models it is `generated_text`."""
_OF_PIPELINES = FieldPolicy(
    {
        "clean_up_tokenization_spaces": Refusal("texts are returned as the tokenizer joins them", (False,)),
        "truncation": Refusal("a prompt is read whole: shorten it", ("do_not_truncate",)),
    }
)
_NAMES = {
    "source_language": "parameters.src_lang",
    "target_language": "parameters.tgt_lang",
    "min_tokens": "parameters.min_new_tokens",
    **{
        name: f"parameters.{name}"
        for name in ("num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size", "max_length")
    },
}


def _check(fields: dict[str, Any], spec: ModelSpec) -> tuple[str, ...]:
    """Move the options of `generate_parameters` to their place, and refuse what would change the response."""
    given = fields.get("parameters")
    if isinstance(given, dict):
        given = dict(given)
        nested = given.pop(_NESTED, None)
        if nested is not None and not isinstance(nested, dict):
            raise InvalidInput(f"parameters.{_NESTED}", "expected an object, got another value; send options by name")
        fields["parameters"] = {**(nested or {}), **given}
    return (*check_parameters(fields, spec), *_OF_PIPELINES.apply_to(fields, "parameters"))


def _build(body: TgiRootRequest, spec: ModelSpec) -> GenerateRequest:
    options, generation = body.options, generation_of(spec)
    request = build_text(body, spec, bool(body.stream or options.details), _stopping_of(options, generation))
    languages = options.model_copy(
        update={
            "source_language": options.src_lang or options.source_language,
            "target_language": options.tgt_lang or options.target_language,
        }
    )
    return GenerateRequest(
        request.prompts,
        to_search(options, request.sampling, generation),
        request.stopping,
        request.constraint,
        prompt_options=to_languages(languages, generation, request.prompt_options),
    )


def _stopping_of(options: HubParameters, spec: GenerationSpec) -> StoppingFields:
    """Return the conditions that end a text. A length of transformers counts the tokens that begin a text."""
    source = spec.source
    if source is None and (options.max_length is not None or options.min_length is not None):
        name = "max_length" if options.max_length is not None else "min_length"
        raise InvalidInput(name, "expected none for a model without an encoder, got some; send max_new_tokens")
    begin = 0 if source is None else len(source.decoder_prompt)
    most, least = options.max_new_tokens, options.min_new_tokens
    if most is None and options.max_length is not None:
        most = options.max_length - begin
        if most < 1:
            raise InvalidInput("max_length", f"expected more than {begin}, got {options.max_length}; raise it")
    if least is None and options.min_length is not None:
        least = max(0, options.min_length - begin)
    stopping = StoppingFields(max_tokens=most, stop=options.stop)
    # The field is set only where the caller states it: else the files of the model do.
    return stopping if least is None else stopping.model_copy(update={"min_tokens": least})


def _write(decoded: BodyRequest, answer: GenerateAnswer, context: AnswerContext) -> bytes:
    text = text_of(decoded, answer)
    source = generation_of(decoded.spec).source
    if source is not None and source.task in _KEYS:
        text = {_KEYS[source.task]: text.pop("generated_text"), **text}
    return orjson.dumps([text])


def _rename(field: str) -> str:
    """Return the field of the body."""
    return _NAMES.get(field) or rename(field)


ROOT_CODEC = TgiCodec(
    "/", ("generate",), TgiRootRequest, _build, _write, BODY, stream=TokenStream, rename=_rename, check=_check,
)  # fmt: skip
