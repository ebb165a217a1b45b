"""Graphs with a tokenizer: which of them read text, their results, and their sizes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors.numpy import save_file
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidInput, InvalidModel, OutOfMemory
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.types import Array, TensorBatch, TokenBatch
from tests.frameworks.models.loading import load_onnx, rows_of
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.text_files import TEXTS, change_json, write_json, write_sentence_transformers, write_tokenizer

MakeModel = Callable[..., OnnxTextModel]


@pytest.fixture
def text_model(tmp_path: Path) -> MakeModel:
    """Load and warm up a graph with a tokenizer."""

    def make(graph: onnx.ModelProto, **config: Any) -> OnnxTextModel:
        place(graph, tmp_path, **config)
        model = load_onnx(tmp_path)
        assert isinstance(model, OnnxTextModel)
        model.warm_up()
        return model

    return make


def place(graph: onnx.ModelProto, folder: Path, **config: Any) -> None:
    onnx_graphs.save(graph, folder)
    write_tokenizer(folder)
    if config:
        change_json(folder / "config.json", **config)


def one_by_one(graph: onnx.ModelProto, model: OnnxTextModel, output: str) -> list[Array]:
    """Return ONNX Runtime's output for each of TEXTS alone, without padding."""
    assert model.tokenizer is not None
    raw = onnx_graphs.session(graph)
    results = []
    for ids in model.tokenizer.tokenize(list(TEXTS), truncate=True):
        feeds: dict[str, Array] = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "token_type_ids": np.zeros((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
        }
        wanted = {argument.name: argument.type for argument in raw.get_inputs()}
        narrow = {name: feeds[name].astype(np.int32 if "32" in kind else np.int64) for name, kind in wanted.items()}
        results.append(raw.run([output], narrow)[0][0])
    return results


def close(ours: Array, reference: list[Array]) -> None:
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, np.stack(reference), rtol=0, atol=1e-6)


POOLINGS: dict[str, Callable[[Array], Array]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "max": lambda states: states.max(axis=0),
    "lasttoken": lambda states: states[-1],
}
WEIGHTED = np.arange(1, 1000, dtype=np.float32)[:, None]
"""Weights of the tokens of a text by their places."""


