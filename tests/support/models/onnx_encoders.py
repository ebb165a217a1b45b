"""Tiny ONNX encoders: tokens in, states, embeddings or logits out."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto, helper

from frameworks.types import Array
from tests.support.models.onnx_graphs import Declared, model_of

POSITIONS = 40
"""Rows of a table of positions."""


def encoder(
    outputs: Sequence[str] = ("last_hidden_state",),
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    shape: tuple[int | str, int | str] = ("batch", "sequence"),
    ids_dtype: str = "int64",
    labels: int = 3,
    vocabulary_size: int = 128,
    positions: Literal["", "after padding", "slice"] = "",
) -> onnx.ModelProto:
    """A text encoder of 8 numbers a token: each state depends on its token, its place and the mean of all tokens.

    `outputs` out of last_hidden_state [b, s, 8], pooler_output, sentence_embedding, text_embeds [b, 8],
    logits [b, labels], token_logits (given the name logits) [b, s, vocabulary], and any other name, which is a rank 3
    state.
    `inputs` out of input_ids, attention_mask, token_type_ids, position_ids. Without a mask every token counts.
    `positions`: read a table of POSITIONS rows too, numbered as XLM-RoBERTa after the padding token 1, or as BERT.
    """
    random = np.random.default_rng(7)
    size = 8
    weights: dict[str, Array] = {
        name: (random.standard_normal(dims) * 0.5).astype(np.float32)
        for name, dims in {
            "words": (vocabulary_size, size), "types": (2, size), "places": (512, size), "mixing": (size, size),
            "pooling": (size, size), "classifying": (size, labels), "positions": (POSITIONS, size),
        }.items()
    }  # fmt: skip
    weights |= {"one": np.array([1], np.int64), "two": np.array([2], np.int64), "first": np.array(0, np.int64)}
    weights |= {"at_least": np.array(1, np.float32), "vocabulary": weights["words"].T.copy()}
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word_states"]),
        *_masked_mean("word_states", "context", "attention_mask" in inputs),
        helper.make_node("MatMul", ["context", "mixing"], ["mixed"]),
        helper.make_node("Unsqueeze", ["mixed", "one"], ["spread"]),
        helper.make_node("Add", ["word_states", "spread"], ["sum_0"]),
    ]
    for step, (name, table) in enumerate({"token_type_ids": "types", "position_ids": "places"}.items()):
        rows = f"{table}_rows"
        nodes += (
            [
                helper.make_node("Gather", [table, name], [rows]),
                helper.make_node("Add", [f"sum_{step}", rows], [f"sum_{step + 1}"]),
            ]
            if name in inputs
            else [helper.make_node("Identity", [f"sum_{step}"], [f"sum_{step + 1}"])]
        )
    nodes += [
        *_positioned(positions, weights),
        helper.make_node("Tanh", ["sum_3"], ["states"]),
        helper.make_node("Gather", ["states", "first"], ["first_states"], axis=1),
        helper.make_node("MatMul", ["first_states", "pooling"], ["before_pooled"]),
        helper.make_node("Tanh", ["before_pooled"], ["pooled"]),
    ]
    batch, length = shape
    declared: list[Declared | onnx.ValueInfoProto] = []
    for name in outputs:
        match name:
            case "pooler_output":
                nodes.append(helper.make_node("Identity", ["pooled"], [name]))
                declared.append((name, "float32", (batch, size)))
            case "sentence_embedding" | "text_embeds":
                nodes += _masked_mean("states", name, "attention_mask" in inputs)
                declared.append((name, "float32", (batch, size)))
            case "logits":
                nodes.append(helper.make_node("MatMul", ["pooled", "classifying"], [name]))
                declared.append((name, "float32", (batch, labels)))
            case "token_logits":
                nodes.append(helper.make_node("MatMul", ["states", "vocabulary"], ["logits"]))
                declared.append(("logits", "float32", (batch, length, vocabulary_size)))
            case _:
                nodes.append(helper.make_node("Identity", ["states"], [name]))
                declared.append((name, "float32", (batch, length, size)))
    used = {name for node in nodes for name in node.input}
    weights = {name: array for name, array in weights.items() if name in used}
    return model_of(nodes, [(name, ids_dtype, shape) for name in inputs], declared, weights)


def _positioned(numbering: str, weights: dict[str, Array]) -> list[onnx.NodeProto]:
    """sum_2 → sum_3: with the rows of the table of positions, numbered in one of the ways; without them if empty."""
    weights |= {"padding": np.array(1, np.int64), "axis": np.array(1, np.int64), "zero": np.array([0], np.int64)}
    weights["numbers"] = np.arange(POSITIONS, dtype=np.int64)[None]
    match numbering:
        case "":
            return [helper.make_node("Identity", ["sum_2"], ["sum_3"])]
        case "slice":
            nodes = [
                helper.make_node("Shape", ["input_ids"], ["lengths"], start=1),
                helper.make_node("Slice", ["numbers", "zero", "lengths", "one"], ["rows"]),
            ]
        case _:
            nodes = [
                helper.make_node("Equal", ["input_ids", "padding"], ["is_padding"]),
                helper.make_node("Not", ["is_padding"], ["is_token"]),
                helper.make_node("Cast", ["is_token"], ["tokens"], to=TensorProto.INT64),
                helper.make_node("CumSum", ["tokens", "axis"], ["counts"]),
                helper.make_node("Mul", ["counts", "tokens"], ["numbered"]),
                helper.make_node("Add", ["numbered", "padding"], ["rows"]),
            ]
    return [
        *nodes,
        helper.make_node("Gather", ["positions", "rows"], ["position_rows"]),
        helper.make_node("Add", ["sum_2", "position_rows"], ["sum_3"]),
    ]


def flat_encoder() -> onnx.ModelProto:
    """input_ids [sequence] → last_hidden_state [1, sequence, 1]: an encoder that reads one text at a time."""
    return model_of(
        [
            helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["numbers", "shape"], ["last_hidden_state"]),
        ],
        [("input_ids", "int64", ("sequence",))],
        [("last_hidden_state", "float32", (1, "sequence", 1))],
        {"shape": np.array([1, -1, 1], np.int64)},
    )


def _masked_mean(states: str, result: str, masked: bool) -> list[onnx.NodeProto]:
    """[b, s, size] → [b, size]: over the tokens where the mask is 1, or over all."""
    if not masked:
        return [helper.make_node("ReduceMean", [states, "one"], [result], keepdims=0)]
    mask, total, count = f"{result}_mask", f"{result}_total", f"{result}_count"
    return [
        helper.make_node("Cast", ["attention_mask"], [f"{mask}_flat"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", [f"{mask}_flat", "two"], [mask]),
        helper.make_node("Mul", [states, mask], [f"{mask}_states"]),
        helper.make_node("ReduceSum", [f"{mask}_states", "one"], [total], keepdims=0),
        helper.make_node("ReduceSum", [mask, "one"], [f"{count}_real"], keepdims=0),
        helper.make_node("Max", [f"{count}_real", "at_least"], [count]),
        helper.make_node("Div", [total, count], [result]),
    ]
