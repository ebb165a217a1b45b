"""Speak texts: the pipeline of transformers for VITS with seeds of its own, and bounds of the text and of the sound."""

import secrets
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import VitsTokenizer
from transformers.pipelines.text_to_audio import TextToAudioPipeline

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.media.wav import float_wav
from frameworks.tasks.speaking import MAX_CHARACTERS, MAX_SECONDS

_TRIAL_CHARACTERS = 16
_SEED_BITS = 63

Row = dict[str, Any]


class TextToAudio(TextToAudioPipeline):  # type: ignore[misc]  # transformers has no types
    """Return the sound of a text: a WAV file in base64, and its sampling rate in Hz."""

    _load_processor = False

    def __init__(self, **options: Any) -> None:
        """Raise InvalidModel for a tokenizer that needs more than its own file."""
        super().__init__(**options)
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, VitsTokenizer):
            raise InvalidModel(f"tokenizer: expected a VitsTokenizer, got {type(tokenizer).__name__}")
        if tokenizer.phonemize:
            raise InvalidModel(
                "tokenizer_config.json: phonemize: expected false, got true, which needs phonemizer and espeak; serve "
                "a model that reads letters, as of facebook/mms-tts-eng"
            )
        letters = [each for each in tokenizer.encoder if len(each) == 1 and not each.isspace()]
        if not letters:
            raise InvalidModel("vocab.json: expected characters, got none")
        self.trial_text = "".join(2 * letter for letter in letters[:_TRIAL_CHARACTERS])
        self._bound = _LengthBound(self.model)

    def _sanitize_parameters(
        self, speaker_id: int | None = None, speaking_rate: float | None = None, seed: int | None = None
    ) -> tuple[Row, Row, Row]:
        given = {"speaker_id": speaker_id, "speaking_rate": speaking_rate, "seed": seed}
        return {}, {name: value for name, value in given.items() if value is not None}, {}

    def preprocess(self, text: str) -> Any:
        """Return the tokens of a text. Raises InvalidInput."""
        if len(text) > MAX_CHARACTERS:
            raise InvalidInput("text", f"expected at most {MAX_CHARACTERS} characters, got {len(text)}; split the text")
        tokenizer = self.tokenizer
        if tokenizer.is_uroman and not text.isascii():
            raise InvalidInput("text", "expected Latin letters of ASCII, got others; romanize the text with uroman")
        spoken, _ = tokenizer.prepare_for_tokenization(text)
        if not spoken.strip():
            raise InvalidInput("text", "expected characters that the model speaks, got none; send others")
        return tokenizer(text, return_tensors="pt")

    def _forward(
        self,
        model_inputs: Mapping[str, torch.Tensor],
        speaker_id: int | None = None,
        speaking_rate: float | None = None,
        seed: int | None = None,
    ) -> Row:
        """Return `waveform`, float32 [1, samples]. Raises InvalidInput for a sound that is too long."""
        rate = self.model.speaking_rate if speaking_rate is None else speaking_rate
        with self._bound.at_rate(rate), _Noise(secrets.randbits(_SEED_BITS) if seed is None else seed):
            outputs = self.model(**model_inputs, speaker_id=speaker_id, speaking_rate=rate)
        return {"waveform": outputs.waveform}

    def postprocess(self, model_outputs: Row) -> Row:
        """Return the sound as JSON values."""
        samples = model_outputs["waveform"].reshape(-1).float().numpy()
        return {
            "audio": b64encode(float_wav(samples, self.sampling_rate)).decode(),
            "sampling_rate": self.sampling_rate,
        }


class _Noise(TorchFunctionMode):
    """Draw the noise of this thread from generators of its own, with the numbers that `torch.manual_seed` gives.

    Other threads draw from the global generators at the same time.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        # A model on an accelerator draws some noise on the host.
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.randn:
            return self._fill(torch.empty(*args, **kwargs))
        if func is torch.randn_like:
            # The strides decide the order of the numbers.
            return self._fill(torch.empty_like(*args, **kwargs))
        return func(*args, **kwargs)

    def _fill(self, tensor: torch.Tensor) -> torch.Tensor:
        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = self._generators[tensor.device] = torch.Generator(tensor.device).manual_seed(self._seed)
        return tensor.normal_(generator=generator)


class _LengthBound:
    """Refuse a sound that is too long, as soon as the model has predicted the durations of the tokens.

    The instances of a model share its modules: the rate is that of the thread.
    """

    def __init__(self, model: Any) -> None:
        self._rate = threading.local()
        self._frame_s = prod(model.config.upsample_rates) / model.config.sampling_rate
        model.duration_predictor.register_forward_hook(self._check)

    @contextmanager
    def at_rate(self, rate: float) -> Iterator[None]:
        """Speak at a rate in the block, on this thread."""
        self._rate.value = rate
        try:
            yield
        finally:
            del self._rate.value

    def _check(self, _: Callable[..., Any], inputs: tuple[torch.Tensor, ...], log_durations: torch.Tensor) -> None:
        """Raise InvalidInput. `inputs`: states and the mask of the tokens."""
        frames = torch.ceil(torch.exp(log_durations) * inputs[1] / self._rate.value).sum()
        seconds = float(frames) * self._frame_s
        # Durations that are no numbers are refused too.
        if not seconds <= MAX_SECONDS:
            raise InvalidInput(
                "text",
                f"expected speech of at most {MAX_SECONDS:g} seconds, got {seconds:.0f}; shorten the text, or raise "
                "speaking_rate",
            )