class TestHeads:
    def test_modules_after_pooling_are_computed(self, text_model: MakeModel, tmp_path: Path) -> None:
        """`sentence_embedding` of a graph has them within; states have not."""
        write_sentence_transformers(tmp_path, more_modules=["Dense"])
        change_json(tmp_path / "1_Pooling" / "config.json", pooling_mode=["weightedmean", "cls"])
        weight = np.random.default_rng(5).standard_normal((3, 16), np.float32)
        sizes = {"in_features": 16, "out_features": 3, "bias": False, "activation_function": "torch.nn.ReLU"}
        write_json(tmp_path / "2_Dense" / "config.json", sizes)
        save_file({"linear.weight": weight}, tmp_path / "2_Dense" / "model.safetensors")
        graph = onnx_encoders.encoder(("last_hidden_state",))
        model = text_model(graph)
        assert model.spec.text is not None
        assert (model.spec.text.embedding_size, model.spec.text.pooling) == (3, "weightedmean+cls")
        states = one_by_one(graph, model, "last_hidden_state")
        places = [WEIGHTED[: len(state)] for state in states]
        means = [(state * place).sum(axis=0) / place.sum() for state, place in zip(states, places, strict=True)]
        pooled = [np.concatenate([mean, state[0]]) for mean, state in zip(means, states, strict=True)]
        close(rows_of(model, list(TEXTS)), [np.maximum(weight @ each, 0) for each in pooled])

    @pytest.mark.parametrize("pooling", list(POOLINGS))
    def test_states_are_pooled_as_configured(self, text_model: MakeModel, tmp_path: Path, pooling: str) -> None:
        write_sentence_transformers(tmp_path, pooling, normalize=False)
        graph = onnx_encoders.encoder(("last_hidden_state", "pooler_output"))
        model = text_model(graph)
        assert (model.spec.task, model.spec.text and model.spec.text.normalize) == ("embed", False)
        states = one_by_one(graph, model, "last_hidden_state")
        close(rows_of(model, list(TEXTS)), [POOLINGS[pooling](state) for state in states])

    @pytest.mark.parametrize("beside", [False, True], ids=["above", "beside"])
    def test_graph_of_hub_layout_reads_texts(self, tmp_path: Path, beside: bool) -> None:
        graph = onnx_encoders.encoder(("last_hidden_state",))
        (tmp_path / "onnx").mkdir()
        onnx_graphs.save(graph, tmp_path / "onnx")
        described = tmp_path / "onnx" if beside else tmp_path
        write_tokenizer(described)
        write_sentence_transformers(described, "cls", normalize=False)
        (tmp_path / "model.safetensors").write_bytes(b"of PyTorch")
        for path in (tmp_path, tmp_path / "onnx" / "model.onnx"):
            model = load_onnx(path)
            assert isinstance(model, OnnxTextModel)
            model.warm_up()
            states = one_by_one(graph, model, "last_hidden_state")
            close(rows_of(model, list(TEXTS)), [POOLINGS["cls"](state) for state in states])

    def test_embedding_size_and_matryoshka_are_read(self, text_model: MakeModel, tmp_path: Path) -> None:
        write_json(tmp_path / "config.json", {"matryoshka_dimensions": [2, 8, 16]})
        text = text_model(onnx_encoders.encoder(("last_hidden_state",))).spec.text
        assert text is not None
        assert (text.embedding_size, text.shorter_sizes) == (8, (2,))

    def test_missing_files_mean_normalized_mean(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("last_hidden_state",))
        model = text_model(graph)
        assert model.spec.text is not None
        assert model.spec.text.normalize
        states = one_by_one(graph, model, "last_hidden_state")
        close(rows_of(model, list(TEXTS)), [state.mean(axis=0) for state in states])

    @pytest.mark.parametrize(
        ("outputs", "files", "read"),
        [
            (("last_hidden_state", "sentence_embedding", "pooler_output"), True, "sentence_embedding"),
            (("last_hidden_state", "sentence_embedding"), False, "sentence_embedding"),
            (("last_hidden_state", "pooler_output"), False, "pooler_output"),
            (("pooler_output",), False, "pooler_output"),
            (("last_hidden_state", "text_embeds"), False, "text_embeds"),
        ],
    )
    def test_pooled_output_is_used_directly(
        self, text_model: MakeModel, tmp_path: Path, outputs: tuple[str, ...], files: bool, read: str
    ) -> None:
        if files:
            write_sentence_transformers(tmp_path, "cls")
        graph = onnx_encoders.encoder(outputs)
        model = text_model(graph)
        assert model.spec.task == "embed"
        close(rows_of(model, list(TEXTS)), one_by_one(graph, model, read))

    @pytest.mark.parametrize("name", ["token_embeddings", "output_0", "hidden"])
    def test_states_of_any_name_are_pooled(self, text_model: MakeModel, name: str) -> None:
        graph = onnx_encoders.encoder((name,))
        model = text_model(graph)
        close(rows_of(model, list(TEXTS)), [state.mean(axis=0) for state in one_by_one(graph, model, name)])

    @pytest.mark.parametrize("config", [{}, {"architectures": ["BertForSequenceClassification"]}])
    def test_logits_make_a_classifier(self, text_model: MakeModel, config: Any) -> None:
        graph = onnx_encoders.encoder(("logits",), labels=2)
        model = text_model(graph, **config)
        assert model.spec.task == "classify"
        close(rows_of(model, list(TEXTS)), one_by_one(graph, model, "logits"))

    def test_config_selects_logits_beside_states(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("last_hidden_state", "logits"))
        assert text_model(graph).spec.task == "embed"
        model = text_model(graph, architectures=["BertForSequenceClassification"])
        assert model.spec.task == "classify"
        close(rows_of(model, list(TEXTS)), one_by_one(graph, model, "logits"))

    @pytest.mark.parametrize("config", [{}, {"architectures": ["BertForMaskedLM"]}])
    def test_language_model_logits_are_not_embeddings(self, tmp_path: Path, config: Any) -> None:
        check_tensors(tmp_path, onnx_encoders.encoder(("token_logits",)), **config)

    def test_language_model_logits_are_not_classes(self, tmp_path: Path) -> None:
        graph = onnx_encoders.encoder(("token_logits",))
        check_tensors(tmp_path, graph, architectures=["BertForSequenceClassification"])

    @pytest.mark.parametrize("head", ["ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice"])
    def test_class_of_other_task_serves_tensors(self, tmp_path: Path, head: str) -> None:
        check_tensors(tmp_path, onnx_encoders.encoder(), architectures=[f"Bert{head}"])

    @pytest.mark.parametrize(
        "graph",
        [
            onnx_graphs.add(),
            onnx_graphs.identity("int64"),
            onnx_encoders.encoder(inputs=("input_ids", "attention_mask", "pixels")),
            onnx_encoders.flat_encoder(),
        ],
        ids=["add", "identity", "another input", "ids of one dimension"],
    )
    def test_graph_without_token_inputs_serves_tensors(self, tmp_path: Path, graph: onnx.ModelProto) -> None:
        check_tensors(tmp_path, graph)

    def test_graph_without_tokenizer_serves_tensors(self, tmp_path: Path) -> None:
        onnx_graphs.save(onnx_encoders.encoder(), tmp_path)
        with capture_logs() as logs:
            model = load_onnx(tmp_path)
        assert (type(model), logs) == (OnnxModel, [])


