"""Test which files of a source are selected, and under which names they are saved."""

import json
from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel
from frameworks.sources.contract import Framework, RemoteFile
from frameworks.sources.served_files import MAX_LISTED_FILES, Selection, select_files

ENCODER = [
    "README.md", "config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "rust_model.ot", "train.py",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "modules.json",
    "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json", "onnx/model.onnx",
    "onnx/model_O4.onnx", "openvino/openvino_model.bin", "data_config.json", ".gitattributes",
    "2_Dense/pytorch_model.bin",
]  # fmt: skip
SHARDED = [
    "config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "consolidated.safetensors", "adapter_model.safetensors", "tokenizer.json",
    "chat_template.jinja", "tokenizer.model",
]  # fmt: skip
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
GRAPHS = [
    "model.onnx", "model.onnx_data", "model.onnx_data_1", "model.onnx.data", "model.data", "model.bin", "model.py",
    "model_fp16.onnx", "model_fp16.onnx_data", "model.onnx.py", "model.safetensors.index.json", "model.pkl",
]  # fmt: skip


def select(
    names: list[str], framework: Framework | None = None, address: str = "hf://org/name", index: object = INDEX
) -> Selection:
    files = [RemoteFile(name, 3, "etag") for name in names]
    return select_files(parse_address(address), files, framework, lambda file: json.dumps(index).encode())


def saved(*arguments: object, **options: object) -> list[str]:
    return [each.name for each in select(*arguments, **options).files]  # type: ignore[arg-type]


def test_encoder_is_selected_without_pickles() -> None:
    selection = select(ENCODER)
    assert selection.framework == "pytorch"
    assert selection.total_bytes == 3 * len(selection.files)
    assert [each.name for each in selection.files] == [
        "1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors",
        "modules.json", "sentence_bert_config.json", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.txt",
    ]  # fmt: skip


def test_files_of_images_are_selected() -> None:
    names = ["config.json", "labels.txt", "model.onnx", "preprocessor_config.json", "processor_config.json"]
    assert saved([*names, "notes.txt", "preprocess.py"]) == names
    clip = ["0_CLIPModel/config.json", "0_CLIPModel/model.safetensors", "0_CLIPModel/preprocessor_config.json"]
    assert saved([*clip, "modules.json"]) == [*clip, "modules.json"]


def test_graph_below_encoder_is_saved_at_top() -> None:
    files = {each.name: each.remote.name for each in select(ENCODER, "onnx").files}
    assert files["model.onnx"] == "onnx/model.onnx"
    assert files["tokenizer.json"] == "tokenizer.json"
    assert files["1_Pooling/config.json"] == "1_Pooling/config.json"
    assert "model.safetensors" not in files


def test_index_selects_its_shards_only() -> None:
    assert saved(SHARDED) == sorted(
        set(SHARDED) - {"consolidated.safetensors", "adapter_model.safetensors", "tokenizer.model"}
    )


def test_single_weights_win_over_index() -> None:
    names = saved([*SHARDED, "model.safetensors"])
    assert [name for name in names if "safetensors" in name] == ["model.safetensors"]


def test_weights_in_first_module_are_selected() -> None:
    names = ["modules.json", "0_Transformer/config.json", "0_Transformer/model.safetensors", "0_Transformer/a.bin"]
    assert saved(names) == ["0_Transformer/config.json", "0_Transformer/model.safetensors", "modules.json"]


def test_external_data_is_selected_by_name() -> None:
    assert saved(GRAPHS, "onnx") == [
        "model.bin", "model.data", "model.onnx", "model.onnx.data", "model.onnx_data", "model.onnx_data_1",
    ]  # fmt: skip
    assert saved(GRAPHS, "onnx", "hf://org/name/model_fp16.onnx") == ["model.onnx", "model_fp16.onnx_data"]


def test_external_data_named_by_tensors_is_selected() -> None:
    tensors = ["Constant_7_attr__value", "encoder.layer.0.dense.weight", "layer.bias", "onnx__MatMul_4321"]
    others = ["weights.py", "pytorch_model.bin", "onnx__MatMul_1.py", ".weight"]
    names = [f"onnx/{name}" for name in ["model.onnx", *tensors, *others]] + ["other.weight"]
    assert saved(names, "onnx") == sorted(["model.onnx", *tensors])


def test_text_file_beside_graph_wins() -> None:
    names = ["onnx/model.onnx", "onnx/config.json", "config.json", "tokenizer.json"]
    files = {each.name: each.remote.name for each in select(names).files}
    assert files == {
        "config.json": "onnx/config.json",
        "model.onnx": "onnx/model.onnx",
        "tokenizer.json": "tokenizer.json",
    }


