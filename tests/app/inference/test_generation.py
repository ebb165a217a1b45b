"""Text generation by the service: prompts, choices and options of requests."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from frameworks.core.errors import InvalidInput
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.types import (
    NOT_FORCED,
    Choice,
    Constraint,
    Conversation,
    ForcedTokens,
    GenerateRequest,
    Message,
    Prompt,
    Stopping,
    TokenText,
    Usage,
)
from tests.app.inference.generating import Harness, generate_request, generating
from tests.support.loops import in_loop
from tests.support.step_models import CONTEXT, EchoModel, EchoRegistry

CONVERSATION = Conversation((Message("user", "hi"), Message("assistant", "ho")))


@in_loop
async def test_only_whole_texts_are_buffered() -> None:
    """Stop strings are searched in each piece, for whole texts too."""
    async with generating() as harness:
        await harness.collect(generate_request("abc"))
        await harness.pieces(generate_request("abc"))
        await harness.collect(generate_request("abc", stop=("xx",)))
        await harness.pieces(generate_request("abc", stop=("xx",)))
        assert [given.is_read_whole for given in harness.models[0].given[-4:]] == [True, False, False, False]


@in_loop
async def test_whole_answer_has_text_and_usage() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request("abc", max_tokens=7))
        assert answer.choices == [Choice("abcabca", "length")]
        assert answer.usage == Usage(3, 7, 0)
        answer = await harness.collect(generate_request("ab\0c", max_tokens=7))
        assert answer.choices == [Choice("ab", "stop")]
        assert answer.usage == Usage(4, 3, 0), "the token that ends it counts"
        assert (await harness.collect(generate_request("ab\0c", max_tokens=7))).usage == Usage(4, 3, 3)


@in_loop
async def test_pieces_are_whole_characters() -> None:
    async with generating() as harness:
        pieces = await harness.pieces(generate_request("aé🐟", max_tokens=10))
        assert [piece.text for piece in pieces] == ["a", "é", "🐟", "a", "é"]
        assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["length"]
        # The text ends in the middle of a character.
        pieces = await harness.pieces(generate_request("aé🐟", max_tokens=5))
        assert "".join(piece.text for piece in pieces) == "aé\ufffd"


@in_loop
async def test_choices_of_all_prompts_have_indexes() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request("abc", "xyz", "klm", n=2, max_tokens=4))
        assert [choice.text for choice in answer.choices] == ["abca"] * 2 + ["xyzx"] * 2 + ["klmk"] * 2
        # The first choice of each prompt has no cache hits; it counts for the prompt.
        assert answer.usage == Usage(9, 24, 0)
        assert (await harness.collect(generate_request("abc", "new", n=2))).usage.cached_tokens == 2
        pieces = await harness.pieces(generate_request("abc", "xyz", n=2, max_tokens=3))
        assert {piece.index for piece in pieces[:4]} == {0, 1, 2, 3}, "in order of arrival"
        for index, text in enumerate(["abc", "abc", "xyz", "xyz"]):
            assert "".join(piece.text for piece in pieces if piece.index == index) == text


@in_loop
async def test_available_pieces_are_delivered_once() -> None:
    async with generating() as harness, harness.begin(generate_request("abc", "xyz", max_tokens=40)) as generation:
        texts = ["", ""]
        most = 0
        async for piece in generation:
            ready = generation.ready()
            most = max(most, len(ready))
            for each in (piece, *ready):
                texts[each.index] += each.text
        assert generation.ready() == []
        assert [text[:6] for text in texts] == ["abcabc", "xyzxyz"]
        assert [len(text) for text in texts] == [40, 40]
        assert most >= 1, "both texts go on in each step"


@in_loop
async def test_seed_is_independent_of_other_prompts() -> None:
    def seeds(harness: Harness) -> list[int | None]:
        given, harness.models[0].given[:] = list(harness.models[0].given), []
        return [request.sampling.seed for request in given]

    async with generating() as harness:
        await harness.collect(generate_request("a", n=3, seed=7))
        assert seeds(harness) == [7, 8, 9]
        await harness.collect(generate_request("x", "a", n=3, seed=7))
        assert seeds(harness) == [7, 8, 9, 7, 8, 9]
        await harness.collect(generate_request("a", n=2, seed=2**63 - 1))
        assert seeds(harness) == [2**63 - 1, 0]
        await harness.collect(generate_request("a", "a"))
        drawn = seeds(harness)
        assert len(set(drawn)) == 2
        assert None not in drawn


@in_loop
async def test_stop_string_ends_text_and_sequence() -> None:
    async with generating() as harness:
        async with harness.begin(generate_request("abcde", max_tokens=4000, stop=("de", "xx"))) as generation:
            answer = await generation.collect()
        assert answer.choices == [Choice("abc", "stop", stop_string="de")]
        assert answer.usage == Usage(5, 5, 0)
        request = generate_request("abc", "xyz", max_tokens=4000, stop=("c",))
        async with harness.begin(replace(request, stopping=replace(request.stopping, max_tokens=9))) as generation:
            answer = await generation.collect()
        assert answer.choices == [Choice("ab", "stop", stop_string="c"), Choice("xyzxyzxyz", "length")]


@in_loop
async def test_sequence_has_stopping_of_request() -> None:
    async with generating() as harness:
        stopping = Stopping(3, min_tokens=2, token_ids=frozenset({7}))
        await harness.collect(GenerateRequest(("abc",), stopping=stopping))
        await harness.collect(GenerateRequest(("abc",), stopping=replace(stopping, ignore_eos=True)))
        first, second = harness.models[0].given
        assert [sorted(each.stop_token_ids) for each in (first, second)] == [[0, 7], [7]]
        assert (first.min_tokens, first.max_tokens) == (2, 3)


@in_loop
async def test_sequence_has_forced_tokens_of_model() -> None:
    """Unless a constraint decides which tokens it has, or no end token ends it."""
    forced = ForcedTokens(last=(7,))
    async with generating() as harness:
        model = harness.models[0]
        assert model.spec.generation is not None
        model.spec = replace(model.spec, generation=replace(model.spec.generation, forced_tokens=forced))
        await harness.collect(generate_request("abc"))
        await harness.collect(GenerateRequest(("abc",), stopping=Stopping(3, ignore_eos=True)))
        await harness.collect(GenerateRequest(("abc",), stopping=Stopping(3), constraint=Constraint("choice", '["a"]')))
        assert [each.forced_tokens for each in model.given] == [forced, NOT_FORCED, NOT_FORCED]


@in_loop
async def test_default_max_tokens_is_rest_of_context() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request("x" * (CONTEXT - 3), max_tokens=None))
        assert answer.choices == [Choice("xxx", "length")]
        assert (await harness.collect(generate_request("x" * (CONTEXT - 3), max_tokens=3))).choices == answer.choices


@in_loop
async def test_log_probabilities_accompany_tokens() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request("ab", max_tokens=2, top_logprobs=1))
        top = ((0, "\0", -0.5),)
        assert answer.choices[0].tokens == [TokenText(97, "a", -0.5, top), TokenText(98, "b", -0.5, top)]


@in_loop
async def test_constraint_is_compiled_once_for_all_choices() -> None:
    threads: list[str] = []

    class RecordingModel(EchoModel):
        def constrain(self, constraint: Constraint) -> Any:
            threads.append(threading.current_thread().name)
            return super().constrain(constraint)

    class Registry(EchoRegistry):
        def make(self) -> EchoModel:
            return RecordingModel()

    async with generating(registry=Registry()) as harness:
        request = replace(generate_request("abc", n=3, max_tokens=20), constraint=Constraint("choice", "yes"))
        answer = await harness.collect(request)
        assert answer.choices == [Choice("yes", "stop")] * 3
        [thread] = threads
        assert thread.startswith("constrain")
        with pytest.raises(InvalidInput, match="constraint: is no choice"):
            await harness.collect(replace(request, constraint=Constraint("regex", "(")))


@in_loop
@pytest.mark.parametrize(
    ("prompts", "in_thread"),
    [
        (("short",), False),
        (((65, 66, 67),), False),
        (("x" * 1001,), True),
        (("x" * 300,) * 4, True),
        (("x",) * 5, True),
        ((CONVERSATION,), True),
    ],
)
async def test_long_prompts_are_tokenized_in_thread(prompts: tuple[Prompt, ...], in_thread: bool) -> None:
    async with generating() as harness:
        await harness.collect(generate_request(*prompts))
        names = harness.models[0].tokenizer.threads
        assert {name.startswith("tokenize") for name in names} == {in_thread}
        assert len(names) == len(prompts)


@in_loop
async def test_conversation_becomes_prompt() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request(CONVERSATION, max_tokens=9))
        assert answer.choices == [Choice("user: hi\n", "length")]


TOO_LONG = "x" * (CONTEXT - 2)


@in_loop
@pytest.mark.parametrize(
    ("request_", "field", "phrases"),
    [
        (generate_request(), "prompt", ["empty list", "at least one prompt"]),
        (generate_request(""), "prompt", ["at least one token, got none"]),
        (generate_request("a", "", "c"), "prompt[1]", ["at least one token, got none"]),
        (generate_request(()), "prompt", ["at least one token, got none"]),
        (generate_request("x" * CONTEXT), "prompt", ["fewer than 4096", "got 4096"]),
        (generate_request("x" * CONTEXT, max_tokens=None), "prompt", ["fewer than 4096", "got 4096"]),
        (generate_request("a", "x" * 5000), "prompt[1]", ["fewer than 4096", "got 5000"]),
        (generate_request(Conversation((Message("user", "x" * 5000),))), "messages", ["fewer than 4096", "got 5007"]),
        (generate_request(TOO_LONG, max_tokens=3), "max_tokens", ["got 3", "4096", "prompt has 4094", "1 to 2"]),
        (generate_request("a", TOO_LONG, max_tokens=3), "max_tokens", ["got 3", "prompt[1] has 4094"]),
        (generate_request("a", max_tokens=0), "max_tokens", ["got 0", "at least 1", "send echo"]),
        (generate_request("a", n=129), "n", ["got 129", "at most 128"]),
        (generate_request(*["a"] * 43, n=3), "n", ["got 129", "at most 128"]),
        (generate_request((256,)), "prompt", ["256"]),
        (GenerateRequest(("a",), stopping=Stopping(3, min_tokens=4)), "min_tokens", ["got 4", "at most 3"]),
    ],
)
async def test_request_beyond_limits_is_refused(request_: GenerateRequest, field: str, phrases: list[str]) -> None:
    async with generating() as harness:
        with pytest.raises(InvalidInput) as refused:
            await harness.collect(request_)
        assert refused.value.field == field
        for phrase in phrases:
            assert phrase in refused.value.message
        assert harness.models[0].given == []


@in_loop
async def test_number_of_texts_is_bounded() -> None:
    async with generating() as harness:
        answer = await harness.collect(generate_request("a", "b", n=64, max_tokens=2))
        assert [choice.text for choice in answer.choices] == ["aa"] * 64 + ["bb"] * 64


@in_loop
async def test_default_max_tokens_is_cut_to_context() -> None:
    async with generating() as harness:
        prompt = "a" * (CONTEXT - 3)
        stopping = Stopping(256, may_be_fewer=True)
        answer = await harness.collect(GenerateRequest((prompt,), stopping=stopping))
        assert (answer.usage.tokens_generated, answer.choices[0].finish_reason) == (3, "length")
        with pytest.raises(InvalidInput, match=r"max_tokens: expected 1 to 3, .*got 256; ask for fewer"):
            await harness.collect(GenerateRequest((prompt,), stopping=replace(stopping, may_be_fewer=False)))


@in_loop
async def test_constraint_with_ignore_eos_is_refused() -> None:
    async with generating() as harness:
        request = GenerateRequest(("a",), stopping=Stopping(9, ignore_eos=True), constraint=Constraint("regex", "a"))
        with pytest.raises(InvalidInput, match="ignore_eos: expected false with a constraint"):
            await harness.collect(request)


@in_loop
async def test_prompt_beyond_context_is_never_tokenized() -> None:
    async with generating() as harness:
        for prompts in (["x" * 3_200_000], ["a", "x" * CONTEXT]):
            with pytest.raises(InvalidInput, match=rf"fewer than {CONTEXT} tokens, .* characters, which are more"):
                await harness.collect(generate_request(*prompts))
        assert harness.models[0].tokenizer.threads == []


@in_loop
async def test_many_stop_characters_are_prepared_in_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def record(strings: tuple[str, ...]) -> StopStrings:
        names.append(threading.current_thread().name)
        return StopStrings(strings)

    monkeypatch.setattr("frameworks.engine.generating.service.StopStrings", record)
    async with generating() as harness:
        for stop in ("b" * 256, "b" * 257):
            request = GenerateRequest(("abc" + stop,), stopping=Stopping(999, strings=(stop,)))
            assert (await harness.collect(request)).choices == [Choice("abc", "stop", stop_string=stop)]
    assert names[0] == threading.current_thread().name
    assert names[1].startswith("tokenize-short")


@in_loop
@pytest.mark.parametrize(
    ("num_prompts", "n", "top_logprobs", "most"),
    [(1, 1, 20, 6241), (2, 64, 20, 48), (1, 64, 0, 2048), (1, 128, 5, 170)],
)
async def test_number_of_log_probabilities_is_bounded(num_prompts: int, n: int, top_logprobs: int, most: int) -> None:
    async with generating() as harness:
        prompts = ["a"] * num_prompts
        request = generate_request(*prompts, n=n, max_tokens=most + 1, top_logprobs=top_logprobs)
        with pytest.raises(InvalidInput, match=f"^max_tokens: expected at most {most} with logprobs, got {most + 1}: "):
            await harness.collect(request)
        assert harness.models[0].tokenizer.threads == []
        without = generate_request(*prompts, n=n, max_tokens=1)
        assert len((await harness.collect(without)).choices) == num_prompts * n


@in_loop
async def test_text_without_max_tokens_ends_at_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frameworks.engine.generation_limits.MAX_LOGPROBS", 24)
    async with generating() as harness:
        for max_tokens in (None, 100):
            request = generate_request("abcdefghij", n=2, max_tokens=max_tokens, top_logprobs=1)
            request = replace(request, stopping=replace(request.stopping, may_be_fewer=max_tokens is not None))
            assert (await harness.collect(request)).choices[0].text == "abcdef"
