"""Values of generation_config.json and config.json: read, or refused with InvalidModel."""

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frameworks.core.errors import InvalidModel
from frameworks.generation.generation_config import default_sampling, eos_token_ids, forced_tokens
from frameworks.generation.types import NOT_FORCED, ForcedTokens, Sampling
from tests.support.models.text_files import write_json

KEYS = ("eos_token_id", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample", "text_config")
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(KEYS), inner, max_size=2)),
    max_leaves=4,
)


def folder_with(folder: Path, generation_config: object = None, config: object = None) -> Path:
    for name, content in (("generation_config.json", generation_config), ("config.json", config)):
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            write_json(folder / name, content)
    return folder


class TestEndOfText:
    @pytest.mark.parametrize(
        ("generation_config", "config", "wanted"),
        [
            ({"eos_token_id": 2}, None, {2}),
            ({"eos_token_id": [2, 0, 7]}, {"eos_token_id": 9}, {0, 2, 7}),
            ({"temperature": 0.5}, {"eos_token_id": 9}, {9}),
            ({"eos_token_id": None}, {"eos_token_id": [9, 8]}, {8, 9}),
            (None, {"eos_token_id": None, "text_config": {"eos_token_id": 5}}, {5}),
            (None, {"eos_token_id": 4, "text_config": {"eos_token_id": 5}}, {4}),
            (None, {"text_config": "none"}, set()),
            (None, {"decoder": {"eos_token_id": 6}, "text_config": {"eos_token_id": 5}}, {6}),
            ({"eos_token_id": []}, {"eos_token_id": 1}, set()),
            (None, None, set()),
        ],
    )
    def test_eos_token_ids_read_from_files(
        self, tmp_path: Path, generation_config: object, config: object, wanted: set[int]
    ) -> None:
        assert eos_token_ids(folder_with(tmp_path, generation_config, config)) == wanted

    @pytest.mark.parametrize("value", ["2", 2.0, True, -1, [2, None], [[2]], {"a": 1}])
    @pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
    def test_invalid_eos_token_id_refused(self, tmp_path: Path, file: str, value: object) -> None:
        write_json(tmp_path / file, {"eos_token_id": value})
        with pytest.raises(
            InvalidModel, match=rf"/{file}: eos_token_id: expected a token id or a list of token ids, got "
        ):
            eos_token_ids(tmp_path)


class TestSampling:
    @pytest.mark.parametrize(
        ("content", "wanted"),
        [
            (None, Sampling()),
            ({}, Sampling()),
            ({"do_sample": False}, Sampling(temperature=1.0)),
            ({"do_sample": False, "temperature": 0.9}, Sampling(temperature=0.9)),
            ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, Sampling(temperature=0.6, top_p=0.9)),
            ({"temperature": 0, "top_k": 50, "min_p": 0.05}, Sampling(temperature=0.0, top_k=50, min_p=0.05)),
            ({"top_k": 0, "top_p": None}, Sampling()),
            ({"top_k": -1, "repetition_penalty": 1}, Sampling()),
            ({"repetition_penalty": 1.1, "max_length": 20, "use_cache": "x"}, Sampling(repetition_penalty=1.1)),
        ],
    )
    def test_sampling_read_from_file(self, tmp_path: Path, content: object, wanted: Sampling) -> None:
        assert default_sampling(folder_with(tmp_path, content)) == wanted

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("temperature", "0.5"), ("temperature", -0.1), ("temperature", True), ("temperature", [1.0]),
            ("top_k", 5.0), ("top_k", -2), ("top_k", False), ("top_p", 0), ("top_p", 1.01), ("top_p", "x"),
            ("min_p", -0.1), ("min_p", 2), ("repetition_penalty", 0), ("repetition_penalty", {}),
        ],
    )  # fmt: skip
    def test_invalid_sampling_value_refused(self, tmp_path: Path, key: str, value: object) -> None:
        with pytest.raises(
            InvalidModel, match=rf"/generation_config\.json: {key}: expected an? (number|integer) .*, got "
        ):
            default_sampling(folder_with(tmp_path, {key: value}))

    def test_file_without_object_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match=r"generation_config\.json: not a JSON object"):
            default_sampling(folder_with(tmp_path, [1]))


