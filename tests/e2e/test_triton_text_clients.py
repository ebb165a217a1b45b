"""Triton's clients with the inputs and outputs of its backends for language models: vLLM's and TensorRT-LLM's."""

import asyncio
import json
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from transformers import AutoModelForCausalLM, AutoTokenizer
from tritonclient.utils import np_to_triton_dtype

from tests.e2e.server import ROOT, WAIT_S, RunningServer
from tests.e2e.triton_clients import refusal, string_array, triton_client

MODEL = "tiny-llama"
PROMPTS = ("A list is", "The function returns")
SAMPLING = {"temperature": "0", "top_p": "0.95", "max_tokens": "12"}


def whole_text(server: RunningServer, prompt: str, max_tokens: int = 12) -> str:
    text: str = server.infer(MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0)["text"]
    return text


def transformers_text(prompt: str, *bad_words: str) -> str:
    """Return the greedy text of transformers, without the tokens of these words."""
    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT / "models" / MODEL)
    model: Any = AutoModelForCausalLM.from_pretrained(ROOT / "models" / MODEL, dtype=torch.float32)
    bad = [
        tokenizer(f"{space}{word}", add_special_tokens=False)["input_ids"] for word in bad_words for space in ("", " ")
    ]
    prompt_ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    ids = model.generate(prompt_ids, do_sample=False, max_new_tokens=12, bad_words_ids=bad)
    text: str = tokenizer.decode(ids[0, prompt_ids.shape[1] :], skip_special_tokens=True)
    return text


