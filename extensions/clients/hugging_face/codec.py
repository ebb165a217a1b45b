"""The codecs of Hugging Face's inference API: a body with `inputs`, or the bytes of one file.

Texts to embed, to classify or to continue are left to the codecs of TEI and TGI, which have the same bodies.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import orjson
from pydantic import Field

from app.inference.contract import NamedRequest
from app.inference.unnamed_model import UnnamedModel
from app.protocols.shared.body_codec import BodyRequest, RequestBody
from app.protocols.shared.codec import AnswerContext, EncodedResponse, Header, JsonCodec, StreamWriter, Target
from app.protocols.shared.errors import ErrorReply
from app.protocols.shared.fields.policy import FieldPolicy, Ignored
from app.protocols.shared.json.body import describe_type
from app.protocols.shared.json.output import array_to_json, to_json_value
from extensions.clients.tei.texts import TeiCodec, num_labels
from frameworks.core.errors import InvalidInput
from frameworks.images.encoded import read_encoded
from frameworks.images.spec import ImageRequest
from frameworks.media.encoding import SoundFormat, content_type_of, encode_sound
from frameworks.media.wav import read_float_wav
from frameworks.tasks.inputs import build_request
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.speaking import TEXT_TO_AUDIO
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskAnswer, TaskRequest, TaskSpec
from frameworks.types import DEFAULT_PRIORITY, ClassifyAnswer, EmbedAnswer, ModelSpec

_FILES = ("image", "audio", "video")
_FILE_TYPES = (b"image/", b"audio/", b"video/", b"application/octet-stream")
# huggingface_hub sends them beside the parameters of a pipeline: its own name of the model, and the language of OCR.
_WITHOUT_EFFECT = frozenset({"model", "lang"})
_MAX_SPACES = 64
SOUND_FORMAT: SoundFormat = "flac"
"""Of the sound of one text, as the hub answers it."""
# Older clients send options of the hub, as wait_for_model.
_POLICY = FieldPolicy({"options": Ignored(neutral=({},))})


class HubRequest(RequestBody):
    """The body of Hugging Face's inference API, for models of any task of a pipeline."""

    inputs: Any = Field(
        description="A text, or an object of texts such as `question` and `context`; a file in base64; or a list.",
        examples=["Angela Merkel met Tim Cook in Berlin."],
    )
    parameters: dict[str, Any] | None = Field(
        None, description="Parameters of the model's task, by transformers' names; null is the default."
    )


def _build(body: HubRequest, spec: ModelSpec) -> TaskRequest:
    task = spec.pipeline
    assert task is not None
    given = {name: value for name, value in (body.parameters or {}).items() if value is not None}
    members = {name: given.pop(name) for name in task.members if name in given}
    if "word_boxes" in members:
        members["word_boxes"] = _in_pairs(members["word_boxes"])
    parameters = check_parameters(task, {k: v for k, v in given.items() if k not in _WITHOUT_EFFECT})
    is_list = _is_list(body.inputs, task, parameters)
    fields = [f"inputs[{i}]" for i in range(len(body.inputs))] if is_list else ["inputs"]
    inputs = body.inputs if is_list else [body.inputs]
    return build_request(
        task,
        [{**members, **_input(value, task, field)} for value, field in zip(inputs, fields, strict=True)],
        parameters,
        fields,
    )


def _in_pairs(words: Any) -> Any:
    """Return [word, box] pairs for a list of words and boxes in turn, as huggingface_hub declares it."""
    if isinstance(words, list) and words and len(words) % 2 == 0 and isinstance(words[0], str):
        return [[*pair] for pair in zip(words[::2], words[1::2], strict=True)]
    return words


def _is_list(inputs: Any, task: TaskSpec, parameters: Mapping[str, Any]) -> bool:
    """Whether `inputs` are several: a list, unless one input is a list of words or of files."""
    if not isinstance(inputs, list):
        return False
    is_group = task.files_per_input > 1 or parameters.get("is_split_into_words") is True
    return not is_group or any(isinstance(each, list) for each in inputs)


def _input(value: Any, task: TaskSpec, field: str) -> dict[str, Any]:
    """Return one input by field; files are decoded. Raises InvalidInput."""
    if not isinstance(value, dict) and not task.inputs:
        raise InvalidInput(field, f"expected an object with {' and '.join(task.required)}, got another value")
    given = value if isinstance(value, dict) else {task.inputs[0]: value}
    found = dict(given)
    for name in _FILES:
        if name in given:
            own = f"{field}.{name}" if isinstance(value, dict) else field
            file = given[name]
            if task.files_per_input > 1:
                if not isinstance(file, list) or len(file) != task.files_per_input:
                    raise InvalidInput(own, f"expected a list of {task.files_per_input} files in base64")
                found[name] = [_file(each, f"{own}[{i}]") for i, each in enumerate(file)]
            else:
                found[name] = _file(file, own)
    return found


