"""/v1/completions with echo, log probabilities of prompts and suffix, without a model."""

from typing import Any

import pytest

from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.completions import COMPLETIONS_CODEC
from frameworks.generation.prompt_scores import DEFAULT_OPTIONS, PromptOptions
from frameworks.generation.types import Choice, GenerateAnswer, TextDelta, TokenText, Usage
from tests.app.protocols.openai.decoding import CONTEXT, assert_refused, decode, encode, events

PROMPT_TOKENS = [
    TokenText(1, "<s>", has_text=False),
    TokenText(7, "On", -0.5, ((4, "An", -0.25), (7, "On", -0.5)), rank=2),
    TokenText(8, "ce", -3.0, ((9, "ly", -0.5), (5, "e", -1.5)), rank=17),
]
TOKENS = [TokenText(9, " up", -0.5, ((9, " up", -0.5),)), TokenText(2, "</s>", -1.0, ((2, "</s>", -1.0),), None, False)]
ANSWER = GenerateAnswer([Choice(" up", "stop", TOKENS, prompt="Once", prompt_tokens=PROMPT_TOKENS)], Usage(3, 2))


def options_of(**fields: object) -> PromptOptions:
    request = decode(COMPLETIONS_CODEC, **{"model": "llama", "prompt": "Once", **fields}).request
    options: PromptOptions = request.prompt_options
    return options


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(COMPLETIONS_CODEC, field, *words, **{"model": "llama", "prompt": "Once", **fields})


class TestOptions:
    def test_prompt_is_plain_by_default(self) -> None:
        assert options_of(logprobs=3, echo=False, suffix="", add_special_tokens=True) == DEFAULT_OPTIONS

    def test_echo_scores_prompt_if_logprobs_are_asked(self) -> None:
        assert options_of(echo=True) == PromptOptions(is_echoed=True)
        assert options_of(echo=True, logprobs=0) == PromptOptions(is_echoed=True, top_logprobs=0)

    def test_largest_number_of_alternatives_is_computed(self) -> None:
        assert options_of(prompt_logprobs=2).top_logprobs == 2
        assert options_of(prompt_logprobs=2, echo=True, logprobs=5).top_logprobs == 5
        assert options_of(prompt_logprobs=7, echo=True, logprobs=5).top_logprobs == 7

    def test_special_tokens_may_be_left_out(self) -> None:
        assert not options_of(add_special_tokens=False).add_special_tokens

    def test_suffix_needs_a_model_that_infills(self) -> None:
        refused("suffix", "fill-in-the-middle tokens", '"llama"', suffix="end")
        assert options_of(model="coder", suffix="end").suffix == "end"

    def test_suffix_needs_texts_without_echo(self) -> None:
        refused("prompt", "token ids", model="coder", suffix="end", prompt=[1, 2])
        refused("echo", "expected false", model="coder", suffix="end", echo=True)

    def test_prompt_may_fill_context_without_text(self) -> None:
        assert len(decode(COMPLETIONS_CODEC, model="llama", prompt=[1] * 64, max_tokens=0).request.prompts[0]) == 64
        refused("prompt", "fewer than 64", prompt=[1] * 64)

    def test_prompt_logprobs_are_refused_in_stream(self) -> None:
        refused("prompt_logprobs", "streamed", prompt_logprobs=1, stream=True)
        messages = [{"role": "user", "content": "hi"}]
        assert_refused(CHAT_CODEC, "prompt_logprobs", model="llama", messages=messages, prompt_logprobs=1, stream=True)

    @pytest.mark.parametrize("number", [-1, 21, True])
    def test_prompt_logprobs_are_bounded(self, number: object) -> None:
        refused("prompt_logprobs", "from 0 to 20", prompt_logprobs=number)


class TestResponse:
    def written(self, answer: GenerateAnswer = ANSWER, **fields: object) -> Any:
        request = decode(COMPLETIONS_CODEC, model="llama", prompt="Once", **fields)
        return encode(COMPLETIONS_CODEC, request, answer)

    def test_echo_comes_first_with_null_logprob(self) -> None:
        # OpenAI's client reads the nulls, though its types do not have them.
        [choice] = self.written(echo=True, logprobs=2)["choices"]
        assert choice["text"] == "Once up"
        assert choice["logprobs"] == {
            "tokens": ["<s>", "On", "ce", " up", "</s>"],
            "token_logprobs": [None, -0.5, -3.0, -0.5, -1.0],
            "top_logprobs": [
                None,
                {"An": -0.25, "On": -0.5},
                {"ly": -0.5, "e": -1.5, "ce": -3.0},
                {" up": -0.5},
                {"</s>": -1.0},
            ],
            "text_offset": [0, 0, 2, 4, 7],
        }

    def test_fewer_alternatives_than_computed_are_shown(self) -> None:
        content = self.written(echo=True, logprobs=1, prompt_logprobs=2)
        assert content["choices"][0]["logprobs"]["top_logprobs"][2] == {"ly": -0.5, "ce": -3.0}

    def test_tokens_may_be_named_by_id(self) -> None:
        logprobs = self.written(echo=True, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        assert logprobs["tokens"] == [f"token_id:{i}" for i in (1, 7, 8, 9, 2)]
        assert logprobs["top_logprobs"][1] == {"token_id:4": -0.25, "token_id:7": -0.5}

    def test_prompt_logprobs_have_ranks(self) -> None:
        choice = self.written(prompt_logprobs=1)["choices"][0]
        assert choice["logprobs"] is None
        assert choice["prompt_logprobs"] == [
            None,
            {
                "7": {"logprob": -0.5, "rank": 2, "decoded_token": "On"},
                "4": {"logprob": -0.25, "rank": 1, "decoded_token": "An"},
            },
            {
                "8": {"logprob": -3.0, "rank": 17, "decoded_token": "ce"},
                "9": {"logprob": -0.5, "rank": 1, "decoded_token": "ly"},
            },
        ]

    def test_chat_has_prompt_logprobs(self) -> None:
        messages = [{"role": "user", "content": "hi"}]
        request = decode(CHAT_CODEC, model="llama", messages=messages, prompt_logprobs=0)
        content = encode(CHAT_CODEC, request, ANSWER)
        assert content["prompt_logprobs"] == [
            None,
            {"7": {"logprob": -0.5, "rank": 2, "decoded_token": "On"}},
            {"8": {"logprob": -3.0, "rank": 17, "decoded_token": "ce"}},
        ]

    def test_stream_equals_whole_response(self) -> None:
        request = decode(COMPLETIONS_CODEC, model="llama", prompt="Once", stream=True, echo=True, logprobs=2)
        assert COMPLETIONS_CODEC.stream is not None
        writer = COMPLETIONS_CODEC.stream(request, CONTEXT)
        pieces = [
            TextDelta(0, "Once", None, tuple(PROMPT_TOKENS[:2]), is_prompt=True),
            TextDelta(0, "", None, tuple(PROMPT_TOKENS[2:]), is_prompt=True),
            TextDelta(0, " up", None, tuple(TOKENS[:1])),
            TextDelta(0, "", "stop", tuple(TOKENS[1:])),
        ]
        choices = [event["choices"][0] for piece in pieces for event in events(writer.piece(piece))]
        whole = self.written(echo=True, logprobs=2)["choices"][0]
        assert "".join(choice["text"] for choice in choices) == whole["text"]
        for name, values in whole["logprobs"].items():
            assert [value for choice in choices for value in choice["logprobs"][name]] == values
