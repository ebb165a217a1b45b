"""Run MiniLM without a server: tokenize, execute, pool by the mean, normalize."""

import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

_MAX_TOKENS = 256

Tokens = list[list[int]]


class Encoder(Protocol):
    """The interface of both encoders."""

    def tokenize(self, texts: list[str]) -> Tokens:
        """Return the token ids of each text."""

    def embed(self, tokens: Tokens) -> np.ndarray[Any, Any]:
        """Return the embeddings of one batch, float32 [texts, size], of length 1."""


def load_encoder(framework: str, folder: str, threads: int) -> Encoder:
    """Return an encoder with this number of threads for each operator.

    `framework`: onnx, torch, openvino (reads the ONNX graph), ctranslate2, or ctranslate2-int8. Each of the last three
    runs in the environment of its peer.
    """
    match framework:
        case "torch":
            return TorchEncoder(folder, threads)
        case "openvino":
            return OpenVinoEncoder(folder, threads)
        case "ctranslate2" | "ctranslate2-int8":
            return CTranslate2Encoder(
                folder, threads, framework.removeprefix("ctranslate2-").replace("ctranslate2", "float32")
            )
        case _:
            return OnnxEncoder(folder, threads)


class _Tokenizing:
    def __init__(self, folder: str) -> None:
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MAX_TOKENS)

    def tokenize(self, texts: list[str]) -> Tokens:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]


class OnnxEncoder(_Tokenizing):
    """An encoder of ONNX Runtime and numpy."""

    def __init__(self, folder: str, threads: int) -> None:
        import onnxruntime as ort

        super().__init__(folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = ort.InferenceSession(
            str(Path(folder) / "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
            # This fusion is slower than its parts; the limit is the fastest session.
            disabled_optimizers=["SkipLayerNormFusion"],
        )
        self._inputs = {value.name for value in self._session.get_inputs()}

    def embed(self, tokens: Tokens) -> np.ndarray[Any, Any]:
        ids, mask = _padded(tokens)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, {name: value for name, value in feeds.items() if name in self._inputs})[0]
        return _pooled(hidden, mask)


class OpenVinoEncoder(_Tokenizing):
    """OpenVINO with the graph of an ONNX folder, in float32."""

    def __init__(self, folder: str, threads: int) -> None:
        import openvino

        super().__init__(folder)
        settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1}
        model = openvino.Core().compile_model(str(Path(folder) / "model.onnx"), "CPU", settings)
        self._request = model.create_infer_request()
        self._inputs = {name for value in model.inputs for name in value.names}

    def embed(self, tokens: Tokens) -> np.ndarray[Any, Any]:
        ids, mask = _padded(tokens)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        results = self._request.infer({name: value for name, value in feeds.items() if name in self._inputs})
        return _pooled(results[0], mask)


class CTranslate2Encoder(_Tokenizing):
    """CTranslate2 with a BERT of transformers. `compute_type`: float32 or int8."""

    def __init__(self, folder: str, threads: int, compute_type: str) -> None:
        import ctranslate2

        super().__init__(folder)
        with tempfile.TemporaryDirectory() as converted:
            ctranslate2.converters.TransformersConverter(folder).convert(converted, force=True)
            self._encoder = ctranslate2.Encoder(converted, compute_type=compute_type, intra_threads=threads)

    def embed(self, tokens: Tokens) -> np.ndarray[Any, Any]:
        output = self._encoder.forward_batch(tokens)
        return _pooled(np.asarray(output.last_hidden_state), _padded(tokens)[1])


class TorchEncoder(_Tokenizing):
    """An encoder of transformers and torch. `dtype`: torch's name of it. `threads`: 0 is torch's own number."""

    def __init__(self, folder: str, threads: int, device: str = "cpu", dtype: str = "float32") -> None:
        import torch
        from transformers import AutoModel

        super().__init__(folder)
        if threads:
            torch.set_num_threads(threads)
        model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=getattr(torch, dtype))
        self._model = model.to(device).eval()
        self._device = device

    def embed(self, tokens: Tokens) -> np.ndarray[Any, Any]:
        import torch

        ids, mask = (torch.from_numpy(array).to(self._device) for array in _padded(tokens))
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).float()
            mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
            rows: np.ndarray[Any, Any] = torch.nn.functional.normalize(mean).cpu().numpy()
        return rows


def _pooled(hidden: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the mean over the tokens of each text, of length 1."""
    weights = mask.astype(np.float32)
    mean = np.matmul(weights[:, None, :], hidden)[:, 0] / weights.sum(axis=1, keepdims=True)
    rows: np.ndarray[Any, Any] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return rows


def _padded(tokens: Tokens) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    longest = max(map(len, tokens))
    ids = np.zeros((len(tokens), longest), dtype=np.int64)
    mask = np.zeros((len(tokens), longest), dtype=np.int64)
    for row, of_text in enumerate(tokens):
        ids[row, : len(of_text)] = of_text
        mask[row, : len(of_text)] = 1
    return ids, mask
