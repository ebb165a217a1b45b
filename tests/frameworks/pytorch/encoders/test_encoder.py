"""Embeddings and logits equal those of sentence-transformers and transformers on the same folder."""

import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from frameworks.core.errors import InvalidInput, InvalidModel, ModelFailed, OutOfMemory
from frameworks.pytorch import device_model
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.pooling import normalize_rows, scores
from frameworks.types import TEXT_OUTPUT, Array, TensorBatch, TokenBatch
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.alike import check_alike
from tests.support.models.text_files import TEXTS, change_json, write_sentence_transformers, write_tokenizer
from tests.support.models.torch_folders import (
    FAMILIES,
    HIDDEN_SIZE,
    MAX_TOKENS,
    Family,
    rewrite_weights,
    save_classifier,
    save_embedder,
)

RAGGED = [*TEXTS, "the engine of steam runs on . " * 20]
# Behaviour that all families share: the second tier tests it with each of them.
ALIKE = [FAMILIES[0], *(pytest.param(family, marks=pytest.mark.extended) for family in FAMILIES[1:])]
WITH_POOLER: tuple[Family, ...] = ("bert", "roberta", "mpnet")


def sentence_transformer(folder: Path) -> Any:
    """Load the folder with sentence-transformers, whose import takes a second: only the worker of this file does it."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def sentence_transformers_of(folder: Path) -> Array:
    """Return the embeddings of sentence-transformers in one batch on the same folder."""
    rows: Array = sentence_transformer(folder).encode(RAGGED, batch_size=len(RAGGED), show_progress_bar=False)
    return rows


def answers_of(model: EncoderModel, texts: list[str]) -> Array:
    """Return the embeddings of a caller, normalized if the folder says so."""
    rows = rows_of(model, texts)
    assert model.spec.text is not None
    return normalize_rows(rows) if model.spec.text.normalize else rows


def transformers_of(auto: Any, folder: Path, texts: list[str]) -> Any:
    """Return the outputs of transformers' tokenizer and model in one batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    model = auto.from_pretrained(str(folder), local_files_only=True, dtype=torch.float32).eval()
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
    with torch.inference_mode():
        return model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])


