"""Train the ``digits`` classifier and write its ONNX file: ``python -m tools.training.train_digits``.

Data: scikit-learn's digits, 1797 images of 8 x 8 grey values from 0 to 16; three quarters train, one quarter (450,
drawn with seed 0 and stratified by digit) is held out. Model: standardised pixels, one hidden layer of 48, softmax.
Accuracy of the committed file on the held-out quarter: 0.980.

The graph: ``image`` float32 [batch, 64], row by row, to ``output_label`` int64 [batch] and ``output_probability``, a
sequence of one map per image from digit (int64) to probability (float32): the ZipMap that skl2onnx adds by default.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.embedded.copy_digits import COMMITTED

HIDDEN_UNITS = 48
HELD_OUT_SHARE = 0.25
SEED = 0
OPSET = 21
MIN_ACCURACY = 0.975
"""Minimum accuracy on the held-out images: a worse model is not written."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the graph and print its size and accuracy."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training.train_digits", description="Train the digits model."
    )
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the ONNX file to write")
    out: Path = parser.parse_args(arguments).out
    train_images, held_out_images, train_labels, held_out_labels = split()
    classifier = train(train_images, train_labels)
    accuracy = float(classifier.score(held_out_images, held_out_labels))
    if accuracy < MIN_ACCURACY:
        raise SystemExit(
            f"expected an accuracy of {MIN_ACCURACY} on the held-out images, got {accuracy:.4f}; nothing written"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(to_onnx(classifier))
    print(f"{out}: {out.stat().st_size} bytes, accuracy {accuracy:.4f} on {len(held_out_labels)} held-out images")


def split() -> Any:
    """Return (train images, held-out images, train labels, held-out labels): float32 [n, 64] and int64 [n]."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images.astype("float32"), labels, test_size=HELD_OUT_SHARE, random_state=SEED, stratify=labels
    )


def train(images: Any, labels: Any) -> Any:
    """Return a fitted pipeline, deterministic for given versions of scikit-learn and numpy."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPClassifier((HIDDEN_UNITS,), alpha=0.1, max_iter=500, random_state=SEED)
    return make_pipeline(StandardScaler(), network).fit(images, labels)


def to_onnx(classifier: Any) -> bytes:
    """Return the classifier as a serialised ONNX graph with ZipMap."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType

    graph = convert_sklearn(
        classifier, "digits", [("image", FloatTensorType([None, 64]))], target_opset={"": OPSET, "ai.onnx.ml": 3}
    )
    serialised: bytes = graph.SerializeToString()
    return serialised


if __name__ == "__main__":
    main()