class TestSettingsOfConfig:
    """Without generation_config.json transformers takes the settings of config.json."""

    @pytest.mark.parametrize(
        ("generation_config", "config"),
        [
            (None, {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "repetition_penalty": 1.5, "forced_eos_token_id": 3}),
            (None, {"temperature": None, "decoder": {"temperature": 0.5, "forced_bos_token_id": 4}}),
            (None, {"top_k": 7, "text_config": {"top_k": 9, "min_p": 0.1}, "forced_eos_token_id": [3, 4]}),
            ({}, {"temperature": 0.5, "forced_eos_token_id": 3, "num_beams": 4}),
            ({"top_p": 0.5}, {"temperature": 0.5, "min_length": 5}),
            (None, {"model_type": "bart"}),
        ],
    )
    def test_settings_match_transformers(self, tmp_path: Path, generation_config: object, config: object) -> None:
        from transformers import GenerationConfig

        folder = folder_with(tmp_path, generation_config, config)
        name = "config.json" if generation_config is None else "generation_config.json"
        theirs = GenerationConfig.from_pretrained(
            folder, config_file_name=name, _from_model_config=generation_config is None
        )
        ours, none = default_sampling(folder), Sampling()
        for key in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            expected = getattr(theirs, key)
            assert getattr(ours, key) == (getattr(none, key) if expected is None else expected)
        forced = [theirs.forced_bos_token_id, theirs.forced_eos_token_id]
        assert forced_tokens(folder, 10) == ForcedTokens(
            *(tuple(each) if isinstance(each, list) else () if each is None else (each,) for each in forced)
        )

    def test_unserved_setting_is_refused_by_name(self, tmp_path: Path) -> None:
        config = {"num_beams": 4}
        with pytest.raises(InvalidModel, match=r"/config\.json: num_beams: expected 1, got 4"):
            default_sampling(folder_with(tmp_path, None, config))
        assert default_sampling(folder_with(tmp_path, {}, config)) == Sampling()


class TestForcedTokens:
    def test_absent_ids_force_nothing(self, tmp_path: Path) -> None:
        assert forced_tokens(folder_with(tmp_path, {"forced_eos_token_id": None}), 10) == NOT_FORCED

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("2", "a token id or a list of token ids, got '2'$"),
            ([True], r"a token id or a list of token ids, got \[True\]$"),
            (10, "token ids below 10, the size of the vocabulary, got 10; correct or remove it"),
        ],
    )
    @pytest.mark.parametrize("key", ["forced_bos_token_id", "forced_eos_token_id"])
    def test_invalid_forced_token_refused(self, tmp_path: Path, key: str, value: object, expected: str) -> None:
        with pytest.raises(InvalidModel, match=rf"/generation_config\.json: {key}: expected {expected}"):
            forced_tokens(folder_with(tmp_path, {key: value}), 10)


@given(file=st.sampled_from(["generation_config.json", "config.json"]), key=st.sampled_from(KEYS), value=junk)
@example("generation_config.json", "temperature", 10**400)
@example("generation_config.json", "top_k", 10**400)
def test_any_value_accepted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, file: str, key: str, value: object
) -> None:
    folder = folder_with(tmp_path_factory.getbasetemp() / "generation_lies")
    write_json(folder / file, {key: value})
    try:
        ids, sampling = eos_token_ids(folder), default_sampling(folder)
    except InvalidModel:
        return
    assert all(isinstance(token_id, int) and token_id >= 0 for token_id in ids)
    assert 0 <= sampling.temperature < math.inf
    assert sampling.top_k is None or sampling.top_k > 0
    assert 0 < sampling.top_p <= 1
