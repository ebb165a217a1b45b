"""Parts of torch and transformers that are left out, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models.causal_folders import save_causal_model
from tests.support.models.torch_folders import save_embedder

pytestmark = pytest.mark.extended

LOAD = """
import sys
from pathlib import Path
from tests.frameworks.models.loading import load_torch, rows_of

# numba looks for it. Images have none, and transformers must not need it.
sys.modules["scipy"] = None
encoder = load_torch(Path(sys.argv[1]))
encoder.warm_up()
rows_of(encoder, ["a text"])
for name in ("sympy", "torch.export.exported_program", "frameworks.pytorch.generation"):
    assert name not in sys.modules, name
from tests.frameworks.pytorch.generation.generating import load_generating, request, run_out

model = load_generating(Path(sys.argv[2]))
model.warm_up()
model.add(request(1, [1, 2, 3]))
run_out(model)
for name in ("torch._dynamo.config", "torch.distributed.tensor", "torch._refs"):
    assert name not in sys.modules, name
import transformers
for module in (transformers, transformers.models):
    assert "_complete" not in vars(module), module
"""

COMPILER = """
assert "torch._dynamo.config" not in sys.modules
{use}
assert "torch._dynamo.config" in sys.modules
import torch._dynamo._trace_wrapped_higher_order_op as transforms
assert transforms.trace_wrapped
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
"""

EXPORT = """
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2

assert "sympy" not in sys.modules
rows = torch.export.Dim("rows")
program = torch.export.export(Double(), (torch.ones(2, 3),), dynamic_shapes=({0: rows},))
assert program.module()(torch.ones(5, 3)).sum() == 30
assert "sympy" in sys.modules
"""

# On a device without memory, rfft and nonzero have kernels in Python only.
SHAPES = """
from pathlib import Path
from frameworks.core.devices import Device
from frameworks.pytorch.loader import load_encoder
from transformers import BertModel

class Transformed(BertModel):
    def __init__(self, config):
        super().__init__(config)
        self.spectrum = torch.nn.Buffer(torch.fft.rfft(torch.ones(8)).abs(), persistent=False)

torch.Generator()
assert "torch._refs" not in sys.modules
transformers.models.bert.modeling_bert.BertModel = Transformed
model = load_encoder(Path({folder!r}), False, False, "f32", Device("cpu", 0, "", 0, 0))
assert type(model) is Transformed
assert model.spectrum.shape == (5,)
assert "torch._refs" in sys.modules
torch.Generator()
assert torch.ones(3, device="meta").cummax(0).values.shape == (3,)
"""

NAMES = """
assert not hasattr(transformers, "NoModel")
# Another name of a tokenizer, which the base class finds among all of them.
assert transformers.XLMRobertaTokenizerFast.__name__ == "XLMRobertaTokenizer"
assert transformers.LlamaConfig is transformers.models.llama.LlamaConfig
assert transformers.models.LlamaConfig is transformers.LlamaConfig
for module in (transformers, transformers.models):
    assert "BertModel" in dir(module), module
    assert "BertModel" in module.__all__, module
    assert "AutoModel" in module.__all__, module
"""

USES = {
    "attribute of the compiler": COMPILER.format(use="torch._dynamo.config.recompile_limit"),
    "module of the compiler": COMPILER.format(use="import torch._dynamo.utils"),
    "transform of masks": COMPILER.format(use="with masking_utils.TransformGetItemToIndex(): pass"),
    "export of graphs": EXPORT,
    "names of classes": NAMES,
}

RUN_EACH = """
import frameworks.pytorch.registry
import os, sys, torch, traceback, transformers
from transformers import masking_utils

failed = []
for name, use in eval(sys.argv[1]).items():
    if (pid := os.fork()) == 0:
        try:
            exec(use, globals())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
assert not failed, failed
"""


def run(code: str, *arguments: object) -> None:
    """Run the code in a process. Raises AssertionError with its output if it fails."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_models_run_without_unused_parts(tmp_path: Path) -> None:
    run(LOAD, save_embedder(tmp_path / "encoder"), save_causal_model(tmp_path / "generator"))


@pytest.mark.nightly
def test_unused_parts_are_imported_when_used(tmp_path: Path) -> None:
    """Each use has a process of its own, with a copy of the imported framework."""
    encoder = save_embedder(tmp_path / "encoder")
    run(RUN_EACH, {**USES, "shapes of results": SHAPES.format(folder=str(encoder))})
