"""Graphs of encoders with compiled layers: their rows, the choice, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import transformers
from structlog.testing import capture_logs

from frameworks.core.devices import Device, DeviceManager
from frameworks.core.errors import InvalidModel, ModelFailed
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.engine.registries import RegistrySettings, registry_factories
from frameworks.onnx.encoders import choice
from frameworks.onnx.graph_summary import read_graph_summary
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.quantization.original import Original
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.pytorch.encoders import kernels
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.quantization.comparison import OutputComparison, row_cosines
from frameworks.types import TEXT_OUTPUT, Array, TensorBatch
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import NO_COPIES, placed_instances, rows_of
from tests.frameworks.pytorch.compiled.layers import needs_integers, needs_vectors
from tests.support.fake_probe import FakeProbe
from tests.support.models import onnx_encoders, onnx_graphs
from tests.support.models.encoder_families import save_family
from tests.support.models.exported import export_logits, export_outputs
from tests.support.models.text_files import TEXTS, change_json, write_sentence_transformers, write_tokenizer
from tests.support.models.torch_folders import Family, save_classifier, save_embedder

pytestmark = [pytest.mark.isa, needs_vectors]

RAGGED = [*TEXTS, "the engine of steam runs on . " * 20]
CLASSIFIER = transformers.AutoModelForSequenceClassification
Load = Callable[..., list[Any]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load and warm up the instances of a graph."""
    devices = DeviceManager(FakeProbe())
    settings = RegistrySettings(
        performance=PerformanceSettings(intra_op_threads=1), max_model_size=None, cache_dir=tmp_path, ageing_ms=1000
    )
    registry = registry_factories(settings, devices, TensorPool(MemorySettings()))["onnx"]()

    def load_instances(path: Path, **entry: Any) -> list[Any]:
        models = placed_instances(registry, OnnxModelEntry(name="m", path=path, **entry), path, devices)
        for each in models:
            each.warm_up()
        return models

    return load_instances


def check_equal(load: Load, folder: Path, tolerance: float = 2e-5) -> EncoderModel:
    """Compare all rows of ragged texts with those of ONNX Runtime."""
    [graph], [compiled] = load(folder), load(folder, kernels="compiled")
    assert isinstance(graph, OnnxTextModel)
    assert isinstance(compiled, EncoderModel)
    expected, found = rows_of(graph, RAGGED), rows_of(compiled, RAGGED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))
    assert (compiled.spec.task, compiled.spec.labels) == (graph.spec.task, graph.spec.labels)
    assert compiled.spec.text is not None
    assert graph.spec.text is not None
    assert compiled.spec.text.pooling == ("logits" if graph.spec.task == "classify" else graph.spec.text.pooling)
    assert compiled.spec.text.packs
    return compiled


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_rows_equal_those_of_graph(made_once: FolderMaker, tmp_path: Path, load: Load, family: Family) -> None:
    folder = made_once(save_embedder, family=family)
    model = check_equal(load, export_outputs(folder, tmp_path / "graph"))
    [products] = model.spec.products
    assert (products.kernel, products.outputs, products.layers, products.trials) == ("compiled", 32, 2, ())


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_classifier_has_logits_of_graph(made_once: FolderMaker, tmp_path: Path, load: Load, family: Family) -> None:
    folder = made_once(save_classifier, family=family)
    check_equal(load, export_logits(folder, tmp_path / "graph", CLASSIFIER))


def test_cross_encoder_reads_types_of_tokens(copied: FolderMaker, tmp_path: Path, load: Load) -> None:
    folder = copied(save_classifier, family="bert", labels=("relevant",))
    write_tokenizer(folder, token_types=True)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    exported = export_outputs(folder, tmp_path / "graph", CLASSIFIER, ("logits",), inputs)
    scores = []
    for options in ({}, {"kernels": "compiled"}):
        [model] = load(exported, **options)
        pairs = model.tokenizer.tokenize_pairs([("the cat", "sat"), ("steam", "the engine runs on steam")], True)
        assert pairs.token_type_ids is not None
        scores.append(model.infer(pairs)[TEXT_OUTPUT])
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=2e-5)


def test_pooler_of_graph_is_used(made_once: FolderMaker, tmp_path: Path, load: Load) -> None:
    folder = made_once(save_embedder, family="bert")
    exported = export_outputs(folder, tmp_path / "graph", outputs=("last_hidden_state", "pooler_output"))
    model = check_equal(load, exported)
    assert model.spec.text is not None
    assert model.spec.text.pooling == "pooler"


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_pooling_of_files_is_kept(copied: FolderMaker, tmp_path: Path, load: Load, pooling: str) -> None:
    folder = copied(save_embedder, family="bert")
    write_sentence_transformers(folder, pooling)
    check_equal(load, export_outputs(folder, tmp_path / "graph"))


