"""Videos of conversations: the frames that are read, their bounds, and models that read none."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from transformers.utils import is_torchvision_available

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageImage, VisionSpec
from frameworks.media.video import VideoSize, decode_frames
from frameworks.pytorch.generation.vision import videos as module
from frameworks.pytorch.generation.vision.processing import ImageProcessing
from frameworks.pytorch.generation.vision.prompts import ImagePrompts
from frameworks.pytorch.generation.vision.videos import decode_selection, select_frames
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES
from tests.frameworks.pytorch.generation.vision.seeing_videos import VIDEOS, conversation
from tests.support.media import encoded_video, moving_square
from tests.support.models.vision.catalogue import MAKERS

BOUNDS = VisionSpec(16, 1_000_000)
FILE = MessageImage(VIDEOS[0], 3, "messages[0].content[1].video_url.url", is_video=True)


def sampling(*indices: int) -> ImageProcessing:
    """Return a processing whose processor reads these frames of every video."""
    return cast(ImageProcessing, SimpleNamespace(sample=lambda _: indices))


def test_selected_frames_are_those_of_processor() -> None:
    [selection] = select_frames([FILE], sampling(0, 5, 35), BOUNDS)
    assert selection.size == VideoSize(36, 10.0, 32, 48)
    assert selection.indices == (0, 5, 35)
    assert selection.nbytes == 3 * 32 * 48 * 3
    video = decode_selection(selection, BOUNDS)
    np.testing.assert_array_equal(video.frames, decode_frames(FILE.data, (0, 5, 35), "video"))
    assert video.metadata.timestamps == [0.0, 0.5, 3.5]


@pytest.mark.parametrize(
    ("files", "indices", "bounds", "message"),
    [
        (2, (0, 1), replace(BOUNDS, max_video_frames=3), "at most 3 frames of all videos, got 4; .* max_video_frames"),
        (1, (0,), replace(BOUNDS, max_video_seconds=3), "at most 3 seconds of video, got 4"),
        (1, (36,), BOUNDS, "a video with enough frames for the model's processor, got 36"),
        (1, (), BOUNDS, "a video with enough frames for the model's processor, got 36"),
    ],
)
def test_videos_beyond_bounds_are_refused(
    files: int, indices: tuple[int, ...], bounds: VisionSpec, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        select_frames([FILE] * files, sampling(*indices), bounds)
    assert raised.value.field == FILE.field


def test_bytes_of_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 3 * 32 * 48 * 3)
    assert select_frames([FILE], sampling(0, 1, 2), BOUNDS)
    with pytest.raises(InvalidInput, match="at most 13824 bytes of decoded frames, got 27648; send smaller"):
        select_frames([FILE, FILE], sampling(0, 1, 2), BOUNDS)


def test_processor_that_refuses_video_is_named() -> None:
    def sample(_: VideoSize) -> tuple[int, ...]:
        raise ValueError("too few frames")

    with pytest.raises(InvalidInput, match="samples, got an error: too few frames; send a longer one"):
        select_frames([FILE], cast(ImageProcessing, SimpleNamespace(sample=sample)), BOUNDS)


@pytest.mark.skipif(is_torchvision_available(), reason="torchvision is installed")
@pytest.mark.parametrize(
    ("name", "reason"),
    [("qwen2_vl", "needs torchvision, which is not installed"), ("gemma3", "its processor reads none")],
)
def test_model_without_videos_refuses_by_name(name: str, reason: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    model = load_generating(tmp_path, kv_cache_bytes=1 << 24)
    talk = conversation(("image", IMAGES[0]), ("video", VIDEOS[0]))
    prompts = model.image_prompts
    assert prompts is not None
    assert model.spec.generation is not None
    assert model.spec.generation.vision == prompts.bounds
    with pytest.raises(
        InvalidInput, match=f"as the model reads no videos .*{reason}.*, got one; send its frames"
    ) as error:
        prompts.encode(talk, model.tokenizer.limit(400), 400)
    assert error.value.field == "messages[0].content[1]"
    model.close()


class _Tokenizer:
    """Renders the content alone; parts of the kinds that it knows are in brackets."""

    has_chat_template = True

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def render(self, talk: Conversation) -> str:
        [message] = talk.messages
        text, end = "", 0
        for file in message.images:
            text += message.content[end : file.at]
            kind = "video" if file.is_video else "image"
            text += f"<{kind}>" if kind in self._kinds else ""
            end = file.at
        return text + message.content[end:]


@pytest.mark.parametrize("kinds", [(), ("image",), ("video",), ("image", "video")])
def test_placeholders_replace_parts_unknown_to_template(kinds: tuple[str, ...]) -> None:
    processing: Any = SimpleNamespace(placeholder="<image>", video_placeholder="<video>", no_videos_because=None)
    tokenizer: Any = _Tokenizer(*kinds)
    prompts = ImagePrompts(processing, tokenizer, BOUNDS)
    files = tuple(MessageImage(b"", at, "", is_video=at != 1) for at in (0, 1, 3))
    assert prompts.render(Conversation((Message("user", "abcd", images=files),))) == "<video>a<image>bc<video>d"


def test_damaged_video_is_refused_by_field() -> None:
    file = replace(FILE, data=encoded_video(moving_square(4))[:300])
    with pytest.raises(InvalidInput, match="expected a whole video file") as raised:
        select_frames([file], sampling(0), BOUNDS)
    assert raised.value.field == FILE.field
