"""Clients of /v1/responses: OpenAI's Agents SDK, whose default it is, and LangChain. The model has random weights."""

import asyncio
import os
from typing import Any, Literal

import httpx
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "caller"
QUESTION = "How warm is it in Bern?"
END = 256
"""The token that ends a text."""

set_tracing_disabled(True)


class Weather(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Bern", "Oslo"]
    degrees: Literal[-10, 0, 10]


@pytest.fixture(scope="module")
def bias() -> dict[str, Any]:
    """Options of a text that does not think, and that ends as soon as it may."""
    answer = httpx.post(f"{URL}/v1/tokenize", json={"model": MODEL, "prompt": "<think>", "add_special_tokens": False})
    (think,) = answer.json()["tokens"]
    return {"logit_bias": {str(think): -100, str(END): 100}}


class TestAgents:
    @pytest.fixture
    def called(self) -> list[str]:
        """Return the cities of the calls that were made."""
        return []

    @pytest.fixture
    def options(self, bias: dict[str, Any], called: list[str]) -> dict[str, Any]:
        """Options of an agent whose first response is a call, and the next one a text."""

        def weather(city: Literal["Bern", "Oslo"]) -> str:
            """Return the weather of a city."""
            called.append(city)
            return "10 degrees"

        client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
        settings = ModelSettings(temperature=0, max_tokens=400, tool_choice="required", extra_body=bias)
        return {
            "name": "weather",
            "instructions": "Use the tools.",
            "model": OpenAIResponsesModel(MODEL, client),
            "model_settings": settings,
            "tools": [function_tool(weather)],
        }

    def test_function_is_called_and_answered(self, options: dict[str, Any], called: list[str]) -> None:
        result = asyncio.run(Runner.run(Agent(**options), QUESTION))
        assert called in (["Bern"], ["Oslo"])
        kinds = [item.type for item in result.new_items]
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        assert len(result.raw_responses) == 2
        assert result.context_wrapper.usage.requests == 2
        assert result.context_wrapper.usage.output_tokens > 10

    def test_stream_has_same_items(self, options: dict[str, Any], called: list[str]) -> None:
        async def run() -> tuple[list[str], list[str]]:
            result = Runner.run_streamed(Agent(**options), QUESTION)
            raw = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
            return raw, [item.type for item in result.new_items]

        raw, kinds = asyncio.run(run())
        assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
        assert raw.count("response.completed") == 2
        assert raw.count("response.function_call_arguments.delta") > 5
        assert len(called) == 1

    def test_next_turn_has_items_of_first(self, options: dict[str, Any], called: list[str]) -> None:
        async def both() -> tuple[Any, Any]:
            first = await Runner.run(Agent(**options), QUESTION)
            items = [*first.to_input_list(), {"role": "user", "content": "And in Oslo?"}]
            return first, await Runner.run(Agent(**options), items)

        first, second = asyncio.run(both())
        assert len(called) == 2
        assert second.raw_responses[0].usage.input_tokens > first.raw_responses[1].usage.input_tokens

    def test_output_type_is_parsed(self, options: dict[str, Any]) -> None:
        settings = ModelSettings(temperature=0, max_tokens=400)
        agent = Agent(**{**options, "tools": [], "model_settings": settings}, output_type=Weather)
        assert isinstance(asyncio.run(Runner.run(agent, QUESTION)).final_output, Weather)

    def test_handoff_is_a_call(self, options: dict[str, Any]) -> None:
        # The other agent has no tools to call.
        free = ModelSettings(temperature=0, max_tokens=400, extra_body=options["model_settings"].extra_body)
        other = Agent(name="other", model=options["model"], model_settings=free)
        agent = Agent(**{**options, "tools": []}, handoffs=[other])
        result = asyncio.run(Runner.run(agent, QUESTION))
        assert result.last_agent.name == "other"


def weather_of(city: Literal["Bern", "Oslo"]) -> str:
    """Return the weather of a city."""
    return f"10 degrees in {city}"


weather = tool(weather_of)


class TestLangChain:
    @pytest.fixture
    def model(self, bias: dict[str, Any]) -> ChatOpenAI:
        return ChatOpenAI(
            model=MODEL, base_url=f"{URL}/v1", api_key="none", use_responses_api=True, max_retries=0, temperature=0,
            max_tokens=400, extra_body=bias,
        )  # fmt: skip

    def test_tool_is_called_and_answered(self, model: ChatOpenAI) -> None:
        first = model.bind_tools([weather], tool_choice="weather_of").invoke(QUESTION)
        (call,) = first.tool_calls
        assert call["name"] == "weather_of"
        result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
        second = model.bind_tools([weather]).invoke([HumanMessage(QUESTION), first, result])
        assert not second.tool_calls
        assert second.usage_metadata is not None
        assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]
        assert second.response_metadata["status"] == "completed"

    def test_stream_equals_whole(self, model: ChatOpenAI) -> None:
        bound = model.bind_tools([weather], tool_choice="any", parallel_tool_calls=False, strict=True)
        whole = bound.invoke(QUESTION)
        chunks = list(bound.stream(QUESTION))
        added = chunks[0]
        for chunk in chunks[1:]:
            added += chunk
        assert [(each["name"], each["args"]) for each in added.tool_calls] == [
            (each["name"], each["args"]) for each in whole.tool_calls
        ]
        assert len(chunks) > 5
        for usage in ("input_tokens", "output_tokens"):
            assert added.usage_metadata[usage] == whole.usage_metadata[usage]

    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_structured_output_is_parsed(self, model: ChatOpenAI, method: str) -> None:
        answer = model.with_structured_output(Weather, method=method, include_raw=True).invoke(QUESTION)
        assert isinstance(answer["parsed"], Weather), answer

    def test_text_has_logprobs(self, bias: dict[str, Any]) -> None:
        model = ChatOpenAI(
            model=MODEL, base_url=f"{URL}/v1", api_key="none", use_responses_api=True, max_retries=0, max_tokens=8,
            top_logprobs=2, include=["message.output_text.logprobs"],
        )  # fmt: skip
        message = model.invoke(QUESTION)
        assert message.response_metadata["status"] == "incomplete"
        assert message.usage_metadata["output_tokens"] == 8
