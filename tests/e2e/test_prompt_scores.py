"""Echo, log probabilities of prompts and prompts of every kind, by OpenAI's own client against a server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.server import RunningServer

MODEL = "tiny-llama"
PROMPTS = ["Once upon a time", "The king said to the queen", "A"]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    more = {name: options.pop(name) for name in ("prompt_logprobs", "add_special_tokens") if name in options}
    return client.completions.create(model=MODEL, prompt=prompt, **options, extra_body=more)


def ids_of(server: RunningServer, text: str) -> list[int]:
    ids: list[int] = server.client.post("/v1/tokenize", json={"model": MODEL, "prompt": text}).json()["tokens"]
    return ids


def test_echo_precedes_the_same_text(client: openai.OpenAI) -> None:
    plain = complete(client, PROMPTS, n=2, **GREEDY)
    echoed = complete(client, PROMPTS, n=2, echo=True, logprobs=2, **GREEDY)
    assert [choice.index for choice in echoed.choices] == list(range(6))
    for choice, without in zip(echoed.choices, plain.choices, strict=True):
        assert choice.text == PROMPTS[choice.index // 2] + without.text
    assert echoed.usage.prompt_tokens == plain.usage.prompt_tokens
    assert echoed.usage.completion_tokens == plain.usage.completion_tokens


def test_echoed_ids_are_text(client: openai.OpenAI, server: RunningServer) -> None:
    ids = [ids_of(server, prompt) for prompt in PROMPTS]
    by_ids = complete(client, ids, echo=True, logprobs=1, **GREEDY)
    by_text = complete(client, PROMPTS, echo=True, logprobs=1, **GREEDY)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in by_text.choices]
    for own, other in zip(by_ids.choices, by_text.choices, strict=True):
        assert own.logprobs.tokens == other.logprobs.tokens
        assert own.logprobs.token_logprobs[1:] == pytest.approx(other.logprobs.token_logprobs[1:], abs=1e-3)


def test_prompt_is_scored_like_its_text(client: openai.OpenAI, server: RunningServer) -> None:
    """The tokens of a generated text have the log probabilities that they have as part of a prompt."""
    generated = complete(client, PROMPTS[0], logprobs=3, **GREEDY).choices[0]
    whole = PROMPTS[0] + generated.text
    assert ids_of(server, whole)[: len(ids_of(server, PROMPTS[0]))] == ids_of(server, PROMPTS[0])
    answer = complete(client, whole, logprobs=3, echo=True, max_tokens=0)
    [scored] = answer.choices
    assert (scored.text, scored.finish_reason, answer.usage.completion_tokens) == (whole, "length", 0)
    assert scored.logprobs.token_logprobs[0] is None
    first = len(ids_of(server, PROMPTS[0]))
    assert scored.logprobs.tokens[first:] == generated.logprobs.tokens
    assert scored.logprobs.token_logprobs[first:] == pytest.approx(generated.logprobs.token_logprobs, abs=1e-3)
    assert scored.logprobs.text_offset[first] == len(PROMPTS[0])


def test_streamed_echo_equals_whole(client: openai.OpenAI) -> None:
    options = {"echo": True, "logprobs": 1, **GREEDY}
    [whole] = complete(client, PROMPTS[1], **options).choices
    chunks = [chunk.choices[0] for chunk in complete(client, PROMPTS[1], stream=True, **options)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[0].text == PROMPTS[1]
    assert [token for chunk in chunks for token in chunk.logprobs.tokens] == whole.logprobs.tokens
    assert [offset for chunk in chunks for offset in chunk.logprobs.text_offset] == whole.logprobs.text_offset


def test_long_echo_is_streamed_in_parts(client: openai.OpenAI) -> None:
    prompt = [5 + i % 90 for i in range(400)]
    options = {"echo": True, "logprobs": 5, "max_tokens": 1}
    chunks = [chunk.choices[0] for chunk in complete(client, prompt, stream=True, **options)]
    assert len(chunks) > 4
    assert sum(len(chunk.logprobs.tokens) for chunk in chunks) == 401


def test_prompt_logprobs_of_both_routes(client: openai.OpenAI, server: RunningServer) -> None:
    answer = complete(client, PROMPTS, max_tokens=1, prompt_logprobs=2)
    for choice, prompt in zip(answer.choices, PROMPTS, strict=True):
        first, *others = choice.prompt_logprobs
        assert first is None
        assert [str(token_id) in each for token_id, each in zip(ids_of(server, prompt)[1:], others, strict=True)]
        assert all(sorted(entry["rank"] for entry in each.values())[:2] == [1, 2] for each in others)
    messages: list[Any] = [{"role": "user", "content": "Tell me a story."}]
    chat: Any = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_special_tokens_may_be_left_out(client: openai.OpenAI) -> None:
    with_them = complete(client, PROMPTS[0], max_tokens=1)
    without = complete(client, PROMPTS[0], max_tokens=1, add_special_tokens=False)
    assert with_them.usage.prompt_tokens == without.usage.prompt_tokens + 1


def test_scores_are_bounded(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="131072 log probabilities"):
        complete(client, [[5] * 400] * 128, echo=True, logprobs=5, max_tokens=0)
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        complete(client, PROMPTS[0], max_tokens=0)
