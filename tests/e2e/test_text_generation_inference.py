"""Text Generation Inference's routes on a server with a model of each kind."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import MODELS, RunningServer, serving

PROMPT = "A list is"
NAMES = ("minilm", "tiny-llama")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    entries = (f'[[models.torch_models]]\nname = "{name}"\npath = "{MODELS / name}"\n' for name in NAMES)
    with serving(tmp_path_factory.mktemp("tgi"), "".join(entries)) as running:
        yield running.wait_ready()
        running.check_log()


def ask(server: RunningServer, path: str = "/generate", **fields: Any) -> Any:
    answer = server.client.post(path, json={"inputs": PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(server: RunningServer, path: str = "/generate_stream", **fields: Any) -> list[Any]:
    answer = server.client.post(path, json={"inputs": PROMPT, **fields})
    assert answer.headers["content-type"] == "text/event-stream"
    return [json.loads(each.removeprefix("data:")) for each in answer.text.removesuffix("\n\n").split("\n\n")]


def refusal(server: RunningServer, path: str = "/generate", **fields: Any) -> Any:
    answer = server.client.post(path, json={"inputs": PROMPT, **fields})
    assert answer.status_code == 400, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def text(server: RunningServer) -> str:
    """The text of greedy decoding, by the completions route."""
    body = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "repetition_penalty": 1.0}
    return str(server.client.post("/v1/completions", json=body).json()["choices"][0]["text"])


def test_text_is_that_of_completions(server: RunningServer, text: str) -> None:
    assert ask(server, parameters={"max_new_tokens": 12}) == {"generated_text": text}
    assert ask(server, parameters={"max_new_tokens": 12, "return_full_text": True})["generated_text"] == PROMPT + text


def test_details_report_tokens_of_both(server: RunningServer, text: str) -> None:
    asked = {"max_new_tokens": 12, "details": True, "decoder_input_details": True, "top_n_tokens": 2}
    details = ask(server, parameters=asked)["details"]
    assert (details["finish_reason"], details["generated_tokens"], len(details["tokens"])) == ("length", 12, 12)
    best = [top[0]["logprob"] for top in details["top_tokens"]]
    assert [token["logprob"] for token in details["tokens"]] == best
    body = {"model": "tiny-llama", "prompt": PROMPT}
    assert [each["id"] for each in details["prefill"]] == server.client.post("/v1/tokenize", json=body).json()["tokens"]
    assert details["prefill"][0]["logprob"] is None
    assert all(each["logprob"] < 0 for each in details["prefill"][1:])


@pytest.mark.parametrize("path", ["/", "/generate_stream"])
def test_streamed_tokens_equal_whole(server: RunningServer, path: str) -> None:
    parameters = {"max_new_tokens": 12, "details": True}
    whole = ask(server, parameters=parameters)
    events = stream(server, path, parameters=parameters, **({"stream": True} if path == "/" else {}))
    last = events[-1]
    assert last["generated_text"] == whole["generated_text"]
    assert "".join(each["token"]["text"] for each in events if not each["token"]["special"]) == whole["generated_text"]
    ids = [each["token"]["id"] for each in events]
    assert ids == [each["id"] for each in whole["details"]["tokens"]]
    assert (last["details"]["finish_reason"], last["details"]["generated_tokens"]) == ("length", 12)
    assert all(each["generated_text"] is None for each in events[:-1])


def test_stop_sequence_ends_the_text(server: RunningServer, text: str) -> None:
    stop = text[-1]
    shown = text[: text.index(stop) + 1]
    parameters = {"max_new_tokens": 12, "stop": ["~~~", stop], "details": True}
    whole = ask(server, parameters=parameters)
    assert (whole["generated_text"], whole["details"]["finish_reason"]) == (shown, "stop_sequence")
    events = stream(server, parameters=parameters)
    assert "".join(each["token"]["text"] for each in events) == shown == events[-1]["generated_text"]
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"


def test_end_token_is_special(server: RunningServer) -> None:
    parameters = {"grammar": {"type": "regex", "value": "[ab]{3}"}, "details": True}
    whole = ask(server, parameters=parameters)
    assert re.fullmatch("[ab]{3}", whole["generated_text"])
    assert whole["details"]["finish_reason"] == "eos_token"
    assert [each["special"] for each in whole["details"]["tokens"][-2:]] == [False, True]
    last = stream(server, parameters=parameters)[-1]
    assert (last["token"]["special"], last["generated_text"]) == (True, whole["generated_text"])


def test_json_grammar_is_held(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    found = ask(server, parameters={"grammar": {"type": "json", "value": schema}})
    assert json.loads(found["generated_text"])["a"] in (1, 2)


def test_seed_repeats_a_drawn_text(server: RunningServer) -> None:
    texts = [ask(server, parameters={"do_sample": True, "seed": seed, "temperature": 2.0}) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_root_is_for_task_of_model(server: RunningServer, text: str) -> None:
    assert ask(server, "/", parameters={"max_new_tokens": 12}) == [{"generated_text": text}]
    assert ask(server, "/", model="tiny-llama")[0]["generated_text"].startswith(text)
    assert len(ask(server, "/")[0]) == len(ask(server, "/", model="minilm")[0]) == 384


def test_errors_have_tgis_form(server: RunningServer) -> None:
    for fields, words in (
        ({"parameters": {"best_of": 2}}, "parameters.best_of: expected 1, got 2"),
        ({"parameters": {"max_new_tokens": 100_000}}, "parameters.max_new_tokens: expected 1 to"),
        ({"parameters": {"grammar": {"type": "regex", "value": "("}}}, "parameters.grammar.value: "),
        ({"model": "minilm"}, "model: expected a model whose task is generate"),
    ):
        for path in ("/generate", "/generate_stream"):
            body = refusal(server, path, **fields)
            assert body["error_type"] == "validation"
            assert body["error"].startswith(words)


@pytest.mark.extended
def test_info_describes_generating_model(server: RunningServer) -> None:
    assert server.client.get("/info").json()["model_id"] == "minilm"
    info = server.client.get("/info", params={"model": "tiny-llama"}).json()
    assert (info["model_id"], info["model_pipeline_tag"]) == ("tiny-llama", "text-generation")
    assert info["max_total_tokens"] == info["max_input_tokens"] + 1