def tensors_of(transport: Any, **values: Any) -> list[Any]:
    """Return one tensor of shape [1] for each text or array."""
    tensors = []
    for name, value in values.items():
        array = string_array(value) if isinstance(value, str) else value
        tensors.append(transport.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    return tensors


def outputs_of(transport: Any, *names: str) -> list[Any]:
    return [transport.InferRequestedOutput(name) for name in names]


def strings_of(result: Any, name: str = "text_output") -> list[str]:
    return [each.decode() for each in result.as_numpy(name).reshape(-1)]


class TestVllm:
    """The client in the samples of Triton's vLLM backend."""

    @staticmethod
    def request(prompt: str, number: int, streams: bool, **flags: bool) -> dict[str, Any]:
        """Return a request as that client makes it: options are sent twice, with numbers as strings."""
        booleans = {name: np.array([flag]) for name, flag in {"stream": streams, **flags}.items()}
        inputs = tensors_of(tritonclient.grpc, text_input=prompt, **booleans, sampling_parameters=json.dumps(SAMPLING))
        return {"model_name": MODEL, "inputs": inputs, "request_id": str(number), "parameters": SAMPLING}

    @staticmethod
    def results(server: RunningServer, *requests: dict[str, Any]) -> dict[str, list[Any]]:
        """Run the requests in one stream and return the responses to each by its id."""

        async def run() -> dict[str, list[Any]]:
            async def sent() -> AsyncIterator[dict[str, Any]]:
                for request in requests:
                    yield request

            found: dict[str, list[Any]] = {request["request_id"]: [] for request in requests}
            address = f"127.0.0.1:{server.grpc_port}"
            async with tritonclient.grpc.aio.InferenceServerClient(address) as client, asyncio.timeout(WAIT_S):
                async for result, error in client.stream_infer(sent()):
                    assert error is None, error
                    found[result.get_response().id].append(result)
            return found

        return asyncio.run(run())

    @pytest.mark.parametrize("streams", [True, False])
    def test_sample_client(self, server: RunningServer, streams: bool) -> None:
        requests = [self.request(prompt, number, streams) for number, prompt in enumerate(PROMPTS)]
        for request in requests:
            request["outputs"] = outputs_of(tritonclient.grpc, "text_output")
        results = self.results(server, *requests)
        for number, prompt in enumerate(PROMPTS):
            responses = results[str(number)]
            assert (len(responses) > 1) == streams
            assert "".join(text for each in responses for text in strings_of(each)) == whole_text(server, prompt)

    def test_prompt_is_part_of_output(self, server: RunningServer) -> None:
        requests = [
            self.request(PROMPTS[0], number, False, exclude_input_in_output=excludes)
            for number, excludes in enumerate((True, False))
        ]
        results = self.results(server, *requests)
        text = whole_text(server, PROMPTS[0])
        assert [strings_of(each) for each in results["0"]] == [[text]]
        assert [strings_of(each) for each in results["1"]] == [[PROMPTS[0] + text]]

    def test_additional_outputs(self, server: RunningServer) -> None:
        flags = ("return_finish_reason", "return_cumulative_logprob", "return_num_input_tokens")
        request = self.request(PROMPTS[0], 0, True, **dict.fromkeys((*flags, "return_num_output_tokens"), True))
        responses = self.results(server, request)["0"]
        assert [strings_of(each, "finish_reason") for each in responses[:-1]] == [["None"]] * (len(responses) - 1)
        assert strings_of(responses[-1], "finish_reason") == ["length"]
        assert sum(int(each.as_numpy("num_output_tokens")[0]) for each in responses) == 12
        told = server.infer(MODEL, prompt=PROMPTS[0], max_tokens=12, temperature=0, logprobs=0)
        assert responses[-1].as_numpy("num_input_tokens").tolist() == [told["prompt_tokens"]]
        assert responses[-1].as_numpy("cumulative_logprob")[0] == pytest.approx(
            sum(token["logprob"] for token in told["logprobs"]), abs=1e-3
        )
        assert responses[-1].as_numpy("logprobs") is None


class TestTensorRtLlm:
    """The client of Triton's TensorRT-LLM backend: every option is a tensor of shape [1, 1]."""

    @staticmethod
    def inputs(transport: Any, **more: Any) -> list[Any]:
        arrays = {
            "max_tokens": np.array([[12]], np.int32),
            "beam_width": np.array([[1]], np.int32),
            "temperature": np.array([[0]], np.float32),
            "exclude_input_in_output": np.array([[False]]),
            "bad_words": string_array("").reshape(1, 1),
            "stop_words": string_array("").reshape(1, 1),
            "random_seed": np.array([[3]], np.uint64),
            "top_k": np.array([[1]], np.int32),
            "top_p": np.array([[0.5]], np.float32),
        }
        prompt = string_array(PROMPTS[0]).reshape(1, 1)
        return tensors_of(transport, text_input=prompt, **(arrays | more))

    @staticmethod
    def results(server: RunningServer, inputs: list[Any], *outputs: str) -> list[Any]:
        """Return the responses to one request. The client ends its stream after the request."""
        found: queue.Queue[tuple[Any, Any]] = queue.Queue()
        wanted = outputs_of(tritonclient.grpc, *outputs)
        with triton_client(server, "grpc") as client:
            client.start_stream(lambda result, error: found.put((result, error)))
            client.async_stream_infer(MODEL, inputs, outputs=wanted, request_id="1")
            client.stop_stream()
        results = []
        while not found.empty():
            result, error = found.get()
            assert error is None, error
            results.append(result)
        return results

    @pytest.mark.parametrize("streams", [True, False])
    def test_client_of_backend(self, server: RunningServer, streams: bool) -> None:
        inputs = self.inputs(tritonclient.grpc, stream=np.array([[streams]]))
        results = self.results(server, inputs, "text_output", "cum_log_probs", "output_log_probs")
        assert (len(results) > 1) == streams
        # A stream does not repeat the prompt.
        prompt = "" if streams else PROMPTS[0]
        assert "".join(text for each in results for text in strings_of(each)) == prompt + whole_text(server, PROMPTS[0])
        single = np.concatenate([each.as_numpy("output_log_probs")[0] for each in results])
        assert len(single) == 12
        assert results[-1].as_numpy("cum_log_probs")[0] == pytest.approx(single.sum(), abs=1e-3)

    @pytest.mark.parametrize("streams", [True, False])
    def test_sequences_have_their_index(self, server: RunningServer, streams: bool) -> None:
        inputs = self.inputs(
            tritonclient.grpc,
            streaming=np.array([[streams]]),
            num_return_sequences=np.array([[2]], np.int32),
            exclude_input_in_output=np.array([[True]]),
        )
        texts = ["", ""]
        results = self.results(server, inputs, "text_output", "sequence_index")
        for result in results:
            ((index,),) = result.as_numpy("sequence_index")
            (text,) = strings_of(result)
            texts[index] += text
        assert texts == [whole_text(server, PROMPTS[0])] * 2
        finals = [each.get_response().parameters["triton_final_response"].bool_param for each in results]
        assert finals == [False] * (len(results) - 1) + [True]

    @pytest.mark.parametrize("kind", ["http", "http.aio", "grpc", "grpc.aio"])
    def test_infer(self, server: RunningServer, kind: str) -> None:
        transport = tritonclient.grpc if kind.startswith("grpc") else tritonclient.http
        inputs = self.inputs(transport, exclude_input_in_output=np.array([[True]]))
        with triton_client(server, kind) as client:
            result = client.infer(MODEL, inputs, outputs=outputs_of(transport, "text_output", "num_output_tokens"))
        assert strings_of(result) == [whole_text(server, PROMPTS[0])]
        assert result.as_numpy("num_output_tokens").tolist() == [12]

    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_words_end_or_are_left_out(self, server: RunningServer, kind: str) -> None:
        transport = tritonclient.grpc if kind == "grpc" else tritonclient.http
        plain = whole_text(server, PROMPTS[0])
        first, second, *_ = plain.split()
        inputs = self.inputs(
            transport,
            exclude_input_in_output=np.array([[True]]),
            bad_words=string_array(f"{first} {second}", "unlikely").reshape(1, 2),
        )
        with triton_client(server, kind) as client:
            (text,) = strings_of(client.infer(MODEL, inputs))
            stops = self.inputs(
                transport, exclude_input_in_output=np.array([[True]]), stop_words=string_array(second).reshape(1, 1)
            )
            assert strings_of(client.infer(MODEL, stops)) == [plain.partition(second)[0]]
        assert text == transformers_text(PROMPTS[0], f"{first} {second}", "unlikely")
        assert text.startswith(f" {first}")
        assert text.split()[1] != second

    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_options_that_change_the_text_refused(self, server: RunningServer, kind: str) -> None:
        transport = tritonclient.grpc if kind == "grpc" else tritonclient.http
        inputs = self.inputs(transport, beam_width=np.array([[2]], np.int32))
        status = "INVALID_ARGUMENT" if kind == "grpc" else 400
        with triton_client(server, kind) as client, refusal(status, r"inputs\.beam_width: not supported", "sampled"):
            client.infer(MODEL, inputs)


class TestLiteLlm:
    """The bodies of LiteLLM's provider for Triton."""

    def test_embeddings(self, server: RunningServer) -> None:
        texts = ["Bread rises overnight.", "A roundhouse is where engines wait."]
        tensor = {"name": "input_text", "shape": [2], "datatype": "BYTES", "data": texts}
        answer = server.client.post("/v2/models/minilm/infer", json={"inputs": [tensor]}).json()
        (output,) = answer["outputs"]
        assert output["shape"] == [2, 384]
        ours = np.array(server.infer("minilm", text=texts)["embeddings"])
        np.testing.assert_allclose(np.array(output["data"]).reshape(2, 384), ours, atol=1e-6)

    def test_text_by_infer(self, server: RunningServer) -> None:
        inputs = [
            {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [PROMPTS[0]]},
            {"name": "temperature", "shape": [1], "datatype": "INT32", "data": [0]},
            {"name": "top_p", "shape": [1], "datatype": "FP32", "data": [0.5]},
            {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [12]},
        ]
        answer = server.client.post(f"/v2/models/{MODEL}/infer", json={"inputs": inputs}).json()
        assert answer["outputs"][0]["data"] == [whole_text(server, PROMPTS[0])]
