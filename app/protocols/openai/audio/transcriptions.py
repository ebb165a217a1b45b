"""/v1/audio/transcriptions and /v1/audio/translations: the text of a sound, from any model that reads speech."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import orjson
from pydantic import Field

from app.inference.contract import NamedRequest
from app.protocols.openai.audio.transcripts import segments_of, subrip, webvtt, words_of
from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import TRANSCRIPTIONS
from app.protocols.shared.body_codec import RequestBody, timeout_ms_of
from app.protocols.shared.codec import AnswerContext, EncodedResponse, Header, Target
from app.protocols.shared.errors import UnsupportedMediaType
from app.protocols.shared.forms import LONG_FORM_BYTES, MULTIPART, FileUpload, FormRules, read_boundary, read_form
from frameworks.core.errors import InvalidInput
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.speech_decoders import SPEECH_TASK
from frameworks.tasks.types import TaskAnswer, TaskRequest, TaskSpec
from frameworks.types import ModelSpec

_MAX_PROMPT_BYTES = 64 * 1024
_WINDOW_S = 30.0
"""Of models that read a sound at once, such as CTC: a longer one is cut."""
_LADDER = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures of the attempts at a window where the request sets 0, as of Whisper."""
_SEED = 0
"""Of sampled texts: equal requests have equal texts."""
_THRESHOLDS = {"compression_ratio_threshold": 2.4, "logprob_threshold": -1.0, "no_speech_threshold": 0.6}

ResponseFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["word", "segment"]


class TranslationRequest(RequestBody):
    """The parts of a form."""

    file: FileUpload
    prompt: str | None = Field(None, description="Text that the first window follows, for models that read one.")
    temperature: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Temperature of sampling. 0: greedy, and higher for a part whose text is unlikely or repeats.",
    )
    response_format: ResponseFormat | None = Field(None, description="Format of the response. Default: json.")


class TranscriptionRequest(TranslationRequest):
    """The parts of a form."""

    language: str | None = Field(
        None, max_length=64, description="Code of the language, for models that read several. Default: it is detected."
    )
    timestamp_granularities: list[Granularity] | None = Field(
        None,
        alias="timestamp_granularities[]",
        max_length=2,
        description='With verbose_json: times of segments or of words. Default: ["segment"].',
    )


@dataclass(frozen=True, slots=True)
class TranscriptionCodec(OpenAiCodec):
    """As Codec; the body is a form."""

    boundary: bytes = b""

    def for_head(self, headers: Sequence[Header], query: bytes) -> "TranscriptionCodec":
        """Raises UnsupportedMediaType, InvalidInput."""
        content_type = next((value for name, value in headers if name == b"content-type"), b"")
        if content_type.partition(b";")[0].strip().lower() != MULTIPART:
            raise _not_a_form(content_type)
        return replace(self, boundary=read_boundary(content_type))

    def is_long_to_read(self, body: bytes) -> bool:
        return len(body) >= LONG_FORM_BYTES

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the parts. Raises InvalidInput, UnknownField, UnsupportedMediaType."""
        if not self.boundary:
            # The headers of plain JSON choose no codec.
            raise _not_a_form(b"application/json")
        form = read_form(body, self.boundary, _RULES)
        if not form.files:
            raise InvalidInput("file", 'expected a file of sound, got none; send it as the part "file"')
        fields = _fields_of(form.options)
        fields["file"] = form.files[0]
        decode = partial(self._decode_form, fields)
        return NamedRequest(self.model_of(fields), None, decode, partial(timeout_ms_of, fields))

    def _decode_form(self, fields: Mapping[str, Any], spec: ModelSpec) -> OpenAiRequest:
        self.check_task(spec)
        return self.decoded(dict(fields), spec)


def _not_a_form(content_type: bytes) -> UnsupportedMediaType:
    given = content_type.decode("latin-1")[:100]
    return UnsupportedMediaType(
        f'content-type: expected multipart/form-data with a part "file", got "{given}"; send a form '
        "(curl: -F file=@speech.wav)"
    )


def _fields_of(options: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields of a form; its texts are read as their fields' types. Raises InvalidInput."""
    fields: dict[str, Any] = {}
    for name, text in options:
        if name in _LISTS:
            fields.setdefault(name, []).append(text)
        elif name in fields:
            raise InvalidInput(name, "expected one part of this name, got two; send one")
        else:
            fields[name] = _READ.get(name, str)(text)
    return fields


