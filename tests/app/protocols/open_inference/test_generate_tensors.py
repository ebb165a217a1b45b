"""Tensors of infer requests to models that generate text, with the names of Triton's backends."""

import json
import math
from typing import Any

import numpy as np
import pytest

from app.protocols.open_inference.datatypes import DATATYPES
from app.protocols.open_inference.generate_tensors import StreamedTensors, generated_tensors
from app.protocols.open_inference.infer_request import check_request, wants_text_in_parts
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, ParsedRequest, RequestedOutput
from frameworks.core.errors import InvalidInput, RequestError, UnknownField
from frameworks.generation.types import (
    Choice,
    Constraint,
    FinishReason,
    GenerateAnswer,
    GenerateRequest,
    Stopping,
    TextDelta,
    TokenText,
    Usage,
)
from frameworks.types import NUMPY_DTYPES
from tests.app.protocols.native.specs import GENERATION, WRITER

TOKENS = (
    TokenText(7, "an", -0.5, ((7, "an", -0.5), (8, "a", -1.5))),
    TokenText(9, " ox", None, ((4, " a", -0.1), (5, " b", -math.inf))),
)
USAGE = Usage(prompt_tokens=5, tokens_generated=4)


def tensor(name: str, value: Any, dtype: str) -> InputTensor:
    return InputTensor(name, DATATYPES[dtype], np.array(value, NUMPY_DTYPES[dtype]))


def strings(name: str, *values: str, shape: tuple[int, ...] = (-1,)) -> InputTensor:
    return InputTensor(name, "BYTES", np.array(values, object).reshape(shape))


def ask(*tensors: InputTensor, outputs: tuple[str, ...] = (), **parameters: Any) -> InferRequest:
    wanted = [RequestedOutput(name) for name in outputs] or None
    inputs = [strings("text_input", "Once"), *tensors]
    return check_request(ParsedRequest(inputs, wanted, "", parameters), WRITER)


def requested(*tensors: InputTensor, **parameters: Any) -> GenerateRequest:
    request = ask(*tensors, **parameters).request
    assert isinstance(request, GenerateRequest)
    return request


def refusal(*tensors: InputTensor, kind: type[RequestError] = InvalidInput, **more: Any) -> str:
    with pytest.raises(kind) as refused:
        ask(*tensors, **more)
    return refused.value.message


def values(tensors: Any) -> dict[str, Any]:
    return {each.name: (each.datatype, each.value.tolist()) for each in tensors}


