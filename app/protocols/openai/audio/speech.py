"""/v1/audio/speech: a text to a sound file, spoken sentence by sentence."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import numpy as np
import orjson
from pydantic import Field

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest, error_body
from app.protocols.openai.field_policy import SPEECH
from app.protocols.shared.bodies import Body, got
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.codec import AnswerContext, EncodedResponse, Payload
from app.protocols.shared.errors import ErrorReply
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Usage
from frameworks.media.encoding import SoundEncoder, SoundFormat, content_type_of, encode_sound
from frameworks.media.wav import read_float_wav
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.speaking import MAX_SEED, TEXT_TO_AUDIO, parts_of
from frameworks.tasks.types import TaskAnswer, TaskRequest, TaskSpec
from frameworks.types import Array, ModelSpec

MAX_CHARACTERS = 4096
"""As OpenAI's."""
MEDIA_TYPES = tuple(dict.fromkeys(content_type_of(each) for each in get_args(SoundFormat)))

_NAMES = {"text": "input", "parameters.speaking_rate": "speed", "parameters.speaker_id": "voice"}
_Name = Annotated[str, Field(min_length=1, max_length=256)]


class VoiceReference(Body):
    """A voice by its id, as OpenAI's custom voices."""

    id: _Name


class SpeechRequest(RequestBody):
    """The body of /v1/audio/speech."""

    input: str = Field(
        min_length=1, max_length=MAX_CHARACTERS, description="The text.", examples=["The sun is warm today."]
    )
    voice: _Name | VoiceReference | None = Field(
        None, description="Number of the speaker, as text. A model with one speaker has one voice for every name."
    )
    response_format: SoundFormat | None = Field(
        "mp3", description="Format of the file. `pcm`: 24 kHz, integers of 16 bits, little endian, without a head."
    )
    speed: float | None = Field(1.0, ge=0.25, le=4.0, description="Factor of the model's own speed.")
    stream_format: Literal["audio", "sse"] | None = Field(
        "audio", description="`sse`: the file in pieces, as server-sent events."
    )
    seed: int | None = Field(
        None, ge=0, le=MAX_SEED, description="Equal seeds give equal sounds. Default: a random seed."
    )

    @property
    def streams(self) -> bool:
        return self.stream_format == "sse"

    @property
    def sound_format(self) -> SoundFormat:
        return self.response_format or "mp3"


def _build(body: SpeechRequest, spec: ModelSpec) -> TaskRequest:
    assert spec.pipeline is not None
    # The model refuses white space, as it does other characters that it does not speak.
    parts = parts_of(body.input) or [" "]
    parameters: dict[str, Any] = {"seed": body.seed, "speaker_id": _speaker_of(body, spec.pipeline)}
    rate = spec.pipeline.parameter("speaking_rate")
    if rate is not None:
        parameters["speaking_rate"] = rate.default * (body.speed or 1.0)
    given = {name: value for name, value in parameters.items() if value is not None}
    checked = check_parameters(spec.pipeline, given)
    return build_request(spec.pipeline, [{"text": part} for part in parts], checked, ["text"] * len(parts))


def _speaker_of(body: SpeechRequest, task: TaskSpec) -> int | None:
    """Return the number of the speaker; None for a model with one speaker. Raises InvalidInput."""
    speaker = task.parameter("speaker_id")
    if speaker is None:
        return None
    last = int(speaker.maximum or 0)
    name = body.voice.id if isinstance(body.voice, VoiceReference) else body.voice
    if name is None or not (name.isascii() and name.isdigit()) or len(name) > len(str(last)) or int(name) > last:
        found = "nothing" if name is None else got(name)
        raise InvalidInput(
            "voice", f'expected the number of a speaker as text, from "0" to "{last}", got {found}; send one of them'
        )
    return int(name)


def _ignored(body: SpeechRequest, spec: ModelSpec) -> tuple[str, ...]:
    """Name the voice that a model with one speaker does not have."""
    assert spec.pipeline is not None
    has_one = spec.pipeline.parameter("speaker_id") is None
    return ("voice",) if has_one and body.voice is not None else ()


def _rename(field: str) -> str:
    return _NAMES.get(field.partition("[")[0], field)


def _write(decoded: OpenAiRequest, answer: TaskAnswer, context: AnswerContext) -> EncodedResponse:
    sounds = [_sound_of(each) for each in answer.predictions]
    samples = np.concatenate([samples for samples, _ in sounds])
    sound_format: SoundFormat = decoded.body.sound_format
    file = encode_sound(samples, sounds[0][1], sound_format)
    return EncodedResponse(file, content_type_of(sound_format).encode(), [])


def _sound_of(prediction: dict[str, Any]) -> tuple[Array, int]:
    """Return the samples, float32 [samples], and their rate in Hz."""
    return read_float_wav(b64decode(prediction["audio"]))


class SpeechEvents:
    """Write one sound as OpenAI's events: the pieces of its file, then the usage. As StreamWriter."""

    def __init__(self, decoded: OpenAiRequest) -> None:
        self._format: SoundFormat = decoded.body.sound_format
        self._num_characters = len(decoded.body.input)
        self._encoder: SoundEncoder | None = None

    def begin(self, usage: Usage) -> Sequence[Payload]:
        return []

    def piece(self, piece: Any) -> Sequence[Payload]:
        """Return the next bytes of the file. Takes as long as their encoding."""
        samples, rate_hz = _sound_of(piece)
        if self._encoder is None:
            self._encoder = SoundEncoder(rate_hz, self._format)
        return _delta(self._encoder.encode(samples))

    def end(self, usage: Usage, latency_ms: float) -> Sequence[Payload]:
        last = b"" if self._encoder is None else self._encoder.end()
        # A token of these models is a character. They generate none.
        characters = self._num_characters
        counts = {"input_tokens": characters, "output_tokens": 0, "total_tokens": characters}
        return [*_delta(last), orjson.dumps({"type": "speech.audio.done", "usage": counts})]

    def error(self, error: ErrorReply) -> Sequence[Payload]:
        return [error_body(error)]


def _delta(data: bytes) -> list[Payload]:
    return [orjson.dumps({"type": "speech.audio.delta", "audio": b64encode(data).decode()})] if data else []


def _stream(decoded: OpenAiRequest, context: AnswerContext) -> SpeechEvents:
    return SpeechEvents(decoded)


SPEECH_CODEC = OpenAiCodec(
    "/v1/audio/speech",
    (TEXT_TO_AUDIO.name,),
    SpeechRequest,
    _build,
    _write,
    SPEECH,
    stream=_stream,
    rename=_rename,
    ignored=_ignored,
)
