"""Test that any content of the files of a module gives a module or InvalidModel, never another exception."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.router import read_sides
from frameworks.text.sentence_modules.sparse_modules import SparseCode, read_max_active_dims
from frameworks.text.words.vocabulary import read_vocabulary, word_weights
from tests.frameworks.text.test_config_any_value import junk
from tests.support.models.text_files import write_json

ROUTER: dict[str, dict[str, object]] = {
    "types": {"query_0_BoW": "sentence_transformers.models.BoW"},
    "structure": {"query": ["query_0_BoW"], "document": ["query_0_BoW"]},
    "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
}
KEYS = ("vocab", "stop_words", "do_lower_case", "word_weights", "unknown_word_weight", "tokenizer_class")
SIZES = ("input_dim", "hidden_dim", "k", "normalize", "max_active_dims")


def tried(read: Callable[[], object]) -> object:
    """Return the result; None where the files are refused."""
    try:
        return read()
    except InvalidModel:
        return None


@given(key=st.sampled_from([*ROUTER, "route_mappings", "prompts"]), value=junk)
@example("route_mappings", {"([], 'text')": "query"})
@example("route_mappings", {"(" * 290: "query"})
@example("route_mappings", {"(None, ('text', 'image'))": "query", "('query', None)": "document"})
@example("types", {"": "x"})
@example("structure", {"query": [[]]})
@example("parameters", {"other": 1})
@example("prompts", {"query": 7})
def test_any_router_is_handled(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_router"
    write_json(folder / "modules.json", [{"path": "", "type": "sentence_transformers.models.Router"}])
    write_json(folder / "query_0_BoW" / "config.json", {"vocab": ["a"]})
    write_json(folder / "config_sentence_transformers.json", {"prompts": value} if key == "prompts" else {})
    parameters = {**ROUTER["parameters"], "route_mappings": value} if key == "route_mappings" else ROUTER["parameters"]
    content = {**ROUTER, "parameters": parameters}
    write_json(folder / "router_config.json", {**content, key: value} if key in ROUTER else content)
    sides = tried(lambda: read_sides(folder))
    assert sides is None or sides.documents.modules  # type: ignore[attr-defined]


@given(kind=st.sampled_from(["BoW", "WordWeights", "WordEmbeddings"]), key=st.sampled_from(KEYS), value=junk)
@example("BoW", "vocab", [])
@example("BoW", "vocab", ["a", "a"])
@example("WordWeights", "word_weights", {"a": 10**400})
@example("WordWeights", "unknown_word_weight", True)
def test_any_vocabulary_is_handled(
    tmp_path_factory: pytest.TempPathFactory, kind: str, key: str, value: object
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_vocabulary"
    own = {"vocab": ["a", "b"], "stop_words": ["c"], "do_lower_case": False}
    write_json(folder / "whitespacetokenizer_config.json", {**own, key: value} if key in own else own)
    config = {
        "vocab": ["a", "b"],
        "word_weights": {"a": 2},
        "tokenizer_class": "sentence_transformers.WhitespaceTokenizer",
    }
    module = Module(kind, folder, {**config, key: value})
    if kind != "WordWeights":
        vocabulary = tried(lambda: read_vocabulary(module))
        assert vocabulary is None or all(isinstance(word, str) for word in vocabulary.words)  # type: ignore[attr-defined]
    weights = tried(lambda: word_weights(module))
    assert weights is None or np.isfinite(np.asarray(weights)).all()


@given(key=st.sampled_from(SIZES), value=junk)
@example("max_active_dims", 7)
@example("hidden_dim", 2**63)
def test_any_auto_encoder_is_handled(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_auto_encoder"
    folder.mkdir(exist_ok=True)
    shapes = {"encoder.weight": (6, 4), "latent_bias": (6,), "pre_bias": (4,)}
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    module = Module("SparseAutoEncoder", folder, {"input_dim": 4, "hidden_dim": 6, "k": 2, key: value})

    def read() -> SparseCode:
        count = read_max_active_dims(Path("file"), {key: value})
        return SparseCode(module, 4, count)

    code = tried(read)
    assert code is None or code(np.ones((1, 4), np.float32)).shape == (1,)  # type: ignore[operator]
