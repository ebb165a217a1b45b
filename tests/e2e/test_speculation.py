"""Speculation over a real socket: texts as without it, stop strings within accepted tokens, and what usage counts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.forced_proposals import ENVIRON
from tests.support.models.repeating import CYCLE, save_repeating_model

# The bytes of a cycle of the model.
LETTERS = "".join(chr(33 + number) for number in range(2 * CYCLE, 3 * CYCLE))
PROMPT = LETTERS * 2 + LETTERS[:3]
NEW_TOKENS = 60
WAYS = {
    "none": "",
    "process": '[performance]\nisolation = "process"\n',
    "workers": "[server]\nworkers = 2\n",
}
SPECULATING = ("lookup", "drafted")


def config(folder: Path) -> str:
    """Save two models; entries of the first one without speculation, with lookup, and with the second as its draft."""
    save_repeating_model(folder / "lm")
    save_repeating_model(folder / "small", loudness=12.0)
    small = f'[[models.torch_models]]\nname = "small"\npath = "{folder}/small"\nload = "lazy"\n'
    return f'[models]\nroots = ["{folder}"]\n{small}' + "".join(
        f'[[models.torch_models]]\nname = "{name}"\npath = "{folder}/lm"\nkv_cache_bytes = "1MiB"\n{more}\n'
        for name, more in (("plain", ""), ("lookup", 'speculation = "lookup"'), ("drafted", 'draft_model = "small"'))
    )


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose models run in its own process, where tokens are always proposed."""
    folder = tmp_path_factory.mktemp("forced")
    with serving(folder, config(folder), ENVIRON) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module", params=list(WAYS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    if not WAYS[request.param]:
        yield request.getfixturevalue("forced")
        return
    folder = tmp_path_factory.mktemp("speculation")
    with serving(folder, WAYS[request.param] + config(folder), ENVIRON) as running:
        yield running.wait_ready()
        running.check_log()


