"""A graph as its files have it, before it is quantized."""

from dataclasses import dataclass
from pathlib import Path

from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.onnx.graph_summary import GraphSummary
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.session import open_session
from frameworks.onnx.text_model import OnnxTextModel, with_text

Model = OnnxModel | OnnxTextModel

# Dynamic quantization is for the CPU: other providers have no kernels for it.
CPU = ProviderChoice([("CPUExecutionProvider", {})], None)


@dataclass(frozen=True, slots=True)
class Original:
    """The model to quantize. `bytes_before`: its weights on disk, external data included."""

    file: Path
    summary: GraphSummary
    entry: OnnxModelEntry
    bytes_before: int
    intra_op_threads: int

    def open(self, file: Path) -> Model:
        """Open the model as this entry serves it, its graph from `file`, its tokenizer from the model's own folder."""
        session = open_session(file, CPU, self.intra_op_threads, 1)
        model = with_text(
            [OnnxModel(session, self.file, CPU, 0, self.entry)], self.file, self.entry.allow_pickled_weights
        )[0]
        assert isinstance(model, OnnxModel | OnnxTextModel)
        return model
