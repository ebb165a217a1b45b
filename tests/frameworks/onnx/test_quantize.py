"""int8 copies of graphs: compared with onnxruntime's quantizer and fp32, refused at large errors, cached."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel
from frameworks.core.progress import working
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.quantization import saturation
from frameworks.onnx.quantization.saturation import round_to_range
from frameworks.quantization.comparison import row_cosines
from frameworks.quantization.ranges import HALVED, PAIRED, WHOLE, WeightRange
from frameworks.types import Array, TensorBatch
from tests.frameworks.models.loading import load_onnx, rows_of
from tests.support.models import onnx_encoders, onnx_graphs, onnx_perceptrons
from tests.support.models.text_files import TEXTS, write_json, write_tokenizer
from tests.support.works import ended_phases

ROOT = Path(__file__).parents[3]
X = np.random.default_rng(1).random((20, onnx_perceptrons.SIZE)).astype(np.float32)


def answer(model: object, x: Array = X) -> Array:
    assert isinstance(model, OnnxModel)
    y = model.infer(TensorBatch({"x": x}))["y"]
    assert isinstance(y, np.ndarray)
    return y


def copies_in(cache: Path) -> list[Path]:
    return sorted((cache / "quantized").glob("*/model.onnx"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with a graph that can be quantized."""
    (tmp_path / "model").mkdir()
    onnx_graphs.save(onnx_perceptrons.product(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("weight_range", [WHOLE, HALVED], ids=lambda each: each.name)
def test_copy_agrees_with_onnxruntime_quantizer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight_range: WeightRange
) -> None:
    is_exact = weight_range is HALVED or saturation.exact_range() is WHOLE
    monkeypatch.setattr(saturation, "exact_range", lambda: weight_range)
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    quantize_dynamic(
        str(folder / "model.onnx"),
        str(tmp_path / "theirs.onnx"),
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        reduce_range=weight_range is HALVED,
        weight_type=QuantType.QInt8,
    )
    theirs = onnx_graphs.session(tmp_path / "theirs.onnx").run(None, {"x": X})[0]
    np.testing.assert_allclose(answer(model), theirs, rtol=1e-5, atol=1e-5)
    fp32 = X @ onnx_perceptrons.weights()
    assert not np.allclose(answer(model), fp32, atol=1e-4)
    assert row_cosines(answer(model), fp32).min() > (0.999 if is_exact else 0.9)


def test_making_of_copy_counts_its_phases(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ended_phases(monkeypatch)
    with working("load", "m"):
        for _ in range(2):  # the second load finds the copy
            load_onnx(folder, quantized="mixed", min_cosine=0.5, cache_dir=tmp_path / "cache")
    assert {(each.kind, each.name) for each in ended} == {("quantize", "m")}
    assert [each.what for each in ended] == [
        "measuring the products", "choosing the products", "writing the copy", "comparing with the original",
    ]  # fmt: skip
    assert all(0 < each.done <= each.total for each in ended[:2])


@pytest.mark.parametrize("is_external", [False, True])
def test_paired_copy_holds_paired_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_external: bool
) -> None:
    monkeypatch.setattr(saturation, "exact_range", lambda: PAIRED)
    if is_external:
        monkeypatch.setattr("frameworks.onnx.quantization.graph._MAX_SINGLE_FILE_BYTES", 1)
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    [copy] = copies_in(tmp_path / "cache")
    held = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(str(copy)).graph.initializer}
    rounded, scale = round_to_range(onnx_perceptrons.weights(), PAIRED)
    [name] = [name for name in held if name.endswith("_quantized")]
    np.testing.assert_array_equal(held[name], rounded)
    np.testing.assert_array_equal(held[name.replace("_quantized", "_scale")], scale)
    assert row_cosines(answer(model), X @ onnx_perceptrons.weights()).min() > 0.999
    report = model.spec.quantization
    assert report is not None
    assert (report.kernel, report.weights) == ("onnxruntime", "paired")
    assert report.bytes_after == sum(file.stat().st_size for file in copy.parent.glob("model.onnx*"))