def _file(value: Any, field: str) -> bytes:
    if not isinstance(value, str):
        raise InvalidInput(field, f"expected a file in base64, got {describe_type(value)}")
    return read_encoded(value, field)


def _write(decoded: BodyRequest, answer: TaskAnswer, context: AnswerContext) -> bytes | EncodedResponse:
    task = decoded.spec.pipeline
    assert task is not None
    if task.name == TEXT_TO_AUDIO.name and not isinstance(decoded.body.inputs, list):
        file = encode_sound(*read_float_wav(b64decode(answer.predictions[0]["audio"])), SOUND_FORMAT)
        return EncodedResponse(file, content_type_of(SOUND_FORMAT).encode(), [])
    predictions = [_in_hub_form(task, each) for each in answer.predictions]
    is_list = _is_list(decoded.body.inputs, task, decoded.request.parameters)
    return _dumps(predictions if is_list else predictions[0])


def _in_hub_form(task: TaskSpec, prediction: Any) -> Any:
    """Return a prediction as the hub answers it: labels with scores, where a pipeline has two lists."""
    if task.name == "zero-shot-classification":
        pairs = zip(prediction["labels"], prediction["scores"], strict=True)
        return [{"label": label, "score": score} for label, score in pairs]
    return prediction


def _dumps(value: Any) -> bytes:
    return orjson.dumps(to_json_value(value), option=orjson.OPT_SERIALIZE_NUMPY)


TASK_CODEC = TeiCodec("/models/{name}", tuple(TASKS), HubRequest, _build, _write, _POLICY)
"""Of models whose task a pipeline of transformers serves."""


class FileRequest(NamedTuple):
    """The request for one file, as DecodedRequest of app/inference/contract.py."""

    request: TaskRequest | ImageRequest
    spec: ModelSpec
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    stream: bool = False


class HubFileCodec(JsonCodec):
    """The Codec of a body that is one file: an image, audio or a video."""

    __slots__ = ()

    def is_long_to_read(self, body: bytes) -> bool:
        return False

    def read(self, body: bytes, target: Target) -> NamedRequest:
        name = target.model or UnnamedModel(("task", "classify", "embed"))
        return NamedRequest(name, target.version, partial(_decode_file, bytes(body)))

    def encode(self, decoded: FileRequest, answer: Any, context: AnswerContext) -> bytes:
        match answer:
            case TaskAnswer():
                assert decoded.spec.pipeline is not None
                return _dumps(_in_hub_form(decoded.spec.pipeline, answer.predictions[0]))
            case ClassifyAnswer():
                return _dumps([{"score": score, "label": label} for label, score in answer.predictions[0]])
            case EmbedAnswer():
                return _dumps(array_to_json(answer.embeddings))
        raise AssertionError(f"no form for {type(answer).__name__}")

    def stream_writer(self, decoded: FileRequest, context: AnswerContext) -> StreamWriter:
        raise AssertionError("a file is never answered by a stream")

    def error_body(self, error: ErrorReply, request_id: str) -> bytes:
        return TASK_CODEC.error_body(error, request_id)


def _decode_file(body: bytes, spec: ModelSpec) -> FileRequest:
    if spec.pipeline is not None:
        kinds = [kind for kind in spec.pipeline.inputs if kind in _FILES]
        if len(kinds) != 1 or spec.pipeline.files_per_input > 1:
            raise InvalidInput("body", f"expected JSON for a model of task {spec.task}, got a file; send inputs")
        request = build_request(spec.pipeline, [{kinds[0]: body}], check_parameters(spec.pipeline, None), ["body"])
        return FileRequest(request, spec)
    if spec.image is None or spec.task == "tensor":
        raise InvalidInput("body", f"expected JSON for a model of task {spec.task}, got a file; send inputs")
    return FileRequest(ImageRequest([body], top_k=num_labels(None, spec)), spec)


FILE_CODEC = HubFileCodec()


def is_file(headers: Sequence[Header]) -> bool:
    """Whether the headers declare a body that is one file."""
    return any(name == b"content-type" and value.lower().startswith(_FILE_TYPES) for name, value in headers)


@dataclass(frozen=True, slots=True)
class HubRootCodec(TeiCodec):
    """The Codec of a path where the task of the model, and the type of the body, decide its form."""

    def for_head(self, headers: Sequence[Header], query: bytes) -> Any:
        return FILE_CODEC if is_file(headers) else TeiCodec.for_head(self, headers, query)

    def for_body(self, body: bytes) -> Any:
        # huggingface_hub sends a file whose type it does not know without one.
        return self if body[:_MAX_SPACES].lstrip()[:1] in (b"{", b"") else FILE_CODEC
