"""Text generation as the service gives it: prompts in, choices out, and what a request may ask for."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from frameworks.errors import InvalidInput
from frameworks.generation.types import (
    Choice,
    Constraint,
    Conversation,
    GenerateRequest,
    Message,
    Prompt,
    Stopping,
    TokenText,
    Usage,
)
from tests.app.inference.generating import House, asks, generating
from tests.support.loops import in_loop
from tests.support.step_models import CONTEXT, EchoModel, EchoRegistry

CONVERSATION = Conversation((Message("user", "hi"), Message("assistant", "ho")))


@in_loop
async def test_only_what_nobody_reads_in_pieces_may_come_late() -> None:
    """A stop string is looked for in each piece, also where the caller waits for the whole."""
    async with generating() as house:
        await house.whole(asks("abc"))
        await house.pieces(asks("abc"))
        await house.whole(asks("abc", stop=("xx",)))
        await house.pieces(asks("abc", stop=("xx",)))
        assert [given.is_read_whole for given in house.made[0].given[-4:]] == [True, False, False, False]


@in_loop
async def test_a_whole_answer() -> None:
    async with generating() as house:
        answer = await house.whole(asks("abc", max_tokens=7))
        assert answer.choices == [Choice("abcabca", "length")]
        assert answer.usage == Usage(3, 7, 0)
        answer = await house.whole(asks("ab\0c", max_tokens=7))
        assert answer.choices == [Choice("ab", "stop")]
        assert answer.usage == Usage(4, 3, 0), "the token that ends it counts"
        assert (await house.whole(asks("ab\0c", max_tokens=7))).usage == Usage(4, 3, 3)


@in_loop
async def test_pieces_are_whole_characters_and_together_the_text() -> None:
    async with generating() as house:
        pieces = await house.pieces(asks("aé🐟", max_tokens=10))
        assert [piece.text for piece in pieces] == ["a", "é", "🐟", "a", "é"]
        assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["length"]
        # The end is in the middle of a character.
        assert "".join(piece.text for piece in await house.pieces(asks("aé🐟", max_tokens=5))) == "aé\ufffd"


@in_loop
async def test_every_choice_of_every_prompt_has_its_index() -> None:
    async with generating() as house:
        answer = await house.whole(asks("abc", "xyz", "klm", n=2, max_tokens=4))
        assert [choice.text for choice in answer.choices] == ["abca"] * 2 + ["xyzx"] * 2 + ["klmk"] * 2
        # Of each prompt the first choice finds nothing known, and that is what the prompt is counted by.
        assert answer.usage == Usage(9, 24, 0)
        assert (await house.whole(asks("abc", "new", n=2))).usage.cached_tokens == 2
        pieces = await house.pieces(asks("abc", "xyz", n=2, max_tokens=3))
        assert {piece.index for piece in pieces[:4]} == {0, 1, 2, 3}, "in order of arrival"
        for index, text in enumerate(["abc", "abc", "xyz", "xyz"]):
            assert "".join(piece.text for piece in pieces if piece.index == index) == text


@in_loop
async def test_what_is_there_already_is_taken_together_and_once() -> None:
    async with generating() as house, house.begin(asks("abc", "xyz", max_tokens=40)) as generation:
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
async def test_a_seed_is_each_choice_s_own_and_a_prompt_s_whatever_stands_beside_it() -> None:
    def seeds(house: House) -> list[int | None]:
        given, house.made[0].given[:] = list(house.made[0].given), []
        return [request.sampling.seed for request in given]

    async with generating() as house:
        await house.whole(asks("a", n=3, seed=7))
        assert seeds(house) == [7, 8, 9]
        await house.whole(asks("x", "a", n=3, seed=7))
        assert seeds(house) == [7, 8, 9, 7, 8, 9]
        await house.whole(asks("a", n=2, seed=2**63 - 1))
        assert seeds(house) == [2**63 - 1, 0]
        await house.whole(asks("a", "a"))
        drawn = seeds(house)
        assert len(set(drawn)) == 2
        assert None not in drawn


@in_loop
async def test_a_text_ends_before_a_stop_string_and_its_sequence_with_it() -> None:
    async with generating() as house:
        async with house.begin(asks("abcde", max_tokens=4000, stop=("de", "xx"))) as generation:
            answer = await generation.whole()
        assert answer.choices == [Choice("abc", "stop")]
        assert answer.usage == Usage(5, 5, 0)
        request = asks("abc", "xyz", max_tokens=4000, stop=("c",))
        async with house.begin(replace(request, stopping=replace(request.stopping, max_tokens=9))) as generation:
            answer = await generation.whole()
        assert answer.choices == [Choice("ab", "stop"), Choice("xyzxyzxyz", "length")]


@in_loop
async def test_what_ends_a_text_is_told_to_the_model() -> None:
    async with generating() as house:
        stopping = Stopping(3, min_tokens=2, token_ids=frozenset({7}))
        await house.whole(GenerateRequest(("abc",), stopping=stopping))
        await house.whole(GenerateRequest(("abc",), stopping=replace(stopping, ignore_eos=True)))
        first, second = house.made[0].given
        assert [sorted(each.stop_token_ids) for each in (first, second)] == [[0, 7], [7]]
        assert (first.min_tokens, first.max_tokens) == (2, 3)


@in_loop
async def test_without_max_tokens_a_text_goes_on_to_the_end_of_the_context() -> None:
    async with generating() as house:
        answer = await house.whole(asks("x" * (CONTEXT - 3), max_tokens=None))
        assert answer.choices == [Choice("xxx", "length")]
        assert (await house.whole(asks("x" * (CONTEXT - 3), max_tokens=3))).choices == answer.choices


@in_loop
async def test_log_probabilities_come_with_their_tokens() -> None:
    async with generating() as house:
        answer = await house.whole(asks("ab", max_tokens=2, top_logprobs=1))
        top = ((0, "\0", -0.5),)
        assert answer.choices[0].tokens == (TokenText(97, "a", -0.5, top), TokenText(98, "b", -0.5, top))


@in_loop
async def test_a_constraint_is_compiled_once_and_each_choice_stands_in_it_by_itself() -> None:
    threads: list[str] = []

    class Noting(EchoModel):
        def constrain(self, constraint: Constraint) -> Any:
            threads.append(threading.current_thread().name)
            return super().constrain(constraint)

    class Registry(EchoRegistry):
        def make(self) -> EchoModel:
            return Noting()

    async with generating(registry=Registry()) as house:
        request = replace(asks("abc", n=3, max_tokens=20), constraint=Constraint("choice", "yes"))
        answer = await house.whole(request)
        assert answer.choices == [Choice("yes", "stop")] * 3
        [thread] = threads
        assert thread.startswith("tokenize")
        with pytest.raises(InvalidInput, match="constraint: is no choice"):
            await house.whole(replace(request, constraint=Constraint("regex", "(")))


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
async def test_long_prompts_and_conversations_are_tokenized_in_a_thread(
    prompts: tuple[Prompt, ...], in_thread: bool
) -> None:
    async with generating() as house:
        await house.whole(asks(*prompts))
        names = house.made[0].tokenizer.threads
        assert {name.startswith("tokenize") for name in names} == {in_thread}
        assert len(names) == len(prompts)


@in_loop
async def test_a_conversation_is_a_prompt() -> None:
    async with generating() as house:
        assert (await house.whole(asks(CONVERSATION, max_tokens=9))).choices == [Choice("user: hi\n", "length")]


TOO_LONG = "x" * (CONTEXT - 2)


@in_loop
@pytest.mark.parametrize(
    ("request_", "field", "says"),
    [
        (asks(), "prompt", ["empty list"]),
        (asks(""), "prompt", ["is empty"]),
        (asks("a", "", "c"), "prompt[1]", ["is empty"]),
        (asks(()), "prompt", ["is empty"]),
        (asks("x" * CONTEXT), "prompt", ["4096 tokens", "holds 4096"]),
        (asks("x" * CONTEXT, max_tokens=None), "prompt", ["4096 tokens", "holds 4096"]),
        (asks("a", "x" * 5000), "prompt[1]", ["5000 tokens", "holds 4096"]),
        (asks(Conversation((Message("user", "x" * 5000),))), "messages", ["5007 tokens", "holds 4096"]),
        (asks(TOO_LONG, max_tokens=3), "max_tokens", ["is 3", "4096", "prompt has 4094", "1 to 2"]),
        (asks("a", TOO_LONG, max_tokens=3), "max_tokens", ["is 3", "prompt[1] has 4094"]),
        (asks("a", max_tokens=0), "max_tokens", ["is 0", "1 to 4095"]),
        (asks("a", n=129), "n", ["129", "at most 128"]),
        (asks(*["a"] * 43, n=3), "n", ["129", "at most 128"]),
        (asks((256,)), "prompt", ["256"]),
        (GenerateRequest(("a",), stopping=Stopping(3, min_tokens=4)), "min_tokens", ["is 4", "at most 3"]),
    ],
)
async def test_what_does_not_fit_is_refused_with_all_lengths(
    request_: GenerateRequest, field: str, says: list[str]
) -> None:
    async with generating() as house:
        with pytest.raises(InvalidInput) as refused:
            await house.whole(request_)
        assert refused.value.field == field
        for words in says:
            assert words in refused.value.message
        assert house.made[0].given == []


@in_loop
async def test_as_many_texts_as_a_request_takes() -> None:
    async with generating() as house:
        answer = await house.whole(asks("a", "b", n=64, max_tokens=2))
        assert [choice.text for choice in answer.choices] == ["aa"] * 64 + ["bb"] * 64


@in_loop
async def test_as_many_tokens_as_nobody_asked_for_may_be_fewer() -> None:
    async with generating() as house:
        prompt = "a" * (CONTEXT - 3)
        stopping = Stopping(256, may_be_fewer=True)
        answer = await house.whole(GenerateRequest((prompt,), stopping=stopping))
        assert (answer.usage.tokens_generated, answer.choices[0].finish_reason) == (3, "length")
        with pytest.raises(InvalidInput, match=r"max_tokens: is 256; .*ask for 1 to 3"):
            await house.whole(GenerateRequest((prompt,), stopping=replace(stopping, may_be_fewer=False)))


@in_loop
async def test_a_constraint_ends_the_text() -> None:
    async with generating() as house:
        request = GenerateRequest(("a",), stopping=Stopping(9, ignore_eos=True), constraint=Constraint("regex", "a"))
        with pytest.raises(InvalidInput, match="ignore_eos"):
            await house.whole(request)
