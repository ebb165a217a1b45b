"""A hand-written endpoint for images: FastAPI, Pillow, torchvision's transforms, ONNX Runtime.

`python -m tools.bench.peers.torchvision_server GRAPH LABELS PORT`."""

import io
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image

TOP_K = 5
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _transforms() -> Any:
    """Return the usual transforms of ImageNet. Raises ImportError without torchvision."""
    # torchvision's wheel on PyPI is built for CUDA; with a torch for CPUs, its import asks for these two operators.
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    from torchvision import transforms  # type: ignore[import-not-found]

    steps = [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(_MEAN, _STD)])


def build(graph: str, labels: list[str]) -> FastAPI:
    """One route over one session, on one thread."""
    torch.set_num_threads(1)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    transform = _transforms()
    app = FastAPI()

    @app.post("/infer")
    def infer(image: UploadFile) -> dict[str, Any]:
        picture = Image.open(io.BytesIO(image.file.read())).convert("RGB")
        pixels = transform(picture).unsqueeze(0).numpy()
        logits = torch.from_numpy(session.run(None, {name: pixels})[0])
        best = torch.softmax(logits[0], 0).topk(min(TOP_K, len(labels)))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return {"predictions": [{"label": labels[index], "score": score} for score, index in pairs]}

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "healthy"}

    return app


if __name__ == "__main__":
    uvicorn.run(
        build(sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8").splitlines()),
        port=int(sys.argv[3]),
        log_level="error",
        access_log=False,
    )
