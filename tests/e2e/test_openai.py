"""The OpenAI API of a generating model, by OpenAI's own client: sync, async and streaming."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import huggingface_hub.constants
import openai
import pytest
from huggingface_hub import InferenceClient

from tests.e2e.server import RunningServer, check_disconnect_frees_sequence

MODEL = "tiny-llama"
PROMPT = "Once upon a time"
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me a story."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **options: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **options)


def chat(client: openai.OpenAI, messages: Any = None, **options: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=messages or MESSAGES, **options)


def tokenize(server: RunningServer, **body: Any) -> list[int]:
    answer = server.client.post("/v1/tokenize", json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["tokens"]
    return tokens


class TestCompletions:
    def test_text_equals_infer(self, client: openai.OpenAI, server: RunningServer) -> None:
        infer = server.infer(MODEL, prompt=PROMPT, **GREEDY)
        answer = complete(client, **GREEDY)
        assert answer.choices[0].text == infer["text"]
        assert answer.choices[0].finish_reason == infer["finish_reason"]
        assert answer.usage.completion_tokens == infer["tokens_generated"]
        assert answer.usage.prompt_tokens == infer["prompt_tokens"] == len(tokenize(server, prompt=PROMPT))
        assert answer.usage.total_tokens == infer["prompt_tokens"] + infer["tokens_generated"]
        assert answer.model == MODEL
        assert answer.id.startswith("cmpl-")

    def test_default_is_sixteen_tokens(self, client: openai.OpenAI) -> None:
        answer = complete(client, temperature=0, extra_body={"ignore_eos": True})
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")

    def test_prompts_of_every_type(self, client: openai.OpenAI, server: RunningServer) -> None:
        texts = [PROMPT, "The king"]
        alone = [complete(client, text, **GREEDY).choices[0].text for text in texts]
        ids = [tokenize(server, prompt=text) for text in texts]
        assert complete(client, ids[0], **GREEDY).choices[0].text == alone[0]
        for prompts in (texts, ids):
            answer = complete(client, prompts, **GREEDY)
            assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(alone))
            assert answer.usage.prompt_tokens == sum(map(len, ids))

    def test_n_texts_of_one_seed(self, client: openai.OpenAI) -> None:
        options = {"n": 4, "seed": 7, "temperature": 1.5, "max_tokens": 16}
        one, again = (complete(client, **options) for _ in range(2))
        assert [choice.text for choice in one.choices] == [choice.text for choice in again.choices]
        assert [choice.index for choice in one.choices] == [0, 1, 2, 3]
        assert len({choice.text for choice in one.choices}) > 1

    def test_logprobs_of_tokens(self, client: openai.OpenAI) -> None:
        choice = complete(client, logprobs=3, **GREEDY).choices[0]
        logprobs = choice.logprobs
        assert logprobs is not None
        assert "".join(logprobs.tokens).startswith(choice.text)
        assert logprobs.text_offset == [len("".join(logprobs.tokens[:at])) for at in range(len(logprobs.tokens))]
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            assert logprob <= 0
            assert 1 <= len(top) <= 4
            assert top[token] == max(top.values()) == pytest.approx(logprob), "greedy takes the likeliest"

    def test_text_ends_before_stop_string(self, client: openai.OpenAI) -> None:
        text = complete(client, **GREEDY).choices[0].text
        stop = text[len(text) // 2 :][:3]
        stopped = complete(client, stop=stop, **GREEDY).choices[0]
        assert (stopped.text, stopped.finish_reason) == (text[: text.index(stop)], "stop")

    def test_bad_words_are_left_out(self, client: openai.OpenAI) -> None:
        words = complete(client, **GREEDY).choices[0].text.split()
        bad = [words[0], " ".join(words[2:4])]
        text = complete(client, extra_body={"bad_words": bad}, **GREEDY).choices[0].text
        assert text
        assert not any(f" {each}" in text for each in bad)

    def test_logit_bias_excludes_token(self, client: openai.OpenAI, server: RunningServer) -> None:
        first = complete(client, temperature=0, max_tokens=1, logprobs=1).choices[0]
        [token] = set(tokenize(server, prompt=PROMPT + first.text)) - set(tokenize(server, prompt=PROMPT))
        other = complete(client, temperature=0, max_tokens=1, logit_bias={str(token): -100}).choices[0]
        assert other.text != first.text

    def test_stream_concatenates_to_whole_text(self, client: openai.OpenAI) -> None:
        whole = complete(client, n=2, seed=3, max_tokens=24, temperature=1)
        texts, reasons, usage = ["", ""], [None, None], None
        stream = complete(
            client, n=2, seed=3, max_tokens=24, temperature=1, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            assert usage is None, "only the last chunk has it"
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == [choice.finish_reason for choice in whole.choices]
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (
            whole.usage.prompt_tokens, whole.usage.completion_tokens,
        )  # fmt: skip

    def test_continuous_usage_ends_at_whole_usage(self, client: openai.OpenAI) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        *chunks, last = complete(client, n=2, stream=True, stream_options=options, **GREEDY)
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == sorted(counts)
        assert 0 < counts[0] < counts[-1] == last.usage.completion_tokens
        assert {chunk.usage.prompt_tokens for chunk in chunks} == {last.usage.prompt_tokens}

    def test_repeated_prompt_counted_as_cached(self, client: openai.OpenAI) -> None:
        prompt = "the same beginning of a long story " * 8
        complete(client, prompt, **GREEDY)
        usage = complete(client, prompt, **GREEDY).usage
        assert 0 <= usage.prompt_tokens_details.cached_tokens <= usage.prompt_tokens


class TestChat:
    def test_text_equals_infer(self, client: openai.OpenAI, server: RunningServer) -> None:
        infer = server.infer(MODEL, messages=MESSAGES, **GREEDY)
        answer = chat(client, **GREEDY)
        message = answer.choices[0].message
        assert (message.role, message.content) == ("assistant", infer["text"])
        assert answer.usage.prompt_tokens == infer["prompt_tokens"] == len(tokenize(server, messages=MESSAGES))
        assert answer.id.startswith("chatcmpl-")

    def test_conversation_with_several_turns(self, client: openai.OpenAI) -> None:
        first = chat(client, **GREEDY).choices[0].message
        messages = [*MESSAGES, first, {"role": "user", "content": [{"type": "text", "text": "And then?"}]}]
        assert chat(client, messages, **GREEDY).choices[0].finish_reason in ("stop", "length")

    def test_max_completion_tokens_accepted(self, client: openai.OpenAI) -> None:
        answer = chat(client, max_completion_tokens=5, temperature=0, extra_body={"ignore_eos": True})
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")

    def test_logprobs_of_tokens(self, client: openai.OpenAI) -> None:
        choice = chat(client, logprobs=True, top_logprobs=2, **GREEDY).choices[0]
        content = choice.logprobs.content
        assert "".join(token.token for token in content).startswith(choice.message.content)
        for token in content:
            assert len(token.top_logprobs) == 2
            assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)
            assert token.token in (bytes(token.bytes).decode(errors="replace"), "</s>")

    def test_bytes_of_tokens_are_those_of_text(self, client: openai.OpenAI) -> None:
        text = "😀 é日"
        choice = chat(client, logprobs=True, top_logprobs=3, max_tokens=24, extra_body={"choice": [text]}).choices[0]
        tokens = choice.logprobs.content
        assert "\ufffd" in tokens[0].token
        assert bytes(byte for token in tokens for byte in token.bytes).decode() == choice.message.content == text
        others = [each for token in tokens for each in token.top_logprobs if "\ufffd" in each.token]
        assert all(bytes(each.bytes) != each.token.encode() for each in others)

    def test_stream_concatenates_to_whole_text(self, client: openai.OpenAI) -> None:
        whole = chat(client, logprobs=True, **GREEDY)
        options = {"stream_options": {"include_usage": True}, "logprobs": True, **GREEDY}
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **options) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert kinds[0] == "chunk"
        assert kinds.count("content.delta") > 1, "the text is streamed"
        assert final.choices[0].message.content == whole.choices[0].message.content
        assert final.choices[0].finish_reason == whole.choices[0].finish_reason
        assert final.usage is not None
        assert final.usage.completion_tokens == whole.usage.completion_tokens
        assert final.choices[0].logprobs is not None
        assert final.choices[0].logprobs.content is not None
        theirs = [(token.token, token.logprob) for token in final.choices[0].logprobs.content]
        assert [token for token, _ in theirs] == [token.token for token in whole.choices[0].logprobs.content]

    def test_last_message_is_continued(self, client: openai.OpenAI, server: RunningServer) -> None:
        talk = [*MESSAGES, {"role": "assistant", "content": "Once upon a"}]
        ids = tokenize(server, messages=talk, continue_final_message=True)
        assert ids < tokenize(server, messages=talk, add_generation_prompt=False)
        answer = chat(client, talk, extra_body={"continue_final_message": True}, **GREEDY)
        assert answer.choices[0].message.content == complete(client, ids, **GREEDY).choices[0].text
        assert answer.usage.prompt_tokens == len(ids)

    def test_messages_end_with_context(self, server: RunningServer) -> None:
        # LiteLLM sends this limit without being asked.
        body = {
            "model": "tiny-llama",
            "messages": MESSAGES,
            "max_tokens": 128_000,
            "stop_sequences": [" "],
            "temperature": 0,
        }
        answer = server.client.post("/v1/messages", json=body)
        assert answer.json()["stop_reason"] in ("stop_sequence", "end_turn"), answer.text

    def test_messages_continue_last_response_alike(self, server: RunningServer) -> None:
        talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon a"}]
        body = {"model": "tiny-llama", "messages": talk, "max_tokens": 8, "temperature": 0}
        message = server.client.post("/v1/messages", json=body).json()
        answer = server.client.post("/v1/chat/completions", json={**body, "continue_final_message": True}).json()
        assert message["content"][0]["text"] == answer["choices"][0]["message"]["content"]

    def test_hugging_face_client_gets_json_of_schema(
        self, server: RunningServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A test of PyTorch models in this process has set HF_HUB_OFFLINE, with which the client sends nothing.
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        # Its own types are those of OpenAI; its guides send TGI's. Without a model it sends "dummy".
        wanted: Any = {"type": "json_object", "value": SCHEMA}
        with InferenceClient(base_url=server.url, api_key="none") as client:
            answer = client.chat_completion(MESSAGES, response_format=wanted, max_tokens=200, temperature=0)
        assert json.loads(answer.choices[0].message.content or "").keys() == {"name", "age"}
        assert answer.model == MODEL

    def test_concurrent_chats_equal_single_ones(self, server: RunningServer, client: openai.OpenAI) -> None:
        questions = [[{"role": "user", "content": f"Tell me about the number {number}."}] for number in range(12)]
        alone = [chat(client, question, **GREEDY).choices[0].message.content for question in questions]

        async def all_of_them() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as pending:

                async def one(messages: Any) -> str:
                    stream = await pending.chat.completions.create(
                        model=MODEL, messages=messages, stream=True, **GREEDY
                    )
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

                return list(await asyncio.gather(*map(one, questions)))

        assert asyncio.run(all_of_them()) == alone

    def test_disconnect_frees_sequence(self, client: openai.OpenAI, server: RunningServer) -> None:
        options: dict[str, Any] = {"max_tokens": 400, "n": 16, "extra_body": {"ignore_eos": True}}
        check_disconnect_frees_sequence(server, MODEL, lambda: chat(client, stream=True, **options))


class TestStructure:
    def test_json_schema_followed(self, client: openai.OpenAI) -> None:
        response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        choice = chat(client, response_format=response_format, max_tokens=100, seed=1).choices[0]
        assert choice.finish_reason == "stop"
        person = json.loads(choice.message.content)
        assert person.keys() == {"name", "age"}
        assert isinstance(person["age"], int)

    @pytest.mark.parametrize(
        ("fields", "pattern"),
        [
            ({"regex": "[0-9]{4}-[0-9]{2}"}, "[0-9]{4}-[0-9]{2}"),
            ({"choice": ["yes", "no"]}, "yes|no"),
            ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
            ({"structured_outputs": {"regex": "(ab)+c"}}, "(ab)+c"),
        ],
    )
    def test_patterns_and_choices_followed(self, client: openai.OpenAI, fields: dict[str, Any], pattern: str) -> None:
        choice = chat(client, extra_body=fields, max_tokens=60, temperature=0).choices[0]
        assert choice.finish_reason == "length" or re.fullmatch(pattern, choice.message.content)

    def test_invalid_constraint_refused(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError):
            chat(client, extra_body={"regex": "(unclosed"})


class TestTokens:
    def test_tokenize_and_detokenize_round_trip(self, server: RunningServer) -> None:
        ids = tokenize(server, prompt=PROMPT, add_special_tokens=False)
        answer = server.client.post("/v1/detokenize", json={"model": MODEL, "tokens": ids})
        assert answer.json() == {"prompt": PROMPT}
        named = server.client.post("/v1/tokenize", json={"model": MODEL, "prompt": PROMPT, "return_token_strs": True})
        assert len(named.json()["token_strs"]) == named.json()["count"] >= len(ids)


class TestIgnoredFields:
    def test_unread_template_fields_are_named(self, client: openai.OpenAI, server: RunningServer) -> None:
        body = {"model": MODEL, "messages": MESSAGES, **GREEDY, "reasoning_effort": "low"}
        body["chat_template_kwargs"] = {"enable_thinking": False}
        whole, streamed = (
            server.client.post("/v1/chat/completions", json={**body, "stream": stream}) for stream in (False, True)
        )
        assert whole.json()["choices"][0]["message"]["content"] == chat(client, **GREEDY).choices[0].message.content
        for response in (whole, streamed):
            named = response.headers["x-roundhouse-ignored"]
            assert named == "reasoning_effort, chat_template_kwargs.enable_thinking"


class TestRefusals:
    def test_unsupported_fields_refused(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="send tools") as refused:
            chat(client, functions=[{"name": "f", "parameters": {}}])
        assert (refused.value.param, refused.value.code) == ("functions", "invalid_input")
        with pytest.raises(openai.BadRequestError, match="did you mean") as refused:
            chat(client, extra_body={"temprature": 1})
        assert (refused.value.param, refused.value.code) == ("temprature", "unknown_field")

    def test_prompt_beyond_context_refused(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="context"):
            complete(client, max_tokens=10**6)
        with pytest.raises(openai.BadRequestError, match="context"):
            complete(client, "word " * 10_000)

    def test_embed_model_refused(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="task is embed"):
            client.completions.create(model="minilm", prompt="a")
        with pytest.raises(openai.BadRequestError, match="task is generate"):
            client.embeddings.create(model=MODEL, input="a")

    def test_deadline_refused_with_504(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError) as late:
            chat(client, max_tokens=400, extra_body={"timeout_ms": 1, "ignore_eos": True})
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
