"""Train the ``shapes`` classifier and write its folder: ``python -m tools.training.train_shapes``.

Data: 16,000 images of 64 x 64 pixels that `shape_images` draws, ten shapes, mirrored at random in each epoch; 2,000
others are held out. Model: five convolutions of 3 x 3 with batch normalisation and ReLU, the mean over the image, one
linear layer: 84,000 weights. Accuracy of the committed file on the held-out images: 0.995. Training takes about six
minutes of one core.

The graph: ``pixel_values`` float32 [batch, 3, 64, 64] to ``logits`` float32 [batch, 10]. Batch normalisation is folded
into the convolutions. Beside the graph: ``preprocessor_config.json``, ``config.json`` with the labels, and
``example.jpg``, an image that no training has seen.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from app.embedded.copy_shapes import COMMITTED, CONFIG, EXAMPLE, GRAPH, PREPROCESSOR
from tools.training.shape_images import SHAPES, SIDE, draw

LABELS = tuple(SHAPES)
CHANNELS = (16, 32, 48, 64, 64)
STRIDES = (2, 1, 2, 2, 2)
NUM_TRAINING, NUM_HELD_OUT = 16_000, 2_000
EPOCHS, BATCH_SIZE, LEARNING_RATE = 12, 64, 6e-3
SEED = 0
HELD_OUT_SEED = 1_000_003
OPSET = 18
MEAN, STD = 0.5, 0.25
MIN_ACCURACY = 0.98
"""Minimum accuracy on the held-out images: a worse model is not written."""
EXAMPLE_LABEL, EXAMPLE_SIDE, EXAMPLE_SEED = "star", 240, 7


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print the size and the accuracy."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training.train_shapes", description="Train the shapes model."
    )
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder to write")
    out: Path = parser.parse_args(arguments).out
    network = train(*images_of(NUM_TRAINING, SEED))
    accuracy = accuracy_of(network, *images_of(NUM_HELD_OUT, HELD_OUT_SEED))
    if accuracy < MIN_ACCURACY:
        raise SystemExit(
            f"expected an accuracy of {MIN_ACCURACY} on the held-out images, got {accuracy:.4f}; nothing written"
        )
    write(network, out)
    size = (out / GRAPH).stat().st_size
    print(f"{out / GRAPH}: {size} bytes, accuracy {accuracy:.4f} on {NUM_HELD_OUT} held-out images")


def images_of(count: int, seed: int) -> tuple[Any, Any]:
    """Return images and labels, as many of each shape: uint8 [count, 64, 64, 3] and int64 [count]."""
    random = Random(seed)
    labels = np.arange(count) % len(LABELS)
    images = np.stack([np.asarray(draw(LABELS[label], random)) for label in labels])
    return images, labels


def to_pixels(images: Any) -> Any:
    """Return the input of the graph, as `preprocessor_config.json` says: float32 [n, 3, 64, 64]."""
    scaled = (images.astype(np.float32) / 255 - MEAN) / STD
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def train(images: Any, labels: Any) -> Any:
    """Return the network after training, deterministic for given versions of torch and Pillow on one CPU."""
    import torch

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    network = _new_network()
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-3)
    steps = len(images) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, EPOCHS * steps)
    generator = np.random.default_rng(SEED)
    for epoch in range(EPOCHS):
        order, losses = generator.permutation(len(images)), []
        for step in range(steps):
            rows = order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
            flips = generator.choice((1, -1), 2)
            logits = network(torch.from_numpy(to_pixels(images[rows, :: flips[0], :: flips[1]])))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[rows]))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {np.mean(losses):.4f}", flush=True)
    return network.eval()


def accuracy_of(network: Any, images: Any, labels: Any) -> float:
    """Return the share of images whose most likely label is right."""
    import torch

    with torch.inference_mode():
        logits = network(torch.from_numpy(to_pixels(images)))
    return float((logits.argmax(1).numpy() == labels).mean())


def write(network: Any, folder: Path) -> None:
    """Write the graph, the files beside it and the example."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / GRAPH).write_bytes(to_onnx(network))
    _write_json(
        folder / PREPROCESSOR,
        {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": SIDE, "width": SIDE},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [MEAN] * 3,
            "image_std": [STD] * 3,
        },
    )
    _write_json(folder / CONFIG, {"id2label": {str(index): label for index, label in enumerate(LABELS)}})
    example = draw(EXAMPLE_LABEL, Random(EXAMPLE_SEED), EXAMPLE_SIDE)
    example.save(folder / EXAMPLE, quality=85)


def _new_network() -> Any:
    from torch import nn

    layers: list[Any] = []
    for inputs, outputs, stride in zip((3, *CHANNELS[:-1]), CHANNELS, STRIDES, strict=True):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS[-1], len(LABELS)))


def to_onnx(network: Any) -> bytes:
    """Return the network as a serialised ONNX graph."""
    from onnx import TensorProto, helper, numpy_helper
    from torch import nn

    nodes: list[Any] = []
    weights: list[Any] = []
    value = "pixel_values"

    def add(kind: str, *constants: Any, **attributes: Any) -> None:
        nonlocal value
        names = [f"{kind.lower()}_{len(nodes)}_{index}" for index in range(len(constants))]
        weights.extend(numpy_helper.from_array(array, name) for array, name in zip(constants, names, strict=True))
        output = f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, [value, *names], [output], **attributes))
        value = output

    for layer, following in zip(network, [*[*network][1:], None], strict=True):
        match layer:
            case nn.Conv2d():
                add("Conv", *_folded(layer, following), pads=[1] * 4, kernel_shape=[3, 3], strides=list(layer.stride))
            case nn.ReLU():
                add("Relu")
            case nn.AdaptiveAvgPool2d():
                add("GlobalAveragePool")
            case nn.Flatten():
                add("Flatten")
            case nn.Linear():
                add("Gemm", layer.weight.detach().numpy(), layer.bias.detach().numpy(), transB=1)
    nodes[-1].output[0] = "logits"
    pixels = helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(LABELS)])
    graph = helper.make_graph(nodes, "shapes", [pixels], [logits], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised


def _folded(convolution: Any, normalization: Any) -> tuple[Any, Any]:
    """Return the weights and biases of a convolution together with the batch normalisation behind it."""
    scale = normalization.weight / (normalization.running_var + normalization.eps).sqrt()
    weights = convolution.weight * scale[:, None, None, None]
    return weights.detach().numpy(), (normalization.bias - normalization.running_mean * scale).detach().numpy()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
