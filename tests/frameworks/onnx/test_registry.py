"""From a path to a model: its file, its size, and the files that it must not read."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from frameworks.core.devices import DeviceManager
from frameworks.core.errors import InvalidModel, OutOfMemory
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings
from frameworks.onnx.graph_summary import read_graph_summary
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.registry import OnnxRegistry, graph_file, weight_bytes_of
from frameworks.quantization.copies import QuantizedCopies
from frameworks.types import TensorBatch
from tests.frameworks.models.loading import listed, load_onnx
from tests.support.fake_probe import FakeProbe
from tests.support.models import onnx_costly_graphs, onnx_graphs


class TestFile:
    def test_file_of_any_name_is_loaded(self, tmp_path: Path) -> None:
        file = onnx_graphs.save(onnx_graphs.identity(), tmp_path / "some graph.onnx")
        assert load_onnx(file).spec.inputs[0].name == "x"

    def test_folder_with_model_onnx_is_loaded(self, tmp_path: Path) -> None:
        file = onnx_graphs.save(onnx_graphs.identity(), tmp_path)
        assert graph_file(tmp_path) == file
        load_onnx(tmp_path)

    def test_folder_without_model_lists_its_files(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match=r"expected a model\.onnx in the folder; name the graph model\.onnx"):
            load_onnx(tmp_path)
        for name in ("b.onnx", "a.onnx"):
            onnx_graphs.save(onnx_graphs.identity(), tmp_path / name)
        with pytest.raises(InvalidModel, match=r"set path to one of its files: a\.onnx, b\.onnx"):
            load_onnx(tmp_path)

    def test_missing_path_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match="no such file or folder"):
            load_onnx(tmp_path / "absent.onnx")

    @pytest.mark.parametrize("content", [b"", b"\0" * 100, b"not a graph", b"\xde\xf6\xe5\x19" * 1000, b"\x08\x0a"])
    def test_other_content_is_refused(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "model.onnx"
        file.write_bytes(content)
        with pytest.raises(InvalidModel, match=r"model\.onnx: onnxruntime cannot load it: ") as caught:
            load_onnx(file)
        assert "\n" not in caught.value.message

    def test_truncated_graph_is_refused(self, tmp_path: Path) -> None:
        whole = onnx_graphs.add().SerializeToString()
        file = tmp_path / "model.onnx"
        refused = 0
        for length in range(0, len(whole), 7):
            file.write_bytes(whole[:length])
            try:
                load_onnx(file)
            except InvalidModel:
                refused += 1
        # A file that is cut between two parts may still be a graph.
        assert refused >= len(range(0, len(whole), 7)) - 2

    def test_custom_operator_is_named(self, tmp_path: Path) -> None:
        onnx_graphs.save(onnx_graphs.custom_op(), tmp_path)
        with pytest.raises(InvalidModel, match=r"com\.example\.magic.*Enchant|Enchant.*com\.example\.magic"):
            load_onnx(tmp_path)

    def test_unsupported_type_is_refused_at_load(self, tmp_path: Path) -> None:
        kind = onnx.TensorProto.FLOAT8E4M3FN
        infos = [onnx.helper.make_tensor_value_info(name, kind, (1,)) for name in "xy"]
        node = onnx.helper.make_node("Identity", ["x"], ["y"])
        graph = onnx.helper.make_graph([node], "g", infos[:1], infos[1:])
        opset = [onnx.helper.make_opsetid("", 21)]
        onnx_graphs.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path)
        with pytest.raises(InvalidModel, match=r'"x": expected a tensor of .*, got tensor\(float8e4m3fn\)'):
            load_onnx(tmp_path)


@pytest.mark.parametrize("mapped", [True, False])
class TestExternalData:
    @staticmethod
    def answers(folder: Path, mapped: bool) -> bool:
        model = load_onnx(folder, enable_memory_mapping=mapped)
        y = listed(model.infer(TensorBatch({"x": np.ones(4, np.float32)}))["y"])
        return bool(y == [1, 2, 3, 4])

    @pytest.mark.parametrize("location", ["model.onnx.data", "weights", "deeper/weights.bin", "./weights"])
    def test_data_inside_folder_is_read(self, tmp_path: Path, location: str, mapped: bool) -> None:
        (tmp_path / location).parent.mkdir(exist_ok=True)
        (tmp_path / location).write_bytes(onnx_costly_graphs.external_bytes())
        onnx_graphs.save(onnx_costly_graphs.external_data(location), tmp_path)
        assert self.answers(tmp_path, mapped)

    @pytest.mark.parametrize("location", ["../secret", "deeper/../../secret", "{outside}", "linked", "link/secret"])
    def test_data_outside_folder_is_refused(self, tmp_path: Path, location: str, mapped: bool) -> None:
        (tmp_path / "secret").write_bytes(onnx_costly_graphs.external_bytes())
        folder = tmp_path / "model"
        (folder / "deeper").mkdir(parents=True)
        (folder / "linked").symlink_to(tmp_path / "secret")
        (folder / "link").symlink_to(tmp_path)
        location = location.format(outside=tmp_path / "secret")
        onnx_graphs.save(onnx_costly_graphs.external_data(location), folder)
        with pytest.raises(InvalidModel, match="cannot load it"):
            load_onnx(folder, enable_memory_mapping=mapped)

    def test_missing_or_short_data_is_refused(self, tmp_path: Path, mapped: bool) -> None:
        onnx_graphs.save(onnx_costly_graphs.external_data("weights"), tmp_path)
        with pytest.raises(InvalidModel, match="cannot load it"):
            load_onnx(tmp_path, enable_memory_mapping=mapped)
        (tmp_path / "weights").write_bytes(onnx_costly_graphs.external_bytes()[:-1])
        with pytest.raises(InvalidModel, match="cannot load it"):
            load_onnx(tmp_path, enable_memory_mapping=mapped)

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
    @pytest.mark.parametrize("location", ["weights", "./weights", "deeper/../weights"])
    def test_data_is_mapped_or_read(self, tmp_path: Path, location: str, mapped: bool) -> None:
        numbers = 100_000
        (tmp_path / "deeper").mkdir()
        (tmp_path / "weights").write_bytes(onnx_costly_graphs.external_bytes(numbers))
        onnx_graphs.save(onnx_costly_graphs.external_data(location, numbers), tmp_path)
        model = load_onnx(tmp_path, enable_memory_mapping=mapped)
        assert (str(tmp_path / "weights") in Path("/proc/self/maps").read_text()) == mapped
        y = model.infer(TensorBatch({"x": np.zeros(numbers, np.float32)}))["y"]
        assert listed(y) == list(range(numbers))


class TestSize:
    def test_size_above_limit_is_refused_with_figures(self, tmp_path: Path) -> None:
        file = onnx_graphs.save(onnx_graphs.add(), tmp_path)
        size = file.stat().st_size
        for limit in (size, None):
            assert load_onnx(file, max_model_bytes=limit).spec.memory_bytes == size
        with pytest.raises(
            InvalidModel, match=rf"expected at most models\.max_model_size = {size - 1} B of weights, got {size} B"
        ):
            load_onnx(file, max_model_bytes=size - 1)

    @pytest.mark.parametrize("location", ["model.onnx.data", "model.onnx_data", "weights", "deeper/w.bin"])
    def test_external_data_counts_to_size(self, tmp_path: Path, location: str) -> None:
        data = tmp_path / location
        data.parent.mkdir(exist_ok=True)
        data.write_bytes(onnx_costly_graphs.external_bytes(5000))
        file = onnx_graphs.save(onnx_costly_graphs.external_data(location, 5000), tmp_path)
        assert weight_bytes_of(file, read_graph_summary(file)) == file.stat().st_size + 20_000
        with pytest.raises(InvalidModel, match="max_model_size"):
            load_onnx(file, max_model_bytes=20_000)

    def test_other_files_do_not_count(self, tmp_path: Path) -> None:
        file = onnx_graphs.save(onnx_graphs.identity(), tmp_path)
        onnx_graphs.save(onnx_graphs.add(), tmp_path / "other.onnx")
        (tmp_path / "model.onnx.bak").write_bytes(b"x" * 10_000)
        assert weight_bytes_of(file, read_graph_summary(file)) == file.stat().st_size

    def test_large_model_is_refused_before_load(self, tmp_path: Path) -> None:
        file = tmp_path / "model.onnx"
        with file.open("wb") as sparse:
            sparse.truncate(2**40)
        with pytest.raises(InvalidModel, match="of weights, got 1 TiB; raise it"):
            load_onnx(file)


def test_onnx_imports_no_torch_or_transformers() -> None:
    code = (
        "import sys, frameworks.onnx.registry, frameworks.manager, frameworks.text.tokenizer; "
        "sys.exit(', '.join({'torch', 'transformers'} & set(sys.modules)) or 0)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_session_has_threads_of_settings(tmp_path: Path) -> None:
    onnx_graphs.save(onnx_graphs.add(), tmp_path)
    registry = OnnxRegistry(
        DeviceManager(FakeProbe()),
        PerformanceSettings(intra_op_threads=2, inter_op_threads=2),
        10**6,
        QuantizedCopies(tmp_path),
    )
    [model] = registry.load(OnnxModelEntry(name="m", path=tmp_path), tmp_path, FakeProbe().host())
    assert isinstance(model, OnnxModel)
    assert model._session is not None
    options = model._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 2)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert options.graph_optimization_level.name == "ORT_ENABLE_ALL"
    model.warm_up()


def test_large_batch_raises_out_of_memory(tmp_path: Path) -> None:
    model = load_onnx(onnx_graphs.save(onnx_costly_graphs.blow_up(), tmp_path))
    with pytest.raises(OutOfMemory, match="the batch does not fit into memory"):
        model.infer(TensorBatch({"rows": np.array([2**46], np.int64)}))
    assert listed(model.infer(TensorBatch({"rows": np.array([2], np.int64)}))["zeros"]) == [0, 0]


def test_seven_rows_run_after_eight_failed(tmp_path: Path) -> None:
    model = load_onnx(onnx_graphs.save(onnx_costly_graphs.hoards(), tmp_path))
    model.warm_up()
    assert model.spec.batched_inputs == {"x"}
    for x in (range(8), [1000]):
        with pytest.raises(OutOfMemory, match="the batch does not fit into memory"):
            model.infer(TensorBatch({"x": np.array(x, np.int64)}))
        assert listed(model.infer(TensorBatch({"x": np.arange(7)}))["y"]) == [*range(7)]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code … Status Message: {message}")
        for message in (
            "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 939524",
            "Available memory of 19968 is smaller than requested bytes of 1572864",
            "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);",
            "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0 ; expr=cublasCreate(&cublas_handle_)",
            "CUDNN failure 4: CUDNN_STATUS_ALLOC_FAILED ; GPU=0",
            "std::bad_alloc",
            "bad allocation",
        )
    ]
    + [MemoryError(), MemoryError("std::bad_alloc")],
)
def test_allocation_error_of_onnxruntime_is_recognised(tmp_path: Path, error: Exception) -> None:
    """Messages of ONNX Runtime 1.15 to 1.31."""

    class Session:
        def run(self, *_: object) -> None:
            raise error

    model = load_onnx(onnx_graphs.save(onnx_graphs.add(), tmp_path))
    assert isinstance(model, OnnxModel)
    model._session = Session()
    with pytest.raises(OutOfMemory, match="the batch does not fit into memory"):
        model.infer(TensorBatch({"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}))
