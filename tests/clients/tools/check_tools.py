"""Clients of /v1/chat/completions with tools, as the documentation of each shows them. The model has random weights."""

import asyncio
import os
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import instructor
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, RunContext, Tool, ToolDefinition
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "caller"
QUESTION = "How warm is it in Bern?"
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
END = 256
"""The token that ends a text."""
City = Literal["Bern", "Oslo"]


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")

    city: City
    degrees: Literal[-10, 0, 10] = 0


class Report(BaseModel):
    """The same, with all fields required, as strict schemas have them."""

    model_config = ConfigDict(extra="forbid")

    city: City
    note: Literal["cold", "warm"] | None


@pytest.fixture(scope="module")
def bias() -> dict[str, int]:
    """Bias of a text that does not think, begins a call where it may, has short strings, and ends soon otherwise."""
    weights = {"<think>": -100, "<tool_call>": 100, '"': 20}
    ids = {
        text: httpx.post(
            f"{URL}/v1/tokenize", json={"model": MODEL, "prompt": text, "add_special_tokens": False}
        ).json()["tokens"]
        for text in weights
    }
    return {str(ids[text][0]): weight for text, weight in weights.items()} | {str(END): 50}


class TestInstructor:
    @pytest.fixture
    def client(self) -> Iterator[OpenAI]:
        with OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
            yield client

    @pytest.mark.parametrize(("mode", "kind"), [(None, Weather), (instructor.Mode.TOOLS_STRICT, Report)])
    def test_response_model(self, client: OpenAI, bias: dict[str, int], mode: Any, kind: type[BaseModel]) -> None:
        patched = instructor.from_openai(client) if mode is None else instructor.from_openai(client, mode=mode)
        made = patched.chat.completions.create(
            model=MODEL, response_model=kind, messages=MESSAGES, max_retries=0, max_tokens=600, logit_bias=bias
        )
        assert isinstance(made, kind)

    def test_partial_response(self, client: OpenAI, bias: dict[str, int]) -> None:
        patched = instructor.from_openai(client)
        options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 600, "logit_bias": bias}
        parts = list(patched.chat.completions.create_partial(response_model=Report, max_retries=0, **options))
        assert len(parts) > 1
        assert Report.model_validate(parts[-1].model_dump())


class TestPydanticAi:
    @pytest.fixture
    def model(self) -> OpenAIChatModel:
        client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
        return OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))

    @pytest.mark.parametrize("kind", [Weather, Report])
    def test_structured_output(self, model: OpenAIChatModel, bias: dict[str, int], kind: type[BaseModel]) -> None:
        agent = Agent(model, output_type=kind, retries=0, model_settings={"max_tokens": 600, "logit_bias": bias})
        assert isinstance(agent.run_sync(QUESTION).output, kind)

    def test_tool_is_called(self, model: OpenAIChatModel, bias: dict[str, int]) -> None:
        called: list[str] = []

        def weather(city: City) -> str:
            """Return the weather of a city."""
            called.append(city)
            return "10 degrees"

        async def once(context: RunContext[None], definition: ToolDefinition) -> ToolDefinition | None:
            return None if called else definition

        agent = Agent(
            model,
            tools=[Tool(weather, strict=True, prepare=once)],
            retries=0,
            model_settings={"max_tokens": 400, "temperature": 0, "parallel_tool_calls": False, "logit_bias": bias},
        )
        result = agent.run_sync(QUESTION)
        assert called in (["Bern"], ["Oslo"])
        assert [part.part_kind for message in result.all_messages() for part in message.parts][:3] == [
            "user-prompt",
            "tool-call",
            "tool-return",
        ]

    def test_streamed_output(self, model: OpenAIChatModel, bias: dict[str, int]) -> None:
        agent = Agent(model, output_type=Report, retries=0, model_settings={"max_tokens": 600, "logit_bias": bias})

        async def run() -> Report:
            async with agent.run_stream(QUESTION) as streamed:
                made: Report = await streamed.get_output()
                return made

        assert isinstance(asyncio.run(run()), Report)