class TestEmbeddings:
    @pytest.mark.parametrize(
        ("family", "pooling"),
        [
            *((family, "mean") for family in FAMILIES),
            *((FAMILIES[0], pooling) for pooling in ("cls", "max")),
            *(
                pytest.param(family, pooling, marks=pytest.mark.extended)
                for family in FAMILIES[1:]
                for pooling in ("cls", "max")
            ),
        ],
    )
    def test_embeddings_equal_sentence_transformers(self, copied: FolderMaker, family: Family, pooling: str) -> None:
        folder = copied(save_embedder, family=family)
        write_sentence_transformers(folder, pooling, normalize=pooling != "max", max_seq_length=MAX_TOKENS)
        model = load_torch(folder, dtype="f32")
        model.warm_up()
        rows = answers_of(model, RAGGED)
        assert (str(rows.dtype), rows.shape) == ("float32", (len(RAGGED), HIDDEN_SIZE))
        np.testing.assert_allclose(rows, sentence_transformers_of(folder), rtol=0, atol=1e-5)
        assert np.ptp(rows, axis=0).max() > 0.1, "texts that all give one vector would prove nothing"

    @pytest.mark.parametrize("head", ["ForTokenClassification", "ForNextSentencePrediction"])
    def test_class_of_other_task_with_pooling_embeds(self, copied: FolderMaker, head: str) -> None:
        """As in sentence-transformers: its files name the task."""
        folder = copied(save_embedder)
        change_json(folder / "config.json", architectures=[f"Bert{head}"])
        write_sentence_transformers(folder, max_seq_length=MAX_TOKENS)
        model = load_torch(folder, dtype="f32")
        np.testing.assert_allclose(answers_of(model, RAGGED), sentence_transformers_of(folder), rtol=0, atol=1e-5)

    def test_embeddings_equal_saved_sentence_transformers(self, copied: FolderMaker, tmp_path: Path) -> None:
        """The current version writes other files than older ones."""
        folder = copied(save_embedder)
        write_sentence_transformers(folder, "cls", prompt="Query : ", max_seq_length=12)
        sentence_transformer(folder).save(str(tmp_path / "saved"), create_model_card=False)
        model = load_torch(tmp_path / "saved")
        np.testing.assert_allclose(answers_of(model, RAGGED), sentence_transformers_of(folder), rtol=0, atol=1e-5)

    def test_prompt_case_and_limit_equal_sentence_transformers(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        write_tokenizer(folder, lower_case=False)
        write_sentence_transformers(folder, do_lower_case=True, prompt="QUERY : ", max_seq_length=9)
        rows = answers_of(load_torch(folder), RAGGED)
        np.testing.assert_allclose(rows, sentence_transformers_of(folder), rtol=0, atol=1e-5)
        write_sentence_transformers(folder, do_lower_case=False, prompt="QUERY : ", max_seq_length=9)
        assert np.abs(rows - answers_of(load_torch(folder), RAGGED)).max() > 1e-2

    @pytest.mark.parametrize("family", FAMILIES)
    def test_row_is_independent_of_its_batch(self, made_once: FolderMaker, family: Family) -> None:
        model = load_torch(made_once(save_embedder, family=family))
        together = rows_of(model, RAGGED)
        alone = np.concatenate([rows_of(model, [text]) for text in RAGGED])
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
    def test_text_without_tokens_gets_finite_embedding(self, copied: FolderMaker, pooling: str) -> None:
        folder = copied(save_embedder)
        write_tokenizer(folder, special_tokens=False)
        write_sentence_transformers(folder, pooling)
        for dtype in ("f32", "f16", "bf16"):
            model = load_torch(folder, dtype=dtype)
            assert np.isfinite(answers_of(model, ["", "the cat"])).all()
            assert np.isfinite(answers_of(model, [""])).all()


class TestPooler:
    @pytest.mark.parametrize("family", WITH_POOLER)
    def test_own_pooler_is_used_without_files(self, made_once: FolderMaker, family: Family) -> None:
        folder = made_once(save_embedder, family=family)
        model = load_torch(folder)
        reference = transformers_of(transformers.AutoModel, folder, RAGGED).pooler_output
        np.testing.assert_allclose(rows_of(model, RAGGED), reference.numpy(), rtol=0, atol=1e-5)
        assert model.spec.text is not None
        assert model.spec.text.normalize

    @pytest.mark.parametrize("family", ALIKE)
    def test_mean_is_used_without_pooler(self, made_once: FolderMaker, copied: FolderMaker, family: Family) -> None:
        options = {"family": family} | ({"pooler": False} if family in WITH_POOLER else {})
        mean = copied(save_embedder, **options)
        write_sentence_transformers(mean, "mean")
        rows = rows_of(load_torch(made_once(save_embedder, **options)), RAGGED)
        np.testing.assert_allclose(rows, rows_of(load_torch(mean), RAGGED), rtol=0, atol=1e-6)

    def test_pooler_is_not_needed_with_files(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder, pooler=False)
        write_sentence_transformers(folder, "cls")
        model = load_torch(folder)
        hidden = transformers_of(transformers.AutoModel, folder, RAGGED).last_hidden_state
        np.testing.assert_allclose(rows_of(model, RAGGED), hidden[:, 0].numpy(), rtol=0, atol=1e-5)

    def test_unknown_pooler_is_refused_at_load(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder, family="distilbert")
        rewrite_weights(folder, pooler__dense__weight=torch.zeros(HIDDEN_SIZE, HIDDEN_SIZE))
        with pytest.raises(InvalidModel, match=r"the model does not run on text: .*pooler_output"):
            load_torch(folder).warm_up()


class TestClassifiers:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_logits_equal_transformers(self, made_once: FolderMaker, family: Family) -> None:
        folder = made_once(save_classifier, family=family)
        model = load_torch(folder)
        model.warm_up()
        logits = rows_of(model, RAGGED)
        reference = transformers_of(transformers.AutoModelForSequenceClassification, folder, RAGGED).logits
        assert (str(logits.dtype), logits.shape) == ("float32", (len(RAGGED), 3))
        np.testing.assert_allclose(logits, reference.numpy(), rtol=0, atol=1e-5)
        assert np.ptp(logits, axis=0).max() > 0.1

    @pytest.mark.parametrize(
        ("labels", "problem_type"),
        [
            (("fast", "slow", "late"), None),
            (("fast", "slow", "late"), "single_label_classification"),
            (("fast", "slow", "late"), "multi_label_classification"),
            (("relevant",), None),
        ],
    )
    def test_scores_equal_transformers_pipeline(
        self, made_once: FolderMaker, labels: tuple[str, ...], problem_type: str | None
    ) -> None:
        folder = made_once(save_classifier, labels=labels, problem_type=problem_type)
        model = load_torch(folder)
        text = model.spec.text
        assert text is not None
        assert text.labels == labels
        pipeline = transformers.pipeline("text-classification", str(folder), device="cpu")
        short = list(TEXTS)
        for row, wanted in zip(
            scores(rows_of(model, short), text.multi_label), pipeline(short, top_k=None), strict=True
        ):
            by_label = {answer["label"]: answer["score"] for answer in wanted}
            np.testing.assert_allclose(row, [by_label[label] for label in labels], rtol=0, atol=1e-5)

    def test_spec_describes_classifier(self, made_once: FolderMaker) -> None:
        spec = load_torch(made_once(save_classifier)).spec
        assert (spec.framework, spec.task, spec.device, spec.dtype) == ("pytorch", "classify", "cpu", "float32")
        assert [(value.name, str(value.type), value.shape) for value in (*spec.inputs, *spec.outputs)] == [
            ("text", "string", (-1,)),
            ("predictions", "float32", (-1, 3)),
        ]


class TestLimits:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_text_of_maximum_length_is_read(self, made_once: FolderMaker, family: Family) -> None:
        model = load_torch(made_once(save_embedder, family=family))
        assert model.spec.text is not None
        assert model.spec.text.max_tokens == MAX_TOKENS
        assert model.tokenizer is not None
        longest = "the " * (MAX_TOKENS - 2)
        assert [len(ids) for ids in model.tokenizer.tokenize([longest], truncate=False)] == [MAX_TOKENS]
        assert np.isfinite(rows_of(model, [longest, longest + "the"])).all()

    @pytest.mark.parametrize("family", FAMILIES)
    def test_limit_beyond_positions_is_cut(self, copied: FolderMaker, family: Family) -> None:
        folder = copied(save_embedder, family=family)
        write_sentence_transformers(folder, max_seq_length=MAX_TOKENS * 2)
        model = load_torch(folder)
        assert np.isfinite(rows_of(model, ["the " * 100])).all()

    def test_padding_token_without_embedding_is_refused(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        rewrite_weights(folder, embeddings__word_embeddings__weight=torch.zeros(100, HIDDEN_SIZE))
        change_json(folder / "config.json", vocab_size=100)
        model = load_torch(folder)
        model.infer(TokenBatch([[2, 99, 3]]))
        model._padding.pad_token_id = 100
        with pytest.raises(InvalidModel, match="the model does not run on text"):
            model.warm_up()


class TestFailures:
    @pytest.fixture
    def model(self, made_once: FolderMaker) -> EncoderModel:
        return load_torch(made_once(save_embedder))

    def test_tensors_are_refused(self, model: EncoderModel) -> None:
        with pytest.raises(InvalidInput, match="expected text for this model"):
            model.infer(TensorBatch({"input_ids": np.zeros((1, 3), np.int64)}))

    def test_out_of_memory_states_requested_bytes(self, model: EncoderModel, monkeypatch: Any) -> None:
        def run_out(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

        assert model._model is not None
        monkeypatch.setattr(model._model, "forward", run_out)
        with pytest.raises(OutOfMemory, match="a batch of 2 texts of 4 tokens does not fit on cpu"):
            model.infer(TokenBatch([[2, 5, 3], [2, 5, 6, 3]]))
        with pytest.raises(OutOfMemory, match="a batch of one text of 3 tokens does not fit on cpu"):
            model.infer(TokenBatch([[2, 5, 3]]))
        monkeypatch.undo()
        assert TEXT_OUTPUT in model.infer(TokenBatch([[2, 3]]))

    def test_out_of_memory_frees_batch_before_raising(
        self, model: EncoderModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not when the error is forgotten or the garbage collector comes by: the halves run before. And the device's
        cache is emptied when there is something to give back.
        """
        held: list[weakref.ref[torch.Tensor]] = []
        alive_when_emptied: list[int] = []

        def run_out(input_ids: torch.Tensor, **_: object) -> None:
            states = torch.zeros(4)
            held.extend([weakref.ref(input_ids), weakref.ref(states)])
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

        assert model._model is not None
        monkeypatch.setattr(model._model, "forward", run_out)
        monkeypatch.setattr(
            device_model, "empty_cache", lambda _: alive_when_emptied.append(sum(each() is not None for each in held))
        )
        gc.disable()
        try:
            with pytest.raises(OutOfMemory) as caught:
                model.infer(TokenBatch([[2, 5, 3], [2, 5, 6, 3]]))
            assert (len(held), alive_when_emptied) == (2, [0])
            assert [each() for each in held] == [None, None], "while the error is still at hand"
            assert caught.value.__cause__ is caught.value.__context__ is None
        finally:
            gc.enable()

    def test_closed_model_raises_model_failed(self, model: EncoderModel) -> None:
        model.close()
        with pytest.raises(ModelFailed, match="the model is closed"):
            model.infer(TokenBatch([[2, 3]]))
        model.close()

    @pytest.mark.parametrize("family", ALIKE)
    def test_close_frees_weights(self, made_once: FolderMaker, family: Family) -> None:
        """Not by the garbage collector: the device's memory would stay in use until then."""
        model = load_torch(made_once(save_embedder, family=family))
        rows_of(model, RAGGED)
        assert model._model is not None
        weights = [weakref.ref(parameter) for parameter in model._model.parameters()]
        gc.disable()
        try:
            model.close()
            assert not [weight for weight in weights if weight() is not None]
        finally:
            gc.enable()

    def test_outputs_have_no_gradient(self, model: EncoderModel) -> None:
        assert model._model is not None
        assert not model._model.training
        assert not any(parameter.requires_grad for parameter in model._model.parameters())
        check_alike(rows_of(model, ["the cat"]), rows_of(model, ["the cat"]))


class TestNothingIsFetched:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
        asked: list[object] = []

        def refuse(*arguments: object, **_: object) -> None:
            asked.append(arguments)
            raise OSError("a socket was asked for")

        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        yield asked
        assert asked == []

    @pytest.mark.parametrize("family", ALIKE)
    def test_embedder_loads_without_socket(self, copied: FolderMaker, family: Family) -> None:
        folder = copied(save_embedder, family=family)
        change_json(folder / "config.json", _name_or_path="google-bert/bert-base-uncased")
        assert np.isfinite(rows_of(load_torch(folder), ["the cat"])).all()

    def test_classifier_loads_without_socket(self, made_once: FolderMaker) -> None:
        assert rows_of(load_torch(made_once(save_classifier)), ["the cat"]).shape == (1, 3)

    def test_refused_folder_opens_no_socket(self, copied: FolderMaker) -> None:
        folder = copied(save_embedder)
        change_json(
            folder / "config.json", model_type="nonesuch", auto_map={"AutoModel": "somebody/code--modeling.Model"}
        )
        with pytest.raises(InvalidModel):
            load_torch(folder)