def check_tensors(folder: Path, graph: onnx.ModelProto, **config: Any) -> None:
    """Check that the graph is served as a tensor model, with a warning."""
    place(graph, folder, **config)
    with capture_logs() as logs:
        model = load_onnx(folder)
    assert (type(model), model.spec.task) == (OnnxModel, "tensor")
    [warning] = logs
    assert warning["log_level"] == "warning"
    assert "not a text encoder" in warning["event"]


class TestInputs:
    @pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
    @pytest.mark.parametrize(
        "inputs",
        [
            ("input_ids", "attention_mask"),
            ("input_ids", "attention_mask", "token_type_ids"),
            ("position_ids", "token_type_ids", "attention_mask", "input_ids"),
        ],
    )
    def test_every_kind_of_input_is_filled(
        self, text_model: MakeModel, inputs: tuple[str, ...], ids_dtype: str
    ) -> None:
        graph = onnx_encoders.encoder(("sentence_embedding",), inputs, ids_dtype=ids_dtype)
        model = text_model(graph)
        close(rows_of(model, list(TEXTS)), one_by_one(graph, model, "sentence_embedding"))

    def test_ids_alone_are_enough(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("sentence_embedding",), ("input_ids",))
        model = text_model(graph)
        alone = np.concatenate([rows_of(model, [text]) for text in TEXTS])
        close(alone, one_by_one(graph, model, "sentence_embedding"))

    def test_text_changed_by_padding_runs_unpadded(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("sentence_embedding",), ("input_ids",))
        model = text_model(graph)
        assert model.spec.text is not None
        assert model.spec.text.unpadded_because == "the row of a padded text differs from its single run"
        close(rows_of(model, list(TEXTS)), one_by_one(graph, model, "sentence_embedding"))

    def test_masked_texts_are_padded(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder(("sentence_embedding",)))
        assert model.spec.text is not None
        assert model.spec.text.unpadded_because is None

    def test_quantized_graph_is_padded(self, tmp_path: Path) -> None:
        # The steps of its activations depend on the texts of a run, padded or not.
        place(onnx_encoders.encoder(("pooler_output",)), tmp_path)
        plain = (tmp_path / "model.onnx").rename(tmp_path / "plain.onnx")
        quantize_dynamic(plain, tmp_path / "model.onnx", weight_type=QuantType.QUInt8)
        model = load_onnx(tmp_path)
        model.warm_up()
        assert model.spec.text is not None
        assert model.spec.text.unpadded_because is None

    def test_text_model_accepts_tensors(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder(("last_hidden_state",)))
        ones = np.ones((2, 5), np.int64)
        answer = model.infer(TensorBatch({"input_ids": ones, "attention_mask": ones}))
        assert {name: np.shape(value) for name, value in answer.items()} == {"last_hidden_state": (2, 5, 8)}  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            model.infer(TensorBatch({"input_ids": ones}))