def test_changed_files_make_another_copy(copied: FolderMaker, tmp_path: Path, load: Load) -> None:
    folder = copied(save_embedder, family="bert")
    write_sentence_transformers(folder, "cls")
    exported = export_outputs(folder, tmp_path / "graph")
    check_equal(load, exported)
    write_sentence_transformers(exported, "max")
    check_equal(load, exported)
    assert len([*(tmp_path / "quantized").glob("*-encoder-*/model.safetensors")]) == 2


def test_damaged_copy_is_replaced(copied: FolderMaker, tmp_path: Path, load: Load) -> None:
    folder = copied(save_embedder, family="bert")
    write_sentence_transformers(folder, "cls")
    exported = export_outputs(folder, tmp_path / "graph")
    check_equal(load, exported)
    [pooling] = (tmp_path / "quantized").glob("*-encoder-*/1_Pooling/config.json")
    content = pooling.read_bytes()
    pooling.write_bytes(content[:-2])
    check_equal(load, exported)
    assert pooling.read_bytes() == content


@pytest.mark.parametrize("normalizes", [False, True])
def test_pooling_within_graph_is_computed(copied: FolderMaker, tmp_path: Path, load: Load, normalizes: bool) -> None:
    """As in graphs of sentence-transformers: the vector of a text is an output, normalised or not."""
    folder = copied(save_embedder, family="bert")
    write_sentence_transformers(folder, normalize=normalizes)
    exported = export_outputs(folder, tmp_path / "graph")
    add_pooling(exported / "model.onnx", normalizes)
    [graph], [compiled] = load(exported), load(exported, kernels="compiled")
    expected, found = rows_of(graph, RAGGED), rows_of(compiled, RAGGED)
    if normalizes:
        found = found / np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def add_pooling(file: Path, normalizes: bool) -> None:
    """Let a graph give the mean of the states of each text, of norm 1 if it `normalizes`."""
    model = onnx.load(file)
    graph, make = model.graph, onnx.helper.make_node
    pooled = "pooled" if normalizes else "sentence_embedding"
    graph.node.extend(
        [
            make("Constant", [], ["last_axis"], value_ints=[2]),
            make("Constant", [], ["token_axis"], value_ints=[1]),
            make("Cast", ["attention_mask"], ["flat"], to=onnx.TensorProto.FLOAT),
            make("Unsqueeze", ["flat", "last_axis"], ["weights"]),
            make("Mul", [graph.output[0].name, "weights"], ["weighted"]),
            make("ReduceSum", ["weighted", "token_axis"], ["total"], keepdims=0),
            make("ReduceSum", ["weights", "token_axis"], ["count"], keepdims=0),
            make("Div", ["total", "count"], [pooled]),
        ]
    )
    if normalizes:
        graph.node.append(make("LpNormalization", [pooled], ["sentence_embedding"], axis=1, p=2))
    output = onnx.helper.make_tensor_value_info("sentence_embedding", onnx.TensorProto.FLOAT, ["batch", 32])
    graph.output.append(output)
    onnx.save(model, file)


@needs_integers
def test_quantized_entry_has_int8_layers(copied: FolderMaker, tmp_path: Path, load: Load) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 1}
    folder = copied(save_embedder, family="bert", **sizes)
    exported = export_outputs(folder, tmp_path / "graph")
    [graph] = load(exported)
    try:
        [compiled] = load(exported, quantized=True, kernels="compiled")
    except InvalidModel as error:
        assert "are faster on this CPU" in error.message  # noqa: PT017 - either is right, by the CPU
        return
    assert compiled.spec.quantization.kernel == "compiled"
    cosines: Array = row_cosines(rows_of(graph, RAGGED), rows_of(compiled, RAGGED))
    assert cosines.min() > 0.97


@pytest.mark.parametrize(("seconds", "kernel"), [((2.0, 1.0), "compiled"), ((1.0, 2.0), "onnxruntime")])
def test_auto_keeps_the_faster(
    made_once: FolderMaker,
    tmp_path: Path,
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    seconds: tuple[float, float],
    kernel: str,
) -> None:
    monkeypatch.setattr(choice, "compare", lambda *_: OutputComparison(1.0, 1.0, *seconds))
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    models = load(exported, kernels="auto", instances=2)
    assert len(models) == 2
    for model in models:
        assert isinstance(model, EncoderModel if kernel == "compiled" else OnnxTextModel)
        [products] = model.spec.products
        assert (products.kernel, [each.kernel for each in products.trials]) == (kernel, ["onnxruntime", "compiled"])
        assert rows_of(model, RAGGED).shape == (len(RAGGED), 32)


