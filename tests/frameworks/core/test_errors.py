"""Errors of the caller: similar names, names that are too long to compare or to show, and paths of the machine."""

import pytest

from app.config.issues import nearest
from app.protocols.shared.errors import to_http
from frameworks.core.errors import (
    MAX_COMPARED_CHARACTERS,
    InvalidModel,
    ModelFailed,
    ModelNotFound,
    OutOfMemory,
    RoundhouseError,
    UnknownField,
    VersionNotFound,
    as_failed,
    similar_names,
    without_paths,
)
from frameworks.scheduling.batch.worker import without_frames

LONG = "x" * 6_000_000


def test_similar_names_found_best_first() -> None:
    assert similar_names("digit", ["digits", "minilm", "digit-2"], 2) == ["digits", "digit-2"]
    assert UnknownField.among("promt", ["prompt"], "inputs.").reason == 'unknown field; did you mean "inputs.prompt"?'
    assert nearest("Prot", ["port", "host"]) == "port"


def test_only_short_names_are_compared() -> None:
    name = "x" * MAX_COMPARED_CHARACTERS
    assert similar_names(name, [name], 1) == [name]
    assert similar_names(f"{name}x", [f"{name}x"], 1) == []
    assert nearest(f"{name}x", [f"{name}x"]) is None


@pytest.mark.parametrize(
    "error", [UnknownField.among(LONG, ["prompt"]), ModelNotFound(LONG, ["digits"]), VersionNotFound("a", LONG, ["1"])]
)
def test_long_name_is_cut_in_message(error: Exception) -> None:
    assert len(str(error)) < 400


def test_unknown_field_lists_first_known_names() -> None:
    assert UnknownField.among("q", {"b", "a"}, "x.").reason == "unknown field; known fields are x.a, x.b"
    assert UnknownField.among("q", ["b", "a"]).reason == "unknown field; known fields are b, a"
    reason = UnknownField.among("q", [f"name_{i:03}" for i in range(5000)], "inputs.").reason
    assert reason.startswith("unknown field; known fields are inputs.name_000, inputs.name_001, ")
    listed = reason.count("inputs.")
    assert listed > 5
    assert f" and {5000 - listed} more; GET /openapi.json lists" in reason
    assert len(reason) < 320
    assert len(UnknownField.among("q", [LONG, "a"], "inputs.").reason) < 400


PRIVATE = "/etc/models/m.onnx"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"Load model from {PRIVATE} failed:no graph", "Load model from m.onnx failed:no graph"),
        (f"'{PRIVATE}' (/etc/models/), {PRIVATE}:12", "'m.onnx' (models), m.onnx:12"),
        ("node /encoder/layer.0/Add", "node /encoder/layer.0/Add"),
        ("https://host/etc/models and ./etc/models", "https://host/etc/models and ./etc/models"),
    ],
)
def test_without_paths_keeps_last_parts(text: str, shown: str) -> None:
    assert without_paths(text) == shown


@pytest.mark.parametrize(
    "error",
    [
        InvalidModel(f"{PRIVATE}: no graph"),
        ModelFailed.because('model "m" failed to load', InvalidModel(f"{PRIVATE}: no graph")),
        as_failed(FileNotFoundError(2, "No such file", PRIVATE), "its load"),
        without_frames(MemoryError(f"mapping {PRIVATE}")),
        without_frames(OutOfMemory(f"{PRIVATE} does not fit", "it does not fit")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_path_is_shown_to_operators_only(error: RoundhouseError) -> None:
    assert "/etc" not in to_http(error).message
    assert PRIVATE in to_http(error, sees_paths=True).message
    assert PRIVATE in str(error)