def complete(server: RunningServer, model: str, **more: object) -> Any:
    body = {"model": model, "prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0} | more
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(server: RunningServer, model: str, **more: object) -> tuple[str, str, Any]:
    """Return text, finish_reason and usage of a streamed completion."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT_S)
    options: Any = {"max_tokens": NEW_TOKENS, "temperature": 0, "stream_options": {"include_usage": True}} | more
    chunks = list(client.completions.create(model=model, prompt=PROMPT, stream=True, **options))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    usage = chunks[-1].usage
    assert usage is not None
    return "".join(choice.text for choice in choices), choices[-1].finish_reason, usage.model_dump()


@pytest.mark.extended
@pytest.mark.parametrize(
    "server",
    ["none", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("process", "workers"))],
    indirect=True,
)
def test_eight_callers_get_texts_of_plain_model(server: RunningServer) -> None:
    """Greedy, with a seed, with a constraint, and with log probabilities."""
    more: list[dict[str, Any]] = [
        {}, {"logprobs": 2}, {"temperature": 0.6, "seed": 3}, {"temperature": 0.9, "seed": 4, "top_p": 0.9},
        {"regex": "[a-k]{9}"}, {"repetition_penalty": 1.1}, {"logit_bias": {"60": 3}}, {"stop": ["ef"]},
    ]  # fmt: skip

    async def ask(model: str) -> list[Any]:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            bodies = [
                {"model": model, "prompt": PROMPT[i:], "max_tokens": NEW_TOKENS, "temperature": 0} | each
                for i, each in enumerate(more)
            ]
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        assert [answer.status_code for answer in answers] == [200] * len(more), answers[0].text
        choices = [answer.json()["choices"][0] for answer in answers]
        return [
            (choice["text"], choice["finish_reason"], (choice["logprobs"] or {}).get("tokens")) for choice in choices
        ]

    plain = asyncio.run(ask("plain"))
    assert len({text for text, _, _ in plain}) >= 5
    for model in SPECULATING:
        assert asyncio.run(ask(model)) == plain


@pytest.mark.parametrize("model", SPECULATING)
def test_stop_string_cuts_accepted_tokens(forced: RunningServer, model: str) -> None:
    """Each stop string begins at another token of a step, and some end within it."""
    text = complete(forced, "plain")["choices"][0]["text"]
    accepted = 0
    for start in range(20, 29):
        stop = text[start : start + 3]
        expected = complete(forced, "plain", stop=stop)
        assert expected["choices"][0]["finish_reason"] == "stop"
        assert stop not in expected["choices"][0]["text"]
        whole = complete(forced, model, stop=stop)
        assert whole["choices"] == expected["choices"]
        assert whole["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]
        streamed, reason, usage = stream(forced, model, stop=stop)
        assert (streamed, reason) == (expected["choices"][0]["text"], "stop")
        for each in (whole["usage"], usage):
            details = each["completion_tokens_details"]
            assert details["accepted_prediction_tokens"] <= each["completion_tokens"]
            accepted += details["accepted_prediction_tokens"]
        native = forced.infer(model, prompt=PROMPT, max_tokens=NEW_TOKENS, temperature=0, stop=[stop])
        assert native["text"] == expected["choices"][0]["text"]
    assert accepted > 100


@pytest.mark.parametrize("model", SPECULATING)
def test_usage_and_metrics_count_proposed_tokens(forced: RunningServer, model: str) -> None:
    def counted() -> list[float]:
        return [forced.sample(f"roundhouse_{kind}_tokens_total", model=model) for kind in ("accepted", "proposed")]

    before = counted()
    whole = complete(forced, model)["usage"]["completion_tokens_details"]
    _, _, usage = stream(forced, model)
    chat = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 30, "temperature": 0}
    of_chat = forced.client.post("/v1/chat/completions", json=chat).json()["usage"]["completion_tokens_details"]
    native = forced.infer(model, prompt=PROMPT, max_tokens=NEW_TOKENS, temperature=0)
    details = [whole, usage["completion_tokens_details"], of_chat, native]
    accepted = sum(each["accepted_prediction_tokens"] for each in details)
    rejected = sum(each["rejected_prediction_tokens"] for each in details)
    assert whole["accepted_prediction_tokens"] > 30
    assert [after - count for after, count in zip(counted(), before, strict=True)] == [accepted, accepted + rejected]


def test_usage_without_speculation_has_zeros(forced: RunningServer) -> None:
    details = complete(forced, "plain")["usage"]["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    assert "accepted_prediction_tokens" not in forced.infer("plain", prompt=PROMPT, max_tokens=2)


@pytest.mark.extended
@pytest.mark.parametrize("model", SPECULATING)
def test_disconnect_frees_blocks_of_both_models(server: RunningServer, model: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True, "stream": True, "temperature": 0.9}
    for _ in range(3):
        with server.client.stream("POST", f"/models/{model}/infer", json=body) as answer:
            next(line for line in answer.iter_lines() if line.startswith("data: "))
    wait_until(lambda: server.sample("roundhouse_sequences", model=model) == 0)
    wait_until(lambda: server.sample("roundhouse_kv_cache_bytes", model=model, kind="used") == 0)
    assert complete(server, model)["choices"] == complete(server, "plain")["choices"]


def test_unseeded_texts_stream_to_their_ends(forced: RunningServer) -> None:
    """The draft model draws by other random numbers than the text."""
    for _ in range(4):
        _, reason, usage = stream(forced, "drafted", temperature=0.8, max_tokens=40)
        assert reason in ("length", "stop")
        assert usage["completion_tokens"] <= 40


@pytest.mark.extended
def test_registered_model_names_a_draft_model(forced: RunningServer) -> None:
    """By the name of a model, or by a path below the roots."""
    plain = complete(forced, "plain")["choices"][0]["text"]
    for number, draft in enumerate(("small", "./small")):
        body = {"framework": "pytorch", "name": f"new-{number}", "path": "./lm", "draft_model": draft}
        added = forced.client.post("/models", json=body)
        assert added.status_code == 201, added.text
        assert complete(forced, f"new-{number}")["choices"][0]["text"] == plain
        forced.client.delete(f"/models/new-{number}")
    outside = {"framework": "pytorch", "name": "other", "path": "./lm", "draft_model": "/etc"}
    assert_refused(forced.client.post("/models", json=outside), 403, "forbidden", "below models.roots")
