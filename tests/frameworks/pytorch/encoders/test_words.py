"""Models of whole words, against SentenceTransformer.encode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.text.words.tokenizer import WordTokenizer
from frameworks.types import Array
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.models.text_files import TEXTS, change_json
from tests.support.models.torch_folders import HIDDEN_SIZE, save_embedder

SIZE = 12
WORDS = ["PADDING_TOKEN", "cat", "Cat", "mat", "steam", "engine", "the", "runs", "don't", "cat", "strasse", "日本語"]
STOP_WORDS = ["the", ".", "of"]
RAGGED = [
    *TEXTS,
    "The CAT, (steam) runs! don't «cat» ...",
    "  cat\u2003mat\x1cengine\n",
    "STEAM Engine. the THE strasse",
    "engine steam runs mat cat " * 30,
]
Saved = Callable[..., tuple[Path, Array]]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    """Save modules; return the folder, and the vector of each of RAGGED alone."""
    from sentence_transformers import SentenceTransformer

    def save(*modules: torch.nn.Module, prompts: Any = None) -> tuple[Path, Array]:
        torch.manual_seed(3)
        for parameter in (each for module in modules[1:] for each in module.parameters()):
            torch.nn.init.normal_(parameter, std=0.3)
        name = "query" if prompts else None
        model = SentenceTransformer(modules=[*modules], device="cpu", prompts=prompts, default_prompt_name=name).eval()
        model.save(str(tmp_path / "saved"), create_model_card=False)
        model = SentenceTransformer(str(tmp_path / "saved"), device="cpu", local_files_only=True)
        return tmp_path / "saved", model.encode(RAGGED, batch_size=1, show_progress_bar=False)

    return save


def words(lower_case: bool = False, max_seq_length: int = 40) -> Any:
    from sentence_transformers.sentence_transformer.modules import WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    rows = np.random.default_rng(5).standard_normal((len(WORDS), SIZE))
    return WordEmbeddings(WhitespaceTokenizer(WORDS, STOP_WORDS, lower_case), rows, max_seq_length=max_seq_length)


def check(folder: Path, wanted: Array) -> None:
    model = load_torch(folder, dtype="f32")
    model.warm_up()
    text = model.spec.text
    assert text is not None
    assert (text.embedding_size, text.unpadded_because) == (wanted.shape[1], None)
    np.testing.assert_allclose(rows_of(model, RAGGED), wanted, rtol=0, atol=1e-5)
    alone = np.concatenate([rows_of(model, [each]) for each in RAGGED])
    np.testing.assert_allclose(alone, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lower_case", [False, True])
def test_word_rows_equal_sentence_transformers(saved: Saved, lower_case: bool) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import Pooling

    pooling = Pooling(SIZE, ("mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"), include_prompt=False)
    modules = [words(lower_case), pooling, Dense(4 * SIZE, 5)]
    check(*saved(*modules, prompts={"query": "steam runs "}))


def test_recurrence_equals_sentence_transformers(saved: Saved) -> None:
    from sentence_transformers.sentence_transformer.modules import CNN, LSTM, Pooling

    first = LSTM(SIZE, 5, num_layers=2, dropout=0.5)
    check(*saved(words(), CNN(SIZE, 8, [1]), LSTM(8, 7, bidirectional=False), Pooling(7)))
    check(*saved(words(), first, Pooling(10, ("mean", "lasttoken"))))


def test_weighted_words_equal_sentence_transformers(saved: Saved) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    weights = WordWeights(WORDS, {"cat": 2.5, "steam": 0.25, "engine": -0.1}, unknown_word_weight=0.5)
    check(*saved(words(), weights, Pooling(SIZE, ("mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"))))


def test_weighted_states_equal_sentence_transformers(saved: Saved, tmp_path: Path) -> None:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling, WordWeights

    encoder = Transformer(str(save_embedder(tmp_path / "encoder")))
    vocabulary = sorted(encoder.tokenizer.get_vocab(), key=encoder.tokenizer.get_vocab().get)
    weights = WordWeights(vocabulary, {"cat": 2.5, "steam": 0.25, "[SEP]": 0.0}, unknown_word_weight=0.5)
    folder, wanted = saved(encoder, weights, Pooling(HIDDEN_SIZE))
    check(folder, wanted)
    change_json(folder / "1_WordWeights" / "config.json", vocab=vocabulary[:-1])
    with pytest.raises(InvalidModel, match=rf"vocab: expected a word for each of {len(vocabulary)} tokens"):
        load_torch(folder)


def test_hub_tokenizer_equals_sentence_transformers(saved: Saved, tmp_path: Path) -> None:
    """A long text loses its special token at the end, as sentence-transformers cuts it."""
    from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(save_embedder(tmp_path / "encoder")))
    rows = np.random.default_rng(5).standard_normal((len(tokenizer), SIZE))
    check(*saved(WordEmbeddings(tokenizer, rows, max_seq_length=20), Pooling(SIZE, ("mean", "lasttoken"))))


@pytest.mark.parametrize("adds_up", [True, False])
def test_word_bag_equals_sentence_transformers(saved: Saved, adds_up: bool) -> None:
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import BoW

    bag = BoW(WORDS, {"cat": 2.5, "strasse": 3, "steam": 0.1}, 0.5, cumulative_term_frequency=adds_up)
    check(*saved(bag))
    check(*saved(bag, Dense(len(set(WORDS)), 5)))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("wordembedding_config.json", {"tokenizer_class": "nltk.Words"}, "tokenizer_class: expected WhitespaceTok"),
        (
            "wordembedding_config.json",
            {"tokenizer_class": "sentence_transformers.models.tokenizer.PhraseTokenizer.PhraseTokenizer"},
            "got sentence_transformers.models.tokenizer.PhraseTokenizer",
        ),
        ("wordembedding_config.json", {"max_seq_length": 0}, "max_seq_length: expected 1 to"),
        ("wordembedding_config.json", {"window": 3}, "window: expected a known key"),
        ("whitespacetokenizer_config.json", {"vocab": [*WORDS, "more"]}, "a row for each of 13 words, got"),
        ("whitespacetokenizer_config.json", {"vocab": [1]}, "whitespacetokenizer_config.json: vocab: expected a list"),
        ("whitespacetokenizer_config.json", {"stop_words": None}, "stop_words: expected a list of words, got None"),
        ("whitespacetokenizer_config.json", {"do_lower_case": 1}, "do_lower_case: expected true or false, got 1"),
        ("1_WordWeights/config.json", {"word_weights": {"cat": "x"}}, "word_weights: expected a number, got x"),
        ("1_WordWeights/config.json", {"unknown_word_weight": 1e99}, "unknown_word_weight: expected a number"),
        ("2_LSTM/lstm_config.json", {"num_layers": 2}, r"encoder.weight_ih_l1: expected a tensor \[40, 20\], got none"),
        ("2_LSTM/lstm_config.json", {"hidden_dim": 10**9}, "hidden_dim: expected 1 to"),
        ("3_Pooling/config.json", {"pooling_mode": "cls"}, "pooling_mode: expected no cls of WordEmbeddings"),
    ],
)
def test_wrong_file_is_refused(saved: Saved, file: str, changes: dict[str, object], message: str) -> None:
    from sentence_transformers.sentence_transformer.modules import LSTM, Pooling, WordWeights

    folder, _ = saved(words(), WordWeights(WORDS, {}), LSTM(SIZE, 10), Pooling(20))
    change_json(folder / file, **changes)
    with pytest.raises(InvalidModel, match=message):
        load_torch(folder, dtype="f32")


def test_tokens_of_words_are_named(saved: Saved) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    tokenizer = load_torch(saved(words(max_seq_length=3), Pooling(SIZE))[0]).tokenizer
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.spans_of("the cat, Mat! zebra", True, 0) == ([1, 3], ["cat", "mat"], [(4, 8), (9, 13)])
    assert tokenizer.decode(tokenizer.ids_of("steam  runs", True)) == "steam runs"
    assert tokenizer.read_ids([[1, 2, 3, 4]], "left") == [[2, 3, 4]]
    assert tokenizer.tokenize(["mat mat steam engine"], "left") == [[3, 4, 5]]
    for call in (
        lambda: tokenizer.tokenize(["mat mat steam engine"], False),
        lambda: tokenizer.read_ids([[99]], True),
        lambda: tokenizer.token_strings([-1]),
    ):
        with pytest.raises(InvalidInput):
            call()