def test_folder_of_bucket_is_selected() -> None:
    names = ["a/config.json", "a/model.safetensors", "config.json", "model.safetensors", "ab/tokenizer.json"]
    selection = select(names, address="s3://bucket/a")
    assert [(each.name, each.remote.name) for each in selection.files] == [
        ("config.json", "a/config.json"),
        ("model.safetensors", "a/model.safetensors"),
    ]


@pytest.mark.parametrize(
    ("names", "framework", "address", "message"),
    [
        (
            ["pytorch_model.bin", "config.json"],
            "pytorch",
            "hf://o/n",
            r"got pytorch_model\.bin; pickles are not served",
        ),
        (["a.bin"], None, "hf://o/n", r"expected model\.safetensors, .* or onnx/model\.onnx, got a\.bin; pickles"),
        ([], None, "hf://o/n", "got no files"),
        (["README.md"], "onnx", "s3://b", "got 1 other files"),
        (["onnx/model_q4.onnx"], "onnx", "hf://o/n", r"got onnx/model_q4\.onnx; name one \.onnx file in the address"),
        (["other.onnx"], "onnx", "s3://b/model.onnx", r"expected model\.onnx, got other\.onnx"),
        (["model.onnx"], "pytorch", "s3://b/model.onnx", r"expected a folder with safetensors, got an \.onnx file"),
        (["model.onnx", "model.onnx"], "onnx", "s3://b", "twice"),
        (["model.safetensors.index.json"], None, "hf://o/n", "expected the shards of model.safetensors.index.json"),
        (["adapter_model.safetensors"], "pytorch", "hf://o/n", "got adapter_model.safetensors"),
    ],
)
def test_source_without_model_is_refused(
    names: list[str], framework: Framework | None, address: str, message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        select(names, framework, address)


@pytest.mark.parametrize(
    "index",
    [
        [], {}, {"weight_map": 3}, {"weight_map": ["a"]}, {"weight_map": {"a": "../b.safetensors"}},
        {"weight_map": {"a": "/b.safetensors"}}, {"weight_map": {"a": "pytorch_model.bin"}},
        {"weight_map": {"a": None}}, {"weight_map": {"a": "b\0.safetensors"}}, {"weight_map": {"a": ".safetensors"}},
    ],
)  # fmt: skip
def test_index_with_error_is_refused(index: object) -> None:
    with pytest.raises(InvalidModel, match=r"model\.safetensors\.index\.json: expected"):
        select(SHARDED, index=index)


def test_too_many_files_are_refused() -> None:
    with pytest.raises(InvalidModel, match="expected at most"):
        select([f"{number}" for number in range(MAX_LISTED_FILES + 1)])
    with pytest.raises(InvalidModel, match="expected at most 1000 files to serve, got 1002"):
        select(["model.safetensors", *(f"{number}.jinja" for number in range(1001))])


def test_too_many_modules_are_refused() -> None:
    names = ["modules.json", "model.safetensors", *(f"{number}_Pooling/config.json" for number in range(17))]
    with pytest.raises(InvalidModel, match="expected at most 16 modules, got 17"):
        select(names)


PARTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "model.safetensors",
        "model.onnx",
        "config.json",
        "1_Pooling",
        "modules.json",
        "onnx",
        "C:",
        "\0",
        "\\",
    ]
) | st.text(max_size=6)
NAMES = st.lists(
    st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.text(max_size=20) | st.sampled_from([*ENCODER, *GRAPHS]),
    max_size=20,
    unique=True,
)
SHARDS = st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=20), PARTS), max_size=3)


@given(
    NAMES, SHARDS, st.sampled_from(["onnx", "pytorch", None]),
    st.sampled_from(["hf://o/n", "s3://b/a", "s3://b/onnx/model.onnx"]),
)  # fmt: skip
def test_any_names_give_safe_names(
    names: list[str], shards: dict[str, object], framework: Framework | None, address: str
) -> None:
    listed = [*names, *(str(name) for name in shards.values() if name and str(name) not in names)]
    try:
        selection = select(list(dict.fromkeys(listed)), framework, address, {"weight_map": shards})
    except InvalidModel:
        return
    for each in selection.files:
        path = PurePosixPath(each.name)
        assert not path.is_absolute()
        assert not PureWindowsPath(each.name).drive
        assert ".." not in path.parts
        assert "\\" not in each.name
        assert each.name.isprintable()
        assert len(path.parts) <= 2
        assert (
            path.suffix in (".json", ".safetensors", ".onnx", ".txt", ".jinja", ".data", ".bin") or "_data" in each.name
        )
        assert path.suffix != ".bin" or selection.framework == "onnx"


@given(st.binary(max_size=200))
def test_any_index_is_read_or_refused(index: bytes) -> None:
    files = [RemoteFile("model.safetensors.index.json", 3, "e")]
    with pytest.raises(InvalidModel):
        select_files(parse_address("hf://o/n"), files, "pytorch", lambda file: index)