def test_auto_measures_both(made_once: FolderMaker, tmp_path: Path, load: Load) -> None:
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    [products] = load(exported, kernels="auto")[0].spec.products
    times = {each.kernel: next(iter(each.milliseconds.values())) for each in products.trials}
    assert times[products.kernel] == min(times.values()) > 0


def test_auto_keeps_session_of_other_graphs(tmp_path: Path, load: Load) -> None:
    onnx_graphs.save(onnx_encoders.encoder(("last_hidden_state",)), tmp_path)
    write_tokenizer(tmp_path)
    change_json(tmp_path / "config.json", model_type="bert")
    with capture_logs() as logs:
        [model] = load(tmp_path, kernels="auto")
    assert isinstance(model, OnnxTextModel)
    [line] = [line for line in logs if line["event"] == "the graph keeps ONNX Runtime"]
    assert "none of its weights has the name of a module" in line["reason"]


def test_session_is_closed_beside_compiled_layers(
    made_once: FolderMaker, tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[OnnxModel] = []
    close = OnnxModel.close

    def note(model: OnnxModel) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(OnnxModel, "close", note)
    load(export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph"), kernels="compiled", instances=2)
    assert len(closed) == 2
    for each in closed:
        with pytest.raises(ModelFailed, match="is closed"):
            each.infer(TensorBatch({}))


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def with_other_heads(folder: Path) -> None:
    change_json(folder / "config.json", num_attention_heads=2)


def with_more_layers(folder: Path) -> None:
    change_json(folder / "config.json", num_hidden_layers=3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_config, r"there is no config\.json beside the graph"),
        (with_other_heads, r"compiled layers differ by .* of the largest number on warm-up texts, more than 0\.001"),
        (with_more_layers, r"missing weights of BertModel: encoder\.layer\.2\."),
    ],
)
def test_graph_of_other_model_is_refused(
    made_once: FolderMaker, tmp_path: Path, load: Load, change: Callable[[Path], None], reason: str
) -> None:
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    change(exported)
    with pytest.raises(InvalidModel, match=rf'kernels: expected the graph of an encoder for "compiled", .*{reason}'):
        load(exported, kernels="compiled")


def test_layers_of_other_form_are_refused(made_once: FolderMaker, tmp_path: Path, load: Load) -> None:
    exported = export_outputs(made_once(save_family, architecture="ConvBertModel"), tmp_path / "graph")
    with pytest.raises(InvalidModel, match=r"states of a compiled layer differ .*; remove kernels"):
        load(exported, kernels="compiled")


def test_graph_of_tensors_is_refused(made_once: FolderMaker, tmp_path: Path, load: Load) -> None:
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    (exported / "tokenizer.json").unlink()
    with pytest.raises(InvalidModel, match=r"neither dense vectors of texts nor labels; remove kernels"):
        load(exported, kernels="compiled")


def test_machine_without_compiled_code_is_refused(
    made_once: FolderMaker, tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "lanes", lambda: 0)
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    with pytest.raises(InvalidModel, match=r"nothing is compiled on this machine.*; remove kernels"):
        load(exported, kernels="compiled")
    assert isinstance(load(exported, kernels="auto")[0], OnnxTextModel)


def test_accelerator_keeps_its_provider(made_once: FolderMaker, tmp_path: Path, load: Load) -> None:
    exported = export_outputs(made_once(save_embedder, family="bert"), tmp_path / "graph")
    models = load(exported)
    for wanted in ("auto", "compiled"):
        entry = OnnxModelEntry(name="m", path=exported, kernels=wanted)
        original = Original(exported / "model.onnx", read_graph_summary(exported / "model.onnx"), entry, 0, 1)
        layers = choice.EncoderLayers(original, NO_COPIES, pytest.fail)
        device = Device("cuda", 0, "", 0, 0)
        if wanted == "auto":
            assert layers.choose(models, device) is models
            continue
        with pytest.raises(InvalidModel, match="it runs by CPUExecutionProvider on cuda:0"):
            layers.choose(models, device)


@pytest.mark.parametrize(("quantized", "wanted"), [(True, "auto"), ("mixed", "compiled"), ("mixed", "auto")])
def test_copies_of_onnxruntime_refuse_other_kernels(quantized: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=rf'beside quantized = .*, got "{wanted}"'):
        OnnxModelEntry.model_validate({"name": "m", "path": "m", "quantized": quantized, "kernels": wanted})
