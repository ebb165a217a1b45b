"""Images in conversations by the clients of other projects: the embedded model names the shape and its colour."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import anthropic
import httpx
import huggingface_hub
import litellm
import ollama
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = "tiny-vision"
FILE = Path(os.environ["ROUNDHOUSE_PICTURE"])
ENCODED = base64.b64encode(FILE.read_bytes()).decode()
DATA_URL = f"data:image/jpeg;base64,{ENCODED}"
QUESTION = "What is this?"
ANSWER = "A red star."
TWO_ANSWERS = "A red star and a red star."

PICTURE = {"type": "image_url", "image_url": {"url": DATA_URL}}
CHAT: Any = [{"role": "user", "content": [PICTURE, {"type": "text", "text": QUESTION}]}]
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": ENCODED}}
BLOCKS: Any = [{"role": "user", "content": [BLOCK, {"type": "text", "text": QUESTION}]}]


class TestOpenAi:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)

    def test_chat(self) -> None:
        chat = self.client.chat.completions.create(model=MODEL, messages=CHAT)
        assert chat.choices[0].message.content == ANSWER

    def test_streamed_chat_with_detail(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}}
        content: Any = [picture, picture, {"type": "text", "text": "What are these?"}]
        pieces = self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": content}], stream=True
        )
        assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices) == TWO_ANSWERS

    def test_response(self) -> None:
        content: Any = [
            {"type": "input_image", "image_url": DATA_URL, "detail": "auto"},
            {"type": "input_text", "text": QUESTION},
        ]
        made = self.client.responses.create(model=MODEL, input=[{"role": "user", "content": content}])
        assert made.output_text == ANSWER
        counted = self.client.responses.input_tokens.count(model=MODEL, input=[{"role": "user", "content": content}])
        assert made.usage is not None
        assert counted.input_tokens == made.usage.input_tokens

    def test_refusal_names_image(self) -> None:
        wrong: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.example/b"}}]}]
        with pytest.raises(openai.BadRequestError, match="media_hosts") as refused:
            self.client.chat.completions.create(model=MODEL, messages=wrong)
        assert refused.value.param == "messages[0].content[0].image_url.url"


class TestAnthropic:
    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)

    def test_message(self) -> None:
        message = self.client.messages.create(model=MODEL, max_tokens=20, messages=BLOCKS)
        assert message.content[0].text == ANSWER

    def test_stream(self) -> None:
        with self.client.messages.stream(model=MODEL, max_tokens=20, messages=BLOCKS) as stream:
            assert "".join(stream.text_stream) == ANSWER

    def test_count(self) -> None:
        message = self.client.messages.create(model=MODEL, max_tokens=1, messages=BLOCKS)
        usage = message.usage
        counted = self.client.messages.count_tokens(model=MODEL, messages=BLOCKS)
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)

    def test_url_is_refused_by_field(self) -> None:
        block = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/a.png"}}
        messages: Any = [{"role": "user", "content": [block]}]
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].source.url.*media_hosts"):
            self.client.messages.create(model=MODEL, max_tokens=2, messages=messages)


class TestHuggingFace:
    def test_chat(self) -> None:
        client = huggingface_hub.InferenceClient(base_url=f"{URL}/v1")
        assert client.chat_completion(model=MODEL, messages=CHAT).choices[0].message.content == ANSWER

    def test_streamed_chat(self) -> None:
        client = huggingface_hub.InferenceClient(base_url=f"{URL}/v1")
        pieces = client.chat_completion(model=MODEL, messages=CHAT, stream=True)
        assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices) == ANSWER


LANGCHAIN = {
    "openai": ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0),
    "responses": ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0, use_responses_api=True),
    "anthropic": ChatAnthropic(model=MODEL, base_url=URL, api_key="none", max_retries=0, max_tokens=20),
    "ollama": ChatOllama(model=MODEL, base_url=URL),
}


class TestLangchain:
    @pytest.mark.parametrize("name", LANGCHAIN)
    def test_standard_block(self, name: str) -> None:
        block = {"type": "image", "base64": ENCODED, "mime_type": "image/jpeg"}
        message = HumanMessage(content=[block, {"type": "text", "text": QUESTION}])
        assert LANGCHAIN[name].invoke([message]).text == ANSWER

    @pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "ollama"])
    def test_image_url(self, name: str) -> None:
        assert LANGCHAIN[name].invoke([HumanMessage(content=CHAT[0]["content"])]).text == ANSWER


class TestLiteLlm:
    @pytest.mark.parametrize(
        ("provider", "base"),
        [("openai", f"{URL}/v1"), ("hosted_vllm", f"{URL}/v1"), ("anthropic", URL), ("ollama_chat", URL)],
    )
    def test_chat(self, provider: str, base: str) -> None:
        chat = litellm.completion(
            f"{provider}/{MODEL}", messages=CHAT, api_base=base, api_key="none", max_tokens=20, temperature=0
        )
        assert chat.choices[0].message.content == ANSWER


class TestOllama:
    client = ollama.Client(host=URL)

    def test_chat(self) -> None:
        message = {"role": "user", "content": QUESTION, "images": [FILE]}
        assert self.client.chat(MODEL, messages=[message]).message.content == ANSWER

    def test_generate(self) -> None:
        assert self.client.generate(MODEL, prompt=QUESTION, images=[FILE.read_bytes()]).response == ANSWER

    def test_capabilities(self) -> None:
        assert "vision" in (self.client.show(MODEL).capabilities or [])


class TestPydanticAi:
    @pytest.mark.parametrize("name", ["chat", "responses"])
    def test_agent(self, name: str) -> None:
        of_openai = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
        models = {
            "chat": lambda: OpenAIChatModel(MODEL, provider=of_openai),
            "responses": lambda: OpenAIResponsesModel(MODEL, provider=of_openai),
        }
        agent = Agent(models[name]())
        content = BinaryContent(FILE.read_bytes(), media_type="image/jpeg")
        result = asyncio.run(agent.run([content, QUESTION]))
        assert result.output == ANSWER


def test_native_answer_is_same() -> None:
    answer = httpx.post(f"{URL}/infer", json={"model_name": MODEL, "messages": CHAT}, trust_env=False, timeout=60)
    assert answer.json()["text"] == ANSWER