def _number(text: str) -> Any:
    """Return a number; another text as it is, which the validation refuses."""
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _integer(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text


def _flag(text: str) -> Any:
    return {"true": True, "false": False}.get(text.lower(), text)


_READ = {"temperature": _number, "priority": _integer, "timeout_ms": _integer, "stream": _flag}
_LISTS = frozenset({"timestamp_granularities[]", *(name for name in TRANSCRIPTIONS.refusals if name.endswith("[]"))})


def _build(task: str, body: TranslationRequest, spec: ModelSpec) -> TaskRequest:
    """Return the request for the task of the model. Raises InvalidInput."""
    assert spec.pipeline is not None
    given = {name: value for name, value in _parameters(task, body, spec.pipeline).items() if value is not None}
    try:
        parameters = check_parameters(spec.pipeline, given)
    except InvalidInput as error:
        raise InvalidInput(error.field.removeprefix("parameters."), error.reason) from None
    return build_request(spec.pipeline, [{"audio": body.file}], parameters, ["file"])


def _parameters(task: str, body: TranslationRequest, described: TaskSpec) -> dict[str, Any]:
    """Return the parameters of the task; None: those of the model. Raises InvalidInput."""
    tasks = described.parameter("task")
    if task == "translate" and (tasks is None or task not in tasks.choices):
        raise InvalidInput(
            "model", "expected a model that translates speech, got one that only transcribes it; name another model"
        )
    response_format = body.response_format or "json"
    granularities = getattr(body, "timestamp_granularities", None) or ()
    if granularities and response_format != "verbose_json":
        raise InvalidInput(
            "timestamp_granularities[]", f'expected none with response_format "{response_format}", got some; send '
            '"verbose_json"'
        )  # fmt: skip
    parameters: dict[str, Any] = {"return_duration": True}
    if described.parameter("return_segments") is None:
        return parameters | _of_whole_sounds(body, response_format)
    parameters |= {
        "task": task if tasks is not None else None,
        "language": getattr(body, "language", None) if described.parameter("language") is not None else None,
        "prompt": body.prompt or None,
        # Each format has the same text, which timestamps may change.
        "return_timestamps": "word" if "word" in granularities else True,
    }
    parameters |= {"return_segments": response_format not in ("json", "text"), "seed": _SEED}
    if not body.temperature:
        return parameters | _THRESHOLDS | {"temperature": list(_LADDER)}
    return parameters | {"temperature": [body.temperature]}


def _of_whole_sounds(body: TranslationRequest, response_format: str) -> dict[str, Any]:
    """Return the parameters of a model that reads a sound at once. Raises InvalidInput for those of other models."""
    if body.prompt:
        raise InvalidInput("prompt", "expected none, as the model reads no text beside the sound, got one; omit it")
    if body.temperature:
        raise InvalidInput(
            "temperature", f"expected 0, as the model does not sample, got {body.temperature:g}; omit it"
        )
    times = "word" if response_format not in ("json", "text") else None
    return {"chunk_length_s": _WINDOW_S, "return_timestamps": times}


def _write(decoded: OpenAiRequest, answer: TaskAnswer, context: AnswerContext) -> bytes | EncodedResponse:
    body: TranslationRequest = decoded.body
    [prediction] = answer.predictions
    text, response_format = str(prediction["text"]).strip(), body.response_format or "json"
    seconds = float(prediction["duration"])
    usage = {"type": "duration", "seconds": math.ceil(seconds)}
    match response_format:
        case "json":
            return orjson.dumps({"text": text, "usage": usage})
        case "text":
            return EncodedResponse(f"{text}\n".encode(), b"text/plain; charset=utf-8", [])
        case "srt":
            return EncodedResponse(subrip(segments_of(prediction)).encode(), b"text/plain; charset=utf-8", [])
        case "vtt":
            return EncodedResponse(webvtt(segments_of(prediction)).encode(), b"text/vtt; charset=utf-8", [])
        case _:
            return _verbose(decoded, prediction, {"text": text, "duration": seconds, "usage": usage})


def _verbose(decoded: OpenAiRequest, prediction: Mapping[str, Any], common: dict[str, Any]) -> bytes:
    body: TranslationRequest = decoded.body
    granularities = getattr(body, "timestamp_granularities", None) or ["segment"]
    task = decoded.request.parameters.get("task", "transcribe")
    language = prediction.get("language") or getattr(body, "language", None) or ""
    response = {"task": task, "language": language, **common}
    if "word" in granularities:
        words = words_of(prediction)
        response["words"] = [{"word": each.text, "start": each.start_s, "end": each.end_s} for each in words]
    if "segment" in granularities:
        response["segments"] = segments_of(prediction)
    return orjson.dumps(response)


def _without_effect(body: TranslationRequest, spec: ModelSpec) -> tuple[str, ...]:
    """Return the fields that have no effect on a model: the language, of one that has no languages."""
    assert spec.pipeline is not None
    has_languages = spec.pipeline.parameter("language") is not None
    return () if has_languages or getattr(body, "language", None) is None else ("language",)


def _renamed(field: str) -> str:
    """Return the part of the form that a field of the task comes from."""
    return {"audio": "file", "inputs": "file"}.get(field, field.removeprefix("parameters."))


_RULES = FormRules(
    {"file": 1},
    frozenset(TranscriptionRequest.model_fields.keys() - {"file", "timestamp_granularities"})
    | TRANSCRIPTIONS.refusals.keys()
    | _LISTS,
    "file",
    {"prompt": _MAX_PROMPT_BYTES},
)
TRANSCRIPTIONS_CODEC = TranscriptionCodec(
    "/v1/audio/transcriptions",
    (SPEECH_TASK,),
    TranscriptionRequest,
    partial(_build, "transcribe"),
    _write,
    TRANSCRIPTIONS,
    rename=_renamed,
    ignored=_without_effect,
)
TRANSLATIONS_CODEC = TranscriptionCodec(
    "/v1/audio/translations",
    (SPEECH_TASK,),
    TranslationRequest,
    partial(_build, "translate"),
    _write,
    TRANSCRIPTIONS,
    rename=_renamed,
    ignored=_without_effect,
)