def test_copy_of_another_cpu_is_not_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, capability in enumerate(("x86_64 avx2", "x86_64 avx512_vnni", "x86_64 avx2")):
        monkeypatch.setattr("frameworks.onnx.quantization.copy.cpu_capability", lambda named=capability: named)
        load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
        assert len(copies_in(tmp_path / "cache")) == min(number + 1, 2)


@pytest.mark.parametrize(("original_s", "warns"), [(0.001, True), (0.004, False)])
def test_slower_copy_served_with_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, original_s: float, warns: bool
) -> None:
    times = iter([original_s, 0.002] * 3)
    monkeypatch.setattr("frameworks.quantization.comparison._seconds", lambda *_: next(times))
    for _ in range(2):  # the second load finds the copy and its figures
        with capture_logs() as logs:
            model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
        assert model.spec.quantization is not None
        found = [
            (each["model"], each["original_ms"], each["quantized_ms"])
            for each in logs
            if "slower than its original" in each["event"]
        ]
        assert found == ([("m", 1.0, 2.0)] if warns else [])


def test_report_has_measured_figures(folder: Path, tmp_path: Path) -> None:
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    report = model.spec.quantization
    assert report is not None
    [copy] = copies_in(tmp_path / "cache")
    assert (report.scheme, report.bytes_before) == ("int8", (folder / "model.onnx").stat().st_size)
    assert report.bytes_after == copy.stat().st_size == model.spec.memory_bytes
    assert report.bytes_after < report.bytes_before / 2
    assert 0.999 < report.cosine_min <= report.cosine_mean <= 1
    assert report.speedup > 0
    types = [node.op_type for node in onnx.load(copy).graph.node]
    assert "MatMulInteger" in types
    assert "MatMul" not in types


def test_gemm_is_quantized(folder: Path, tmp_path: Path) -> None:
    onnx_graphs.save(onnx_perceptrons.gemm(), folder)
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    np.testing.assert_allclose(answer(model), X @ onnx_perceptrons.weights() + 1, atol=0.05)
    assert model.spec.memory_bytes < (folder / "model.onnx").stat().st_size / 2


def test_quantized_copy_is_batched(folder: Path, tmp_path: Path) -> None:
    """The largest value of another row changes the rounding; that does not prevent batching."""
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    model.warm_up()
    assert model.spec.unbatched_because is None
    assert model.spec.batched_inputs == {"x"}


def test_quantized_graph_that_mixes_rows_is_unbatched(folder: Path, tmp_path: Path) -> None:
    graph = onnx_perceptrons.product()
    graph.graph.node[0].output[0] = "products"
    graph.graph.node.extend(
        [
            onnx.helper.make_node("CumSum", ["products", "rows"], ["y"]),
        ]
    )
    graph.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "rows"))
    onnx_graphs.save(graph, folder)
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
    model.warm_up()
    assert model.spec.unbatched_because is not None
    assert "differs" in model.spec.unbatched_because


@pytest.mark.parametrize("quantized", [None, False])
def test_unquantized_entry_serves_original(folder: Path, tmp_path: Path, quantized: bool | None) -> None:
    model = load_onnx(folder, quantized=quantized, cache_dir=tmp_path / "cache")
    assert model.spec.quantization is None
    assert not (tmp_path / "cache").exists()


def test_disabled_quantization_serves_original(folder: Path, tmp_path: Path) -> None:
    model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache", enable_quantization=False)
    assert model.spec.quantization is None
    np.testing.assert_allclose(answer(model), X @ onnx_perceptrons.weights(), atol=1e-5)