def _weather(city: City) -> str:
    """Return the weather of a city."""
    return f"10 degrees in {city}"


weather = tool("weather")(_weather)


class TestLangChain:
    @pytest.fixture
    def model(self, bias: dict[str, int]) -> ChatOpenAI:
        options: dict[str, Any] = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0, "logit_bias": bias}
        options["stream_usage"] = True  # by default only at the address of OpenAI
        return ChatOpenAI(model=MODEL, temperature=0, max_completion_tokens=600, **options)

    @pytest.mark.parametrize("choice", ["weather", "any", True])
    def test_bound_tool_is_called(self, model: ChatOpenAI, choice: Any) -> None:
        answer = model.bind_tools([weather], tool_choice=choice, parallel_tool_calls=False).invoke(QUESTION)
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]["city"] in ("Bern", "Oslo")) == ("weather", True)
        result = weather.invoke(call)
        assert isinstance(result, ToolMessage)
        again = model.bind_tools([weather]).invoke([HumanMessage(QUESTION), answer, result], max_tokens=8)
        assert again.response_metadata["model_name"] == MODEL

    def test_strict_tool_may_be_called(self, model: ChatOpenAI) -> None:
        bound = model.bind_tools([weather], strict=True, parallel_tool_calls=False)
        (call,) = bound.invoke(QUESTION).tool_calls
        assert call["args"]["city"] in ("Bern", "Oslo")

    def test_streamed_call_equals_whole(self, model: ChatOpenAI) -> None:
        bound = model.bind_tools([weather], tool_choice="weather")
        whole = bound.invoke(QUESTION)
        chunks = list(bound.stream(QUESTION))
        joined: Any = chunks[0]
        for chunk in chunks[1:]:
            joined = joined + chunk
        assert len(chunks) > 3
        assert [each["args"] for each in joined.tool_calls] == [each["args"] for each in whole.tool_calls]
        assert joined.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]

    @pytest.mark.parametrize("strict", [None, True])
    def test_structured_output(self, model: ChatOpenAI, strict: bool | None) -> None:
        structured = model.with_structured_output(Report, method="function_calling", strict=strict)
        assert isinstance(structured.invoke(QUESTION), Report)


class WeatherPlugin:
    """A plugin with one function."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def weather(self, city: Annotated[str, "The name of the city"]) -> str:
        self.called.append(city)
        return "10 degrees"

    weather = kernel_function(description="Return the weather of a city.")(weather)


class TestSemanticKernel:
    @pytest.fixture
    def service(self) -> OpenAIChatCompletion:
        client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
        return OpenAIChatCompletion(ai_model_id=MODEL, async_client=client)

    @pytest.mark.parametrize("is_streamed", [False, True])
    def test_function_is_called(self, service: OpenAIChatCompletion, bias: dict[str, int], is_streamed: bool) -> None:
        plugin, kernel, history = WeatherPlugin(), Kernel(), ChatHistory()
        kernel.add_plugin(plugin, "outside")
        history.add_user_message(QUESTION)
        settings = OpenAIChatPromptExecutionSettings(
            function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=True),
            parallel_tool_calls=False,
            max_tokens=900,
            temperature=0,
            logit_bias=bias,
        )

        async def run() -> None:
            if is_streamed:
                stream = service.get_streaming_chat_message_contents(history, settings, kernel=kernel)
                assert [message async for message in stream]
            else:
                assert await service.get_chat_message_contents(history, settings, kernel=kernel)

        asyncio.run(run())
        assert len(plugin.called) == 1

    def test_offered_function_need_not_be_called(self, service: OpenAIChatCompletion) -> None:
        plugin, kernel, history = WeatherPlugin(), Kernel(), ChatHistory()
        kernel.add_plugin(plugin, "outside")
        history.add_user_message(QUESTION)
        settings = OpenAIChatPromptExecutionSettings(
            function_choice_behavior=FunctionChoiceBehavior.Auto(), max_tokens=8, temperature=0
        )
        (answer,) = asyncio.run(service.get_chat_message_contents(history, settings, kernel=kernel))
        assert (str(answer.role.value), plugin.called) == ("assistant", [])
