"""/v1/responses of a generating model, by OpenAI's own client: whole, parsed and streamed."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.e2e.server import RunningServer, check_disconnect_frees_sequence

MODEL = "tiny-llama"
QUESTION = "Tell me a story."
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24}
LOGPROBS: Any = ["message.output_text.logprobs"]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Literal["Ann", "Bob"]
    age: Literal[7, 30]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def respond(client: openai.OpenAI, items: Any = QUESTION, **options: Any) -> Any:
    return client.responses.create(model=MODEL, input=items, **options)


def content_of(response: Any) -> list[Any]:
    """Return the role, status, text and tokens of each message."""
    return [
        (item.role, item.status, part.text, [token.token for token in part.logprobs])
        for item in response.output
        for part in item.content
    ]


class TestWhole:
    def test_text_equals_chat(self, client: openai.OpenAI) -> None:
        messages: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}]
        chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
        answer = respond(client, instructions="Be short.", **GREEDY)
        assert answer.output_text == chat.choices[0].message.content
        assert answer.id.startswith("resp_")
        assert (answer.model, answer.temperature, answer.error) == (MODEL, 0, None)
        assert chat.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (
            chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens,
        )  # fmt: skip
        assert 0 <= answer.usage.input_tokens_details.cached_tokens <= answer.usage.input_tokens
        assert answer.usage.output_tokens_details.reasoning_tokens == 0

    def test_output_is_input_of_next_turn(self, client: openai.OpenAI) -> None:
        first = respond(client, **GREEDY)
        items = [{"role": "user", "content": QUESTION}, *first.output, {"role": "user", "content": "And then?"}]
        messages: Any = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And then?"},
        ]
        chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
        assert respond(client, items, **GREEDY).output_text == chat.choices[0].message.content

    def test_cut_text_is_incomplete(self, client: openai.OpenAI) -> None:
        answer = respond(client, temperature=0, max_output_tokens=3)
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.output[0].status == "incomplete"
        assert answer.usage.output_tokens == 3

    def test_logprobs_of_tokens(self, client: openai.OpenAI) -> None:
        answer = respond(client, include=LOGPROBS, top_logprobs=2, **GREEDY)
        logprobs = answer.output[0].content[0].logprobs
        assert "".join(token.token for token in logprobs).startswith(answer.output_text)
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in logprobs)

    def test_text_format_is_parsed(self, client: openai.OpenAI) -> None:
        answer = client.responses.parse(model=MODEL, input=QUESTION, text_format=Person, max_output_tokens=60)
        assert answer.status == "completed"
        assert isinstance(answer.output_parsed, Person)

    def test_json_object_is_written(self, client: openai.OpenAI) -> None:
        form: Any = {"format": {"type": "json_object"}}
        assert respond(client, text=form, **GREEDY).output_text.startswith("{")


class TestStream:
    @pytest.mark.parametrize("options", [{}, {"include": LOGPROBS, "top_logprobs": 1}])
    def test_streamed_response_equals_whole(self, client: openai.OpenAI, options: dict[str, Any]) -> None:
        whole = respond(client, **options, temperature=0)
        with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, **options) as stream:
            seen = list(stream)
            last = stream.get_final_response()
        assert (last.status, last.output_text) == ("completed", whole.output_text)
        assert content_of(last) == content_of(whole)
        assert last.usage is not None
        assert last.usage.output_tokens == whole.usage.output_tokens
        deltas = [each for each in seen if each.type == "response.output_text.delta"]
        assert len(deltas) > 1, "the text is streamed"
        assert deltas[-1].snapshot == whole.output_text
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert [event.type for event in seen[:2]] == ["response.created", "response.in_progress"]

    def test_events_have_names(self, server: RunningServer) -> None:
        body = {"model": MODEL, "input": QUESTION, "stream": True, "temperature": 0}
        answer = server.client.post("/v1/responses", json=body)
        assert answer.headers["content-type"] == "text/event-stream"
        names = [line[7:] for line in answer.text.split("\n") if line.startswith("event: ")]
        assert (names[0], names[-1]) == ("response.created", "response.completed")
        assert "[DONE]" not in answer.text

    def test_cut_stream_is_incomplete(self, client: openai.OpenAI) -> None:
        *_, last = respond(client, stream=True, temperature=0, max_output_tokens=3)
        assert last.type == "response.incomplete"
        assert last.response.incomplete_details.reason == "max_output_tokens"
        assert last.response.usage.output_tokens == 3

    def test_streamed_text_is_parsed(self, client: openai.OpenAI) -> None:
        with client.responses.stream(
            model=MODEL, input=QUESTION, text_format=Person, max_output_tokens=60, temperature=0
        ) as stream:
            last = stream.get_final_response()
        assert isinstance(last.output_parsed, Person)

    def test_concurrent_responses_equal_single_ones(self, client: openai.OpenAI, server: RunningServer) -> None:
        questions = [f"Tell me about the number {number}." for number in range(6)]
        alone = [respond(client, question, **GREEDY).output_text for question in questions]

        async def all_of_them() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as pending:

                async def one(question: str) -> str:
                    stream = await pending.responses.create(model=MODEL, input=question, stream=True, **GREEDY)
                    return "".join([each.delta async for each in stream if each.type == "response.output_text.delta"])

                return list(await asyncio.gather(*map(one, questions)))

        assert asyncio.run(all_of_them()) == alone

    def test_disconnect_frees_sequence(self, client: openai.OpenAI, server: RunningServer) -> None:
        # A text of this pattern cannot end before it has many tokens.
        schema = {"type": "array", "items": {"const": "word"}, "minItems": 200}
        text: Any = {"format": {"type": "json_schema", "name": "words", "schema": schema}}
        check_disconnect_frees_sequence(server, MODEL, lambda: respond(client, stream=True, text=text))


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "param", "remedy"),
        [
            ({"store": True}, "store", "omit the field"),
            ({"previous_response_id": "resp_1"}, "previous_response_id", "earlier turns"),
            ({"conversation": "conv_1"}, "conversation", "earlier turns"),
            ({"background": True}, "background", "send stream"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function of the client"),
            ({"max_output_tokens": 10**6}, "max_output_tokens", "context"),
            ({"items": "word " * 10_000}, "input", "context"),
            (
                {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
                "input[0].content[0].image_url",
                "expected",
            ),
        ],
    )
    def test_field_is_refused_by_name(
        self, client: openai.OpenAI, fields: dict[str, Any], param: str, remedy: str
    ) -> None:
        with pytest.raises(openai.BadRequestError, match=remedy) as refused:
            respond(client, **fields)
        assert (refused.value.param, refused.value.code) == (param, "invalid_input")

    def test_schema_that_cannot_be_held_is_named(self, client: openai.OpenAI) -> None:
        text: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object", "not": {}}}}
        with pytest.raises(openai.BadRequestError) as refused:
            respond(client, text=text)
        assert refused.value.param == "text.format.schema"

    def test_stored_responses_are_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")

    def test_deadline_refused_with_504(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.InternalServerError) as late:
            respond(client, extra_body={"timeout_ms": 1}, items="word " * 200)
        assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