class TestPositions:
    @pytest.mark.parametrize(("numbering", "usable"), [("after padding", 38), ("slice", 40)])
    @pytest.mark.parametrize("config", [{}, {"model_type": "xlm-roberta", "max_position_embeddings": 40}])
    def test_limit_is_usable_positions(self, tmp_path: Path, numbering: Any, usable: int, config: Any) -> None:
        graph = onnx_encoders.encoder(("last_hidden_state",), positions=numbering)
        onnx_graphs.save(graph, tmp_path)
        write_tokenizer(tmp_path, "roberta")
        write_json(tmp_path / "config.json", {"pad_token_id": 1, **config})
        model = load_onnx(tmp_path)
        assert isinstance(model, OnnxTextModel)
        model.warm_up()
        assert model.spec.text is not None
        assert model.spec.text.max_tokens == usable
        assert model.tokenizer is not None
        [ids] = model.tokenizer.tokenize(["cat " * 99], truncate=True)
        assert len(ids) == usable
        assert np.isfinite(rows_of(model, ["cat " * 99])).all()
        with pytest.raises(InvalidInput, match=f"expected at most {usable} tokens, got 101"):
            model.tokenizer.tokenize(["cat " * 99], truncate=False)

    def test_graph_without_positions_keeps_limit(self, text_model: MakeModel) -> None:
        text = text_model(onnx_encoders.encoder(vocabulary_size=100), max_position_embeddings=200).spec.text
        assert text is not None
        assert text.max_tokens == 200


class TestFixedSizes:
    def test_fixed_rows_run_texts_of_one_length(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder(("sentence_embedding",), ("input_ids",), (3, "sequence")))
        assert model.spec.text is not None
        assert model.spec.text.unpadded_because is not None
        free = onnx_encoders.encoder(("sentence_embedding",), ("input_ids",))
        close(rows_of(model, list(TEXTS)), one_by_one(free, model, "sentence_embedding"))

    def test_fixed_length_needs_no_trial(self, text_model: MakeModel) -> None:
        # Each text is padded to the length of the graph, alone too.
        model = text_model(onnx_encoders.encoder(("sentence_embedding",), ("input_ids",), ("batch", 16)))
        assert model.spec.text is not None
        assert model.spec.text.unpadded_because is None

    @pytest.mark.parametrize("shape", [(1, 16), (2, 16), ("batch", 16), (3, "sequence")])
    def test_fixed_sizes_are_padded(self, text_model: MakeModel, shape: tuple[int | str, int | str]) -> None:
        model = text_model(onnx_encoders.encoder(("last_hidden_state",), shape=shape))
        assert model.spec.text is not None
        assert model.spec.text.max_tokens == (16 if shape[1] == 16 else 512)
        rows = rows_of(model, list(TEXTS))
        free = onnx_encoders.encoder(("last_hidden_state",))
        close(rows, [state.mean(axis=0) for state in one_by_one(free, model, "last_hidden_state")])

    def test_long_texts_are_cut_at_graph_length(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder(shape=(1, 16)))
        assert model.tokenizer is not None
        [ids] = model.tokenizer.tokenize(["cat " * 99], truncate=True)
        assert len(ids) == 16
        with pytest.raises(InvalidInput, match="expected at most 16 tokens, got 101"):
            model.tokenizer.tokenize(["cat " * 99], truncate=False)

    def test_lower_limit_of_files_holds(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder(shape=(1, 16)), max_position_embeddings=9)
        assert model.spec.text is not None
        assert model.spec.text.max_tokens == 9
        assert rows_of(model, ["cat " * 99]).shape == (1, 8)

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
    def test_rows_match_number_of_texts(self, text_model: MakeModel, count: int) -> None:
        model = text_model(onnx_encoders.encoder(("logits",), shape=(2, 16)))
        assert rows_of(model, ["cat"] * count).shape == (count, 3)


