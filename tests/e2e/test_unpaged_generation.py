"""Language models with transformers' own caches, over a real socket: their texts, and the reason in /models."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.server import WAIT_S, RunningServer, serving
from tests.support.models.causal_families import save_family
from tests.support.models.causal_folders import byte_tokenizer

FAMILIES = ("gptj", "mamba", "qwen3_next")
CALLERS = 8
NEW_TOKENS = 10
PROMPTS = [f"{'engines wait ' * (1 + 2 * (i % 3))}{i}" for i in range(CALLERS)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, dict[str, list[str]]]]:
    """A server, and the greedy texts of transformers' `generate` for each model."""
    folder = tmp_path_factory.mktemp("unpaged")
    entries, expected = "", {}
    for family in FAMILIES:
        path = save_family(folder / family, family)
        entries += f'[[models.torch_models]]\nname = "{family}"\npath = "{path}"\ndtype = "f32"\nmax_batch_size = 4\n'
        expected[family] = [_generated(AutoModelForCausalLM.from_pretrained(path), prompt) for prompt in PROMPTS]
    with serving(folder, entries) as running:
        yield running.wait_ready(), expected
        running.check_log()


def _generated(model: Any, prompt: str) -> str:
    tokenizer = byte_tokenizer()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return str(tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_concurrent_texts_match_generate(texts: tuple[RunningServer, dict[str, list[str]]], family: str) -> None:
    server, expected = texts
    greedy = {"temperature": 0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    with ThreadPoolExecutor(CALLERS) as threads:
        answers = list(threads.map(lambda prompt: server.infer(family, prompt=prompt, **greedy), PROMPTS))
    assert [answer["text"] for answer in answers] == expected[family]
    assert {answer["tokens_generated"] for answer in answers} == {NEW_TOKENS}


@pytest.mark.parametrize("family", FAMILIES)
def test_models_name_the_caches(texts: tuple[RunningServer, dict[str, list[str]]], family: str) -> None:
    server, _ = texts
    model = httpx.get(f"{server.url}/models/{family}", timeout=WAIT_S, trust_env=False, verify=False).json()
    assert model["attention"].startswith("transformers: ")
    line = server.wait_for_log("paged attention does not fit, so transformers' own caches are used", model=family)
    assert model["attention"] == f"transformers: {line['reason']}"
