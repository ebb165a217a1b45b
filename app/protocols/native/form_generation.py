"""Read a form for a model that generates text: `prompt` or `messages`, files of `images`, and options as text."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from app.protocols.native.codec import NativeRequest, read_priority
from app.protocols.native.fields import COMMON_FIELDS, GENERATION_FIELDS, GENERATION_INPUTS, GenerationOptions
from app.protocols.native.form_messages import IMAGES, FormMessages, images_of, parse_messages, to_conversation
from app.protocols.native.generation import build_request, check_chat_template
from app.protocols.native.images import convert_text
from app.protocols.native.inputs import read_count
from app.protocols.shared.bodies import read_body
from app.protocols.shared.fields.model_inputs import explain_expected_input
from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.generation.types import Conversation, GenerationSpec, Message, Prompt
from frameworks.types import ModelSpec

GENERATION_PARTS = COMMON_FIELDS | GENERATION_INPUTS | GENERATION_FIELDS
"""The parts besides files."""

_TEXTS = GENERATION_INPUTS | {"regex", "stop", "bad_words", "choice"}
_LISTS = frozenset({"stop", "bad_words", "choice", "stop_token_ids"})
_BOOLEANS = frozenset({"stream", "ignore_eos"})


class _MessagesRequest(GenerationOptions):
    messages: FormMessages


def is_generation(field: str, names: Collection[str]) -> bool:
    """Whether a form is for a model that generates text. `field`: of its files. `names`: of its other parts."""
    return field == IMAGES or not GENERATION_INPUTS.isdisjoint(names)


def read_generation_options(given: Sequence[tuple[str, str]], field: str, has_files: bool) -> dict[str, Any]:
    """Convert parts that arrived as text; a list has a part for each item. `field`: of the files.

    Raises InvalidInput, UnknownField.
    """
    options: dict[str, Any] = {}
    for name, text in given:
        if name not in GENERATION_PARTS:
            raise UnknownField.among(name[:MAX_SHOWN_CHARACTERS], GENERATION_PARTS, within="form.")
        if name in options and name not in _LISTS:
            raise InvalidInput(name, "expected one value, got several; send one")
        value = _converted(name, text)
        options[name] = [*options.get(name, ()), value] if name in _LISTS else value
    inputs = sorted(GENERATION_INPUTS.intersection(options))
    if len(inputs) != 1:
        found = "both" if inputs else "none of them"
        raise InvalidInput(inputs[-1] if inputs else "prompt", f"expected prompt or messages, got {found}; send one")
    if has_files and field != IMAGES:
        raise InvalidInput(field, f"expected images beside {inputs[0]}, got {field}; name the parts of files images")
    return options


def _converted(name: str, text: str) -> Any:
    """Return the value of a part. A text that is no JSON is left as it is, for the message of the field."""
    if name in COMMON_FIELDS or name in _BOOLEANS:
        return convert_text(name, text)
    if name in _TEXTS:
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def decode_generation(files: Sequence[bytes], options: Mapping[str, Any], spec: ModelSpec) -> NativeRequest:
    """Build the request. `options`: as `read_generation_options` returns them. Raises InvalidInput, UnknownField."""
    field = "messages" if "messages" in options else "prompt"
    generation = spec.generation
    if generation is None:
        raise InvalidInput(
            IMAGES if files else field,
            f"expected a model that generates text, got another; {explain_expected_input(spec)}",
        )
    _check_number(len(files), generation)
    images = images_of(files)
    if images or field == "messages":
        check_chat_template(generation)
    named = {name: value for name, value in options.items() if name in GENERATION_FIELDS}
    prompt: Prompt
    body: GenerationOptions
    if field == "messages":
        talk = read_body(_MessagesRequest, {**named, "messages": parse_messages(options["messages"])})
        body, prompt = talk, to_conversation(talk.messages, images)
    else:
        body, prompt = read_body(GenerationOptions, named), options["prompt"]
        if images:
            prompt = Conversation((Message("user", options["prompt"], images=images),))
    request, stream = build_request(prompt, body, generation)
    timeout_ms = read_count(options, "timeout_ms")
    return NativeRequest(field, request, spec, False, read_priority(options), timeout_ms, stream)


def _check_number(count: int, generation: GenerationSpec) -> None:
    """Raise InvalidInput for more files than the model reads."""
    if not count:
        return
    vision = generation.vision
    if vision is None:
        raise InvalidInput(
            IMAGES, f"expected no file, as the model reads no images, got {count}; name a model that does"
        )
    if count > vision.max_images:
        raise InvalidInput(
            IMAGES,
            f"expected at most {vision.max_images} files, got {count}; send fewer, or raise max_images of the model",
        )
