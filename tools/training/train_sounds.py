"""Train the ``sounds`` classifier and write its folder: ``python -m tools.training.train_sounds``.

Data: 9,600 sounds that `sounds` makes, eight kinds; 1,600 others are held out. Model: an audio spectrogram transformer
(``ASTForAudioClassification``) that hears the first 2.56 seconds: 64 mel bands, patches of 16 x 16, two layers of 96.
Weights are float16 on disk: 181,000 of them. Accuracy of the committed folder on the held-out sounds: 0.966. Training
takes about five minutes of one core, of which three make the sounds.
"""

import argparse
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.embedded.copy_sounds import COMMITTED, EXAMPLE
from tools.training.sounds import RATE, SOUNDS, make

LABELS = tuple(SOUNDS)
NUM_TRAINING, NUM_HELD_OUT = 9_600, 1_600
EPOCHS, BATCH_SIZE, LEARNING_RATE = 14, 64, 1e-3
SEED, HELD_OUT_SEED = 0, 1_000_003
MEL_BANDS, FRAMES = 64, 256
MEAN, STD = -6.0, 4.0
MIN_ACCURACY = 0.95
"""Minimum accuracy on the held-out sounds: a worse model is not written."""
EXAMPLE_LABEL, EXAMPLE_SECONDS, EXAMPLE_SEED = "siren", 1.5, 7


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print the accuracy of what was written."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training.train_sounds", description="Train the sounds model."
    )
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder to write")
    out: Path = parser.parse_args(arguments).out
    model = train(*features_of(NUM_TRAINING, SEED)).half()
    accuracy = accuracy_of(model.float(), *features_of(NUM_HELD_OUT, HELD_OUT_SEED))
    if accuracy < MIN_ACCURACY:
        raise SystemExit(
            f"expected an accuracy of {MIN_ACCURACY} on the held-out sounds, got {accuracy:.4f}; nothing written"
        )
    write(model.half(), out)
    print(f"{out}: accuracy {accuracy:.4f} on {NUM_HELD_OUT} held-out sounds")


def sounds_of(count: int, seed: int) -> tuple[list[Any], Any]:
    """Return sounds and labels, as many of each kind: float32 arrays and int64 [count]."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(LABELS)
    return [make(LABELS[label], random) for label in labels], labels


def features_of(count: int, seed: int) -> tuple[Any, Any]:
    """Return what the model reads of as many sounds: float32 [count, FRAMES, MEL_BANDS], and the labels."""
    sounds, labels = sounds_of(count, seed)
    extractor = new_extractor()
    features = [extractor(sound, sampling_rate=RATE, return_tensors="np")["input_values"][0] for sound in sounds]
    return np.stack(features).astype(np.float32), labels


def new_extractor() -> Any:
    """Return the feature extractor whose settings `preprocessor_config.json` holds."""
    from transformers import ASTFeatureExtractor

    return ASTFeatureExtractor(num_mel_bins=MEL_BANDS, max_length=FRAMES, mean=MEAN, std=STD, sampling_rate=RATE)


def new_model() -> Any:
    """Return the untrained model."""
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        max_length=FRAMES,
        num_mel_bins=MEL_BANDS,
        frequency_stride=16,
        time_stride=16,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    return ASTForAudioClassification(config)


def train(features: Any, labels: Any) -> Any:
    """Return the model after training, deterministic for given versions of torch and numpy on one CPU."""
    import torch

    torch.manual_seed(SEED)
    model = new_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=1e-2)
    steps = len(features) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, EPOCHS * steps)
    random = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        order, losses = random.permutation(len(features)), []
        for step in range(steps):
            rows = order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
            louder = random.uniform(-0.2, 0.2, (len(rows), 1, 1)).astype(np.float32)
            loss = model(torch.from_numpy(features[rows] + louder), labels=torch.from_numpy(labels[rows])).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {np.mean(losses):.4f}", flush=True)
    return model.eval()


def accuracy_of(model: Any, features: Any, labels: Any) -> float:
    """Return the share of sounds whose most likely label is right."""
    import torch

    with torch.inference_mode():
        logits = model(torch.from_numpy(features)).logits
    return float((logits.argmax(1).numpy() == labels).mean())


def write(model: Any, folder: Path) -> None:
    """Write the model, the settings of its features and the example."""
    model.save_pretrained(folder)
    new_extractor().save_pretrained(folder)
    sound = make(EXAMPLE_LABEL, np.random.default_rng(EXAMPLE_SEED), EXAMPLE_SECONDS)
    with wave.open(str(folder / EXAMPLE), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((sound * 32768).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