def test_existing_copy_needs_no_onnx_import(folder: Path, tmp_path: Path) -> None:
    first = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache").spec.quantization
    code = (
        "import sys; from pathlib import Path; from tests.frameworks.models.loading import load_onnx\n"
        f"model = load_onnx(Path({str(folder)!r}), quantized=True, cache_dir=Path({str(tmp_path / 'cache')!r}))\n"
        "assert 'onnx' not in sys.modules, 'imported'; print(repr(model.spec.quantization))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == [repr(first)], done.stderr


def test_changed_external_data_makes_new_copy(folder: Path, tmp_path: Path) -> None:
    """The folder of the model does not change."""
    for weight in (onnx_perceptrons.weights(), 2 * onnx_perceptrons.weights()):
        onnx.save(
            onnx_perceptrons.product(weight),
            str(folder / "model.onnx"),
            save_as_external_data=True,
            location="weights",
            size_threshold=0,
        )
        before = sorted(folder.iterdir())
        model = load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")
        np.testing.assert_allclose(answer(model), X @ weight, atol=0.1)
        assert sorted(folder.iterdir()) == before
        (folder / "weights").unlink()
    assert len(copies_in(tmp_path / "cache")) == 2


def test_graph_without_matmul_is_refused(folder: Path, tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.add(), folder)
    with pytest.raises(
        InvalidModel, match=r"expected a MatMul or Gemm with constant float32 weights, got none; remove quantized"
    ):
        load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")


def test_graph_without_trial_inputs_is_refused(folder: Path, tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.pairs(), folder)
    with pytest.raises(InvalidModel, match=r"cannot be compared with its quantized copy.*set input_shape"):
        load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")


def test_unwritable_cache_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(InvalidModel, match=r"models\.cache_dir = .*cache"):
        load_onnx(folder, quantized=True, cache_dir=tmp_path / "cache")


class TestSensitive:
    """Six products; dynamic int8 ruins one of them."""

    @pytest.fixture
    def graph(self, folder: Path) -> Path:
        onnx_graphs.save(onnx_perceptrons.six_products(), folder)
        return folder

    def test_sensitive_matmul_stays_fp32(self, graph: Path, tmp_path: Path) -> None:
        for quantized in (True, "mixed"):
            cache = tmp_path / str(quantized)
            model = load_onnx(graph, quantized=quantized, cache_dir=cache)
            nodes = onnx.load(copies_in(cache)[0]).graph.node
            assert [node.name for node in nodes if node.op_type == "MatMul"] == ["harmed"]
            fp32 = onnx_graphs.session(graph / "model.onnx").run(None, {"x": X})[0]
            assert row_cosines(answer(model), fp32).min() > 0.988

    def test_quantized_sensitive_matmul_refuses_load(
        self, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("frameworks.onnx.quantization.mixed._OUTLIER_FACTOR", np.inf)
        cache = tmp_path / "cache"
        with pytest.raises(InvalidModel, match=r'at worst.*expected min_cosine 0\.97; quantized = "mixed"'):
            load_onnx(graph, quantized=True, cache_dir=cache)
        # The cached copy is refused too, unless the entry accepts it.
        with pytest.raises(InvalidModel, match=r"expected min_cosine 0\.9;"):
            load_onnx(graph, quantized=True, cache_dir=cache, min_cosine=0.9)
        model = load_onnx(graph, quantized=True, cache_dir=cache, min_cosine=0)
        assert model.spec.quantization is not None
        assert model.spec.quantization.cosine_min < 0.9
        assert len(copies_in(cache)) == 1


class TestText:
    @pytest.fixture
    def encoder(self, folder: Path) -> Path:
        write_tokenizer(folder)
        write_json(folder / "config.json", {"model_type": "bert"})
        onnx_graphs.save(onnx_encoders.encoder(("last_hidden_state", "pooler_output")), folder)
        return folder

    def test_tokenizer_is_read_from_model_folder(self, encoder: Path, tmp_path: Path) -> None:
        model = load_onnx(encoder, quantized=True, cache_dir=tmp_path / "cache")
        assert model.spec.task == "embed"
        assert model.spec.quantization is not None
        cosines = row_cosines(rows_of(load_onnx(encoder), [*TEXTS]), rows_of(model, [*TEXTS]))
        assert model.spec.quantization.cosine_min > 0.99
        assert cosines.min() > 0.99
        assert not np.allclose(cosines, 1, atol=1e-7)

    def test_fixed_size_graph_is_quantized(self, encoder: Path, tmp_path: Path) -> None:
        onnx_graphs.save(onnx_encoders.encoder(("pooler_output",), shape=(2, 16)), encoder)
        for quantized in (True, "mixed"):
            model = load_onnx(encoder, quantized=quantized, cache_dir=tmp_path / "cache")
            assert rows_of(model, ["steam", "the cat", "on"]).shape == (3, 8)
