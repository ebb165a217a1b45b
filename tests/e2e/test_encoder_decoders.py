"""Translation and summaries over a real socket, by the clients that people have, as transformers computes them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import openai
import pytest
import torch
import transformers
from huggingface_hub import InferenceClient

from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.models.encoder_decoder_folders import save_encoder_decoder, save_marian

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "and runs away from the big bad wolf",
    "a house stands by the river and waits",
    "Guten Tag, wie geht es Ihnen heute?",
]
SEARCH = {"num_beams": 4, "max_length": 24, "no_repeat_ngram_size": 3, "length_penalty": 1.2, "min_length": 4}
TEXTS = [f"{CORPUS[i % 4]} {i} " * (1 + i % 2) for i in range(16)]


def _entries(folder: Path) -> str:
    bart = save_encoder_decoder(folder / "bart", "BartForConditionalGeneration", generation=SEARCH)
    t5 = save_encoder_decoder(folder / "t5", "T5ForConditionalGeneration")
    marian = save_marian(folder / "marian", CORPUS, num_beams=3, max_length=30)
    return f"""
[[models.torch_models]]
name = "bart"
path = "{bart}"
task = "summarization"

[[models.torch_models]]
name = "bart-small-cache"
path = "{bart}"
kv_cache_bytes = "512KiB"

[[models.torch_models]]
name = "t5"
path = "{t5}"

[[models.torch_models]]
name = "marian"
path = "{marian}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder_decoders")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with serving(folder, _entries(folder)) as running:
        yield running.wait_ready()


def _expected(folder: Path, name: str, texts: list[str], **options: Any) -> list[str]:
    """The texts of transformers' `generate`, one after another."""
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / name).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder / name)
    with torch.inference_mode():
        found = [model.generate(**tokenizer(text, return_tensors="pt"), **options)[0] for text in texts]
    # The first token is that of the decoder.
    return [tokenizer.decode(each[1:], skip_special_tokens=True) for each in found]