class TestInputs:
    def test_tensors_of_tensorrt_llm(self) -> None:
        """The inputs of TensorRT-LLM's own client, with the values that it always sends."""
        request = ask(
            tensor("max_tokens", [[7]], "int32"),
            tensor("stream", [[True]], "bool"),
            tensor("beam_width", [[1]], "int32"),
            tensor("temperature", [[0.1]], "float32"),
            tensor("num_return_sequences", [[1]], "int32"),
            strings("bad_words", "", shape=(1, 1)),
            strings("stop_words", "x", "y", shape=(1, 2)),
            tensor("repetition_penalty", [[1.5]], "float32"),
            tensor("end_id", [[9]], "int32"),
            tensor("pad_id", [[2]], "int32"),
            tensor("random_seed", [[2**64 - 1]], "uint64"),
            tensor("runtime_top_k", [[3]], "uint32"),
            tensor("exclude_input_in_output", [[False]], "bool"),
            tensor("return_perf_metrics", [[False]], "bool"),
            tensor("len_penalty", [[1.0]], "float32"),
        )
        assert request.request == requested(
            max_tokens=7, temperature=0.1, stop=["x", "y"], repetition_penalty=1.5, end_id=9, seed=2**63 - 1, top_k=3
        )
        assert request.stream
        assert ask(tensor("streaming", [True], "bool")).stream

    def test_values_of_any_datatype(self) -> None:
        plain = requested(temperature=0.1, top_k=3)
        for dtype in ("float16", "float32", "float64"):
            assert requested(tensor("temperature", [0.1], dtype), tensor("top_k", 3, "uint8")) == plain
        assert requested(strings("temperature", "0.1"), strings("top_k", "3")) == plain

    def test_lists_and_json(self) -> None:
        request = requested(
            tensor("stop_token_ids", [4, 5], "int32"), strings("logit_bias", '{"5": -1}'), strings("regex", "[a-z]")
        )
        assert (request.stopping.token_ids, request.sampling.logit_bias) == (frozenset({4, 5}), {5: -1.0})
        assert request.constraint == Constraint("regex", "[a-z]")
        assert requested(strings("bad_words", "a", "b")).sampling.bad_words == ("a", "b")
        assert requested(strings("choice", "a", "b")).constraint == Constraint("choice", '["a","b"]')
        guide = (
            strings("guided_decoding_guide_type", "json_schema"),
            strings("guided_decoding_guide", '{"type":"null"}'),
        )
        assert requested(*guide).constraint == Constraint("json_schema", '{"type":"null"}')

    def test_sampling_parameters_and_tensors(self) -> None:
        limit, sampling = tensor("max_tokens", [7], "int32"), strings("sampling_parameters", '{"temperature": "0"}')
        request = requested(limit, sampling, temperature="0")
        assert (request.stopping, request.sampling.temperature) == (Stopping(7), 0)
        assert requested(tensor("max_tokens", [7], "int32"), max_tokens=7) == requested(limit)
        assert refusal(limit, max_tokens=8) == (
            "max_tokens: expected the value of inputs.max_tokens, got another; send one of them"
        )

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (strings("bad_words", "a", ""), "inputs.bad_words[1]: expected "),
            (tensor("beam_width", [2], "int32"), "inputs.beam_width: not supported; texts are sampled"),
            (tensor("lora_task_id", [1], "uint64"), "inputs.lora_task_id: not supported; name the adapter"),
            (tensor("lora_weights", np.ones((2, 4000)), "float16"), "inputs.lora_weights: not supported"),
            (tensor("max_tokens", [0], "int32"), "inputs.max_tokens: expected an integer from 1 to 2147483647, got 0"),
            (tensor("max_tokens", [1, 2], "int32"), "inputs.max_tokens: expected one element, as [1] or [1, 1]"),
            (tensor("temperature", [math.nan], "float32"), "inputs.temperature: expected a number from 0 to 100"),
            (tensor("stream", [1], "int32"), "inputs.stream: expected BOOL, got INT32"),
            (tensor("streaming", [1], "int32"), "inputs.streaming: expected a boolean, got 1"),
            (tensor("stop_token_ids", np.ones(1025), "int32"), "inputs.stop_token_ids: expected at most 1024 elements"),
            (strings("messages", "[]"), "inputs.messages: expected none here, got some; send messages as a member"),
            (strings("messages", "a", "b", "c"), "inputs.messages: expected none here, got some"),
            (strings("image", "YQ"), "inputs.image: not supported; send messages with image_url parts to /v2/models/"),
            (strings("text_input", "again"), "inputs.text_input: expected one tensor of this name, got two"),
        ],
    )
    def test_wrong_tensors_are_refused(self, given: InputTensor, message: str) -> None:
        assert refusal(given).startswith(message)

    def test_unknown_tensor_is_refused(self) -> None:
        assert refusal(tensor("max_token", [1], "int32"), kind=UnknownField).startswith("inputs.max_token: unknown")
        with pytest.raises(InvalidInput, match=r"^inputs\.text_input: expected a tensor, got nothing"):
            check_request(ParsedRequest([tensor("max_tokens", [1], "int32")]), WRITER)

    def test_messages_among_parameters_are_refused(self) -> None:
        assert refusal(messages="a").startswith("messages: expected none here, got some; send messages as a member")

    def test_priority_and_timeout(self) -> None:
        request = ask(tensor("priority", [1], "int32"), timeout=2500)
        assert (request.priority, request.timeout_ms) == (1, 2.5)


