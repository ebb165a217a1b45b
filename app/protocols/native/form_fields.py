"""Describe the bodies of /infer that are one file or a form: the options of a file, and the parts of a form."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.native.fields import GenerationOptions, drop_null_defaults
from app.protocols.shared.bodies import MAX_INT32, Body
from app.protocols.shared.fields.images import MAX_IMAGES
from app.protocols.shared.fields.media import MAX_FILES
from app.protocols.shared.forms import FileUpload
from frameworks.types import LAST_PRIORITY

# The value of an omitted field that does not accept null.
_ABSENT: Any = None


class FileOptions(Body):
    """The options of a body that is one file: parameters of the query."""

    model_config = ConfigDict(json_schema_extra=drop_null_defaults)

    text: str = Field(_ABSENT, description="A text beside the files, for tasks that read both.")
    parameters: str = Field(_ABSENT, description="As in JSON, as a JSON object.")
    model_name: str = Field(_ABSENT, description="The model; not needed where the path names it.")
    version: str = Field(_ABSENT, description="The version of the model. Default: the one that serves traffic.")
    normalize: bool = Field(_ABSENT, description="As in JSON.")
    top_k: Annotated[int, Field(ge=1, le=MAX_INT32)] = Field(_ABSENT, description="As in JSON.")
    dimensions: int = Field(_ABSENT, ge=1, le=MAX_INT32, description="As in JSON.")
    function_to_apply: Literal["none", "softmax", "sigmoid"] = Field(_ABSENT, description="As in JSON.")
    outputs: list[str] = Field(_ABSENT, description="As in JSON: a part for each, or names separated by commas.")
    priority: int = Field(_ABSENT, ge=1, le=LAST_PRIORITY, description="As in JSON.")
    timeout_ms: int = Field(_ABSENT, ge=1, le=MAX_INT32, description="As in JSON.")


class InferFiles(FileOptions, GenerationOptions):
    """The parts of a form: files of one of its first three fields; or `prompt` or `messages`, with files of `images`.

    Of the options of generated text, a list is a part for each of its items, and an object is JSON.
    """

    image: list[FileUpload] = Field(
        _ABSENT, min_length=1, max_length=MAX_IMAGES, description="A part for each image file."
    )
    audio: list[FileUpload] = Field(
        _ABSENT, min_length=1, max_length=MAX_FILES, description="A part for each audio file."
    )
    video: list[FileUpload] = Field(
        _ABSENT, min_length=1, max_length=MAX_FILES, description="A part for each video file."
    )
    images: list[FileUpload] = Field(
        _ABSENT,
        min_length=1,
        max_length=MAX_IMAGES,
        description="A part for each image file of a conversation, for models that generate text and see.",
    )
    prompt: str = Field(
        _ABSENT, description="The text to continue; with images, the message of a user who shows them before it."
    )
    messages: str = Field(
        _ABSENT,
        description='As in JSON, as a JSON list. Parts {"type": "image"} stand for the files of images in order; '
        "without such parts, the files precede the text of the last message of the user.",
        examples=['[{"role": "user", "content": [{"type": "text", "text": "Describe it."}, {"type": "image"}]}]'],
    )
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] = Field(_ABSENT, description="As in JSON.")