def _events_of(server: RunningServer, body: dict[str, Any]) -> list[Any]:
    with server.client.stream("POST", "/infer", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def _ask_all(server: RunningServer, bodies: list[dict[str, Any]]) -> list[Any]:
    """Send all requests at once."""

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, trust_env=False) as client:
            answers = await asyncio.gather(*(client.post("/infer", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * len(bodies), answers[0].text
        return [answer.json() for answer in answers]

    return asyncio.run(ask())


def test_concurrent_searches_match_transformers(server: RunningServer, folder: Path) -> None:
    answers = _ask_all(server, [{"model_name": "bart", "prompt": text} for text in TEXTS])
    assert [answer["text"] for answer in answers] == _expected(folder, "bart", TEXTS)


def test_concurrent_greedy_texts_match_transformers(server: RunningServer, folder: Path) -> None:
    answers = _ask_all(server, [{"model_name": "t5", "prompt": text, "max_tokens": 12} for text in TEXTS])
    assert [answer["text"] for answer in answers] == _expected(folder, "t5", TEXTS, max_new_tokens=12)


def test_request_chooses_its_search(server: RunningServer, folder: Path) -> None:
    options = {"num_beams": 2, "length_penalty": 0.3, "early_stopping": True, "no_repeat_ngram_size": 2}
    body = {"model_name": "t5", "prompt": TEXTS[0], "max_tokens": 9, **options}
    answer = server.client.post("/infer", json=body).json()
    assert [answer["text"]] == _expected(folder, "t5", TEXTS[:1], max_new_tokens=9, **options)
    greedy = server.client.post("/infer", json={"model_name": "bart", "prompt": TEXTS[1], "num_beams": 1}).json()
    assert [greedy["text"]] == _expected(folder, "bart", TEXTS[1:2], num_beams=1)


def test_marian_translates_as_transformers(server: RunningServer, folder: Path) -> None:
    texts = [*TEXTS[:6], "漢字 and 👩‍🚀"]
    bodies = [{"model_name": "marian", "prompt": text} for text in texts]
    named = [{**body, "target_language": "deu"} for body in bodies]
    answers = _ask_all(server, [*bodies, *named])
    expected = _expected(folder, "marian", [*texts, *(f">>deu<< {text}" for text in texts)])
    assert [answer["text"] for answer in answers] == expected


def test_stream_joins_to_the_whole_text(server: RunningServer) -> None:
    for name in ("t5", "marian"):
        body = {"model_name": name, "prompt": TEXTS[2], "max_tokens": 20, "num_beams": 1}
        whole = server.client.post("/infer", json=body).json()
        events = _events_of(server, {**body, "stream": True})
        assert "".join(event["text"] for event in events) == whole["text"]
        counts = ("tokens_generated", "prompt_tokens", "finish_reason")
        assert [events[-1][key] for key in counts] == [whole[key] for key in counts]


def test_hugging_face_client_translates_and_summarizes(
    server: RunningServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test of PyTorch models in this process has set HF_HUB_OFFLINE, with which the client sends nothing.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    client = InferenceClient(model=f"{server.url}/models/marian")
    assert client.translation(TEXTS[0]).translation_text == _expected(folder, "marian", TEXTS[:1])[0]
    options = {"num_beams": 2, "max_length": 10}
    few = client.translation(TEXTS[0], generate_parameters=options).translation_text
    assert [few] == _expected(folder, "marian", TEXTS[:1], **options)
    client = InferenceClient(model=f"{server.url}/models/bart")
    assert client.summarization(TEXTS[1]).summary_text == _expected(folder, "bart", TEXTS[1:2])[0]


def test_openai_client_completes(server: RunningServer, folder: Path) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.completions.create(model="bart", prompt=TEXTS[:3])
    assert [choice.text for choice in answer.choices] == _expected(folder, "bart", TEXTS[:3])
    assert answer.usage is not None
    # Each text with its first and its last special token: the byte tokenizer has none.
    assert answer.usage.prompt_tokens == sum(len(text.encode()) for text in TEXTS[:3])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": ""}, "prompt: expected at least one token, got none; send a text"),
        ({"prompt": "x" * 5000}, "prompt: expected"),
        ({"prompt": "x", "max_tokens": 400}, "max_tokens: expected 1 to 127"),
        ({"prompt": "x", "num_beams": 17}, "num_beams"),
        ({"prompt": "x", "num_beams": 2, "temperature": 1}, "num_beams: expected 1 with a temperature above 0"),
        ({"prompt": "x", "target_language": "fra"}, "target_language: expected none"),
        ({"prompt": "x", "length_penalty": "high"}, "length_penalty"),
    ],
)
def test_bad_request_is_refused_by_name(body: dict[str, Any], message: str, server: RunningServer) -> None:
    answer = server.client.post("/infer", json={"model_name": "bart", **body})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_beams_beyond_kv_cache_are_refused(server: RunningServer) -> None:
    body = {"model_name": "bart-small-cache", "prompt": TEXTS[0], "num_beams": 16, "max_tokens": 120}
    message = assert_refused(
        server.client.post("/infer", json=body), 400, "invalid_input", "num_beams: expected beams that take at most "
    )
    assert message.endswith("; ask for fewer beams or tokens")
    assert server.client.post("/infer", json={**body, "num_beams": 2}).status_code == 200


def test_unknown_language_names_near_ones(server: RunningServer) -> None:
    body = {"model_name": "marian", "prompt": "x", "target_language": "de"}
    message = server.client.post("/infer", json=body).json()["error"]["message"]
    assert message == 'target_language: expected one of the 2 languages of the model, such as deu, got "de"'


def test_disconnected_search_ends(server: RunningServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.client.post(
            "/infer", json={"model_name": "t5", "prompt": TEXTS[0], "max_tokens": 2000, "num_beams": 8}, timeout=0.5
        )
    wait_until(lambda: server.inflight("t5") == 0)
    answer = server.client.post("/infer", json={"model_name": "t5", "prompt": TEXTS[0], "max_tokens": 2})
    assert answer.status_code == 200


def test_description_names_source(server: RunningServer) -> None:
    source = server.client.get("/models/bart").json()["source"]
    assert source == {
        "task": "summarization", "max_tokens": 128, "max_new_tokens": 23, "num_beams": 4, "source_languages": [],
        "target_languages": [],
    }  # fmt: skip
    assert server.client.get("/models/marian").json()["source"]["target_languages"] == ["deu", "fra"]