class TestLabels:
    def test_labels_are_those_of_config(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("logits",), labels=3)
        text = text_model(graph, id2label={"0": "fast", "1": "slow", "2": "late"}).spec.text
        assert text is not None
        assert (text.labels, text.multi_label) == (("fast", "slow", "late"), False)

    @pytest.mark.parametrize("config", [{}, {"id2label": {"0": "a", "1": "b"}}])
    def test_other_label_count_gives_numbers(self, text_model: MakeModel, config: Any) -> None:
        text = text_model(onnx_encoders.encoder(("logits",), labels=3), **config).spec.text
        assert text is not None
        assert text.labels == ("LABEL_0", "LABEL_1", "LABEL_2")

    @pytest.mark.parametrize("config", [{}, {"id2label": {"0": "relevant"}}])
    def test_single_label_uses_sigmoid(self, text_model: MakeModel, config: Any) -> None:
        text = text_model(onnx_encoders.encoder(("logits",), labels=1), **config).spec.text
        assert text is not None
        assert len(text.labels) == 1
        assert text.multi_label

    def test_multi_label_uses_sigmoid(self, text_model: MakeModel) -> None:
        graph = onnx_encoders.encoder(("logits",), labels=2)
        text = text_model(graph, problem_type="multi_label_classification").spec.text
        assert text is not None
        assert text.multi_label


class TestTrouble:
    @pytest.mark.parametrize(
        ("file", "content"),
        [
            ("config.json", "{"),
            ("tokenizer.json", "{}"),
            ("tokenizer_config.json", "[]"),
            ("modules.json", "{}x"),
            ("1_Pooling/config.json", '{"pooling_mode": "median"}'),
        ],
    )
    def test_broken_file_is_named(self, tmp_path: Path, file: str, content: str) -> None:
        write_sentence_transformers(tmp_path)
        place(onnx_encoders.encoder(), tmp_path)
        (tmp_path / file).write_text(content)
        with pytest.raises(InvalidModel, match=file):
            load_onnx(tmp_path)

    def test_token_beyond_vocabulary_is_refused(self, tmp_path: Path) -> None:
        place(onnx_encoders.encoder(vocabulary_size=3), tmp_path)
        with pytest.raises(InvalidModel, match=r"the graph does not run on text: .*out of data bounds"):
            load_onnx(tmp_path).warm_up()

    def test_padding_token_is_tried_at_warm_up(self, tmp_path: Path) -> None:
        place(onnx_encoders.encoder(), tmp_path, pad_token_id=4000)
        with pytest.raises(InvalidModel, match=r"the graph does not run on text: .*out of data bounds"):
            load_onnx(tmp_path).warm_up()

    def test_model_that_does_not_fit_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place(onnx_encoders.encoder(), tmp_path)
        model = load_onnx(tmp_path)

        def refuse(*_: object) -> None:
            raise OutOfMemory("it does not fit")

        monkeypatch.setattr(OnnxModel, "run_graph", refuse)
        with pytest.raises(OutOfMemory):
            model.warm_up()

    def test_half_surrogate_pair_is_invalid_input(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder())
        with pytest.raises(InvalidInput, match=r"^text\[1\]: not valid Unicode"):
            rows_of(model, ["fine", "half \ud83d"])

    def test_closed_model_refuses_texts(self, text_model: MakeModel) -> None:
        model = text_model(onnx_encoders.encoder())
        model.close()
        with pytest.raises(Exception, match="closed"):
            model.infer(TokenBatch([[2, 3]]))


def test_prompt_and_length_limit_of_files_hold(text_model: MakeModel, tmp_path: Path) -> None:
    write_sentence_transformers(tmp_path, prompt="query : ", max_seq_length=7)
    write_json(tmp_path / "config.json", {"model_type": "bert", "max_position_embeddings": 512})
    model = text_model(onnx_encoders.encoder())
    assert model.spec.text is not None
    assert model.spec.text.max_tokens == 7
    assert model.tokenizer is not None
    [ids] = model.tokenizer.tokenize(["cat " * 20], truncate=True)
    assert len(ids) == 7
