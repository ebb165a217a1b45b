"""config.toml files for the tests: tiny graphs saved where the file says they are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

from tests.e2e.server import MODELS
from tests.support.models import onnx_costly_graphs, onnx_encoders, onnx_graphs
from tests.support.models.onnx_graphs import ONNX_DTYPES


def logarithms() -> onnx.ModelProto:
    """Build x → log x in every floating-point dtype: NaN for a negative number, -infinity for 0."""
    dtypes = ("float32", "float64", "float16", "bfloat16")
    nodes = [helper.make_node("Log", ["x"], ["log"])]
    nodes += [helper.make_node("Cast", ["log"], [dtype], to=ONNX_DTYPES[dtype]) for dtype in dtypes]
    x = helper.make_tensor_value_info("x", ONNX_DTYPES["float32"], None)
    outputs = [helper.make_tensor_value_info(dtype, ONNX_DTYPES[dtype], None) for dtype in dtypes]
    graph = helper.make_graph(nodes, "logarithms", [x], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


ALL_KINDS: Mapping[str, onnx.ModelProto] = {
    **{dtype: onnx_graphs.identity(dtype, None) for dtype in onnx_graphs.ONNX_DTYPES},
    "free-n": onnx_graphs.free("n"),
    "free-nm": onnx_graphs.free("n", "m"),
    "free-nml": onnx_graphs.free("n", "m", "l"),
    "free-last": onnx_graphs.identity("float32", (2, "n")),
    "fixed": onnx_graphs.identity("float32", (2, 3)),
    "zero": onnx_graphs.identity("float32", ("n", 0)),
    "add": onnx_graphs.add(),
    "concat": onnx_graphs.concat(),
    "scaled": onnx_graphs.scaled(),
    "gather": onnx_graphs.gather(),
    "sequence-out": onnx_graphs.sequence_out(),
    "sequence-in": onnx_graphs.sequence_in(),
    "maps-by-string": onnx_graphs.zip_map(),
    "maps-by-int": onnx_graphs.zip_map((3, 5)),
    "map-in": onnx_graphs.map_in(),
    "optional-out": onnx_graphs.optional_out(),
    "optional-in": onnx_graphs.optional_in(),
    "log": logarithms(),
    "slow": onnx_costly_graphs.slow(300, rows=1),
}
"""A graph for each kind of value in requests and responses."""

EMBEDDED = f"""
[[models.onnx_models]]
name = "digits"
path = "{MODELS / "digits"}"
[[models.onnx_models]]
name = "minilm-onnx"
path = "{MODELS / "minilm-onnx"}"
[[models.torch_models]]
name = "minilm"
path = "{MODELS / "minilm"}"
[[models.torch_models]]
name = "tiny-llama"
path = "{MODELS / "tiny-llama"}"
"""
"""The models of the repository's own config.toml."""

DIGITS = EMBEDDED.partition('[[models.onnx_models]]\nname = "minilm-onnx"')[0]


def text_entries(folder: Path) -> str:
    """Save tiny classifiers (one label, several labels, pairs) and an embedder with shorter vectors on request; return
    their entries. The embedder accepts token ids.
    """
    from tests.support.models.text_files import change_json
    from tests.support.models.torch_folders import save_classifier, save_embedder

    save_classifier(folder / "classify")
    save_classifier(folder / "classify-many", problem_type="multi_label_classification")
    save_classifier(folder / "cross-encoder", labels=("LABEL_0",))
    save_embedder(folder / "embed-cuts")
    change_json(folder / "embed-cuts" / "config.json", matryoshka_dimensions=[8, 16])
    save_onnx_classifier(folder / "classify-onnx", ("fast", "slow", "late"))
    return "".join(
        f'[[models.{table}]]\nname = "{name}"\npath = "{folder / name}"\n'
        for table, name in (
            ("torch_models", "classify"), ("torch_models", "classify-many"), ("onnx_models", "classify-onnx"),
            ("torch_models", "cross-encoder"), ("torch_models", "embed-cuts"),
        )
    ) + 'token_ids = "own"\n'  # fmt: skip


def unpadded_entry(folder: Path) -> str:
    """Save a tiny FNet, whose texts padding changes; return its entry."""
    from tests.support.models.encoder_families import save_family

    path = save_family(folder / "fnet", "FNetModel")
    return f'[[models.torch_models]]\nname = "fnet"\npath = "{path}"\n'


def late_entry(folder: Path) -> str:
    """Save a tiny model of late interaction; return its entry."""
    from tests.support.models.late_folders import save_pylate

    return f'[[models.torch_models]]\nname = "colbert"\npath = "{save_pylate(folder / "colbert")}"\n'


def save_onnx_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """Save a tiny classifier of texts with these labels; with one of them it ranks pairs. Return its folder."""
    from tests.support.models.text_files import write_json, write_tokenizer

    write_tokenizer(folder)
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    write_json(folder / "config.json", config | {"id2label": {str(at): label for at, label in enumerate(labels)}})
    onnx_graphs.save(onnx_encoders.encoder(("logits",), labels=len(labels)), folder)
    return folder


def onnx_entries(folder: Path, graphs: Mapping[str, onnx.ModelProto]) -> str:
    """Save each graph as folder/name/model.onnx; return their entries."""
    for name, graph in graphs.items():
        (folder / name).mkdir()
        onnx_graphs.save(graph, folder / name)
    return "".join(f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}"\n' for name in graphs)