class TestOutputs:
    def test_text_alone_by_default(self) -> None:
        assert ask().outputs == (RequestedOutput("text_output"),)
        assert ask(binary_data_output=True).outputs == (RequestedOutput("text_output", binary=True),)
        assert ask().request == GenerateRequest(("Once",), GENERATION.sampling, Stopping(20, may_be_fewer=True))

    def test_options_ask_for_outputs(self) -> None:
        flags = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens", "return_log_probs")
        request = ask(*(tensor(flag, [True], "bool") for flag in flags))
        answer = GenerateAnswer([Choice("one", "stop", [*TOKENS]), Choice("two", "length", [*TOKENS[:1]])], USAGE)
        assert values(generated_tensors(request, answer)) == {
            "text_output": ("BYTES", ["one", "two"]),
            "finish_reason": ("BYTES", ["stop", "length"]),
            "num_input_tokens": ("UINT32", [5]),
            "num_output_tokens": ("UINT32", [4]),
            "cum_log_probs": ("FP32", [-0.5, -0.5]),
            "output_log_probs": ("FP32", [[-0.5, -math.inf], [-0.5, 0.0]]),
        }
        assert ask(tensor(flags[0], [False], "bool")).outputs == (RequestedOutput("text_output"),)

    def test_named_outputs_need_no_option(self) -> None:
        request = ask(outputs=("cumulative_logprob", "sequence_index"))
        assert isinstance(request.request, GenerateRequest)
        assert request.request.sampling.top_logprobs == 0
        answer = GenerateAnswer([Choice("one", "stop", [*TOKENS])] * 2, USAGE)
        assert values(generated_tensors(request, answer)) == {
            "cumulative_logprob": ("FP32", [-0.5, -0.5]),
            "sequence_index": ("INT32", [[0], [1]]),
        }

    def test_logprobs_are_json(self) -> None:
        answer = GenerateAnswer([Choice("one", "stop", [*TOKENS])], USAGE)
        (output,) = generated_tensors(ask(outputs=("logprobs",), logprobs=2), answer)
        first, second = json.loads(output.value[0])
        assert first["7"] == {"logprob": -0.5, "rank": 1, "decoded_token": "an"}
        assert second["5"] == {"logprob": None, "rank": 2, "decoded_token": " b"}
        (output,) = generated_tensors(ask(outputs=("logprobs",)), answer)
        assert output.value.tolist() == ["null"]

    def test_prompt_precedes_a_whole_text(self) -> None:
        request = ask(tensor("exclude_input_in_output", [False], "bool"))
        (output,) = generated_tensors(request, GenerateAnswer([Choice(" upon", "stop")], USAGE))
        assert output.value.tolist() == ["Once upon"]

    def test_classification_is_refused(self) -> None:
        wanted = [RequestedOutput("cum_log_probs", num_classes=1)]
        with pytest.raises(InvalidInput, match=r"^outputs\.cum_log_probs: expected no classification"):
            check_request(ParsedRequest([strings("text_input", "a")], wanted), WRITER)


class TestStream:
    @staticmethod
    def stream(request: InferRequest, *pieces: TextDelta) -> list[Any]:
        """Return the outputs of each response. Each piece has two tokens."""
        responses = StreamedTensors(request)
        found = []
        for count, piece in enumerate(pieces, 1):
            assert not responses.is_last
            outputs = responses.add(piece, Usage(5, 2 * count))
            found.append(None if outputs is None else {each.name: each.value.tolist() for each in outputs})
        assert responses.is_last
        return found

    @staticmethod
    def pieces(reason: FinishReason = "stop") -> list[TextDelta]:
        return [TextDelta(0, "Ha", None, TOKENS[:1]), TextDelta(0, "llo", reason, TOKENS[1:])]

    def test_outputs_of_each_piece(self) -> None:
        request = ask(outputs=("text_output", "finish_reason", "num_output_tokens", "cum_log_probs"))
        assert wants_text_in_parts(request)
        assert self.stream(request, *self.pieces()) == [
            {"text_output": ["Ha"], "finish_reason": ["None"], "num_output_tokens": [2], "cum_log_probs": [-0.5]},
            {"text_output": ["llo"], "finish_reason": ["stop"], "num_output_tokens": [2], "cum_log_probs": [-0.5]},
        ]

    def test_stream_has_no_prompt(self) -> None:
        request = ask(tensor("exclude_input_in_output", [False], "bool"))
        assert self.stream(request, *self.pieces()) == [{"text_output": ["Ha"]}, {"text_output": ["llo"]}]

    def test_several_texts_have_an_element_each(self) -> None:
        request = ask(n=2, return_finish_reason=True)
        assert self.stream(request, TextDelta(1, "b", "stop"), TextDelta(0, "a", "length")) == [
            {"text_output": ["", "b"], "finish_reason": ["None", "stop"]},
            {"text_output": ["a", ""], "finish_reason": ["length", "None"]},
        ]

    def test_sequence_index_gives_a_response_each(self) -> None:
        request = ask(n=2, outputs=("text_output", "sequence_index"))
        assert self.stream(request, TextDelta(1, "b", "stop"), TextDelta(0, "a", "length")) == [
            {"text_output": ["b"], "sequence_index": [[1]]},
            {"text_output": ["a"], "sequence_index": [[0]]},
        ]

    def test_sequence_index_of_whole_texts(self) -> None:
        request = ask(tensor("stream", [False], "bool"), n=2, outputs=("text_output", "sequence_index"))
        assert wants_text_in_parts(request)
        pieces = [TextDelta(1, "b"), TextDelta(0, "a"), TextDelta(1, "c", "stop"), TextDelta(0, "d", "length")]
        assert self.stream(request, *pieces) == [
            None,
            None,
            {"text_output": ["bc"], "sequence_index": [[1]]},
            {"text_output": ["ad"], "sequence_index": [[0]]},
        ]
        assert not wants_text_in_parts(ask(tensor("stream", [False], "bool")))
