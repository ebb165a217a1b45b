"""Run the client libraries of other projects against a server of this one: `make test-clients`.

    python -m tests.clients.run [GROUP …]

A group is a folder here: `requirements.txt` names its clients, `check_*.py` are its tests. Each group has a virtual
environment of its own below .cache/clients, because the clients of two groups may need different versions of a package.
Each group has a server of its own, with one model of each kind for texts, so that clients which name no model are
answered. The generating model of the groups in _TOOL_GROUPS has tools and thinking in its chat template. The groups in
_BORROWING_GROUPS see the packages of the project, so that none of them installs PyTorch again. The server of the groups
in _TENSOR_GROUPS has the embedded models and a model of each datatype. It speaks gRPC too, and asks for a key.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from hashlib import sha256
from pathlib import Path

from app.config import API_KEY_VARIABLE
from app.embedded.copy_tiny_vision import EXAMPLE
from tests.e2e.configs import ALL_KINDS, EMBEDDED, onnx_entries, text_entries
from tests.e2e.server import GRPC_PORT, MODELS, ROOT, serving
from tests.support.models.causal_folders import save_tool_model
from tests.support.models.onnx_graphs import ONNX_DTYPES

FOLDER = Path(__file__).parent
ENVIRONMENTS = ROOT / ".cache" / "clients"
INSTALL_WITHIN_S = 900
CHECK_WITHIN_S = 600

_MODELS = f"""
[[models.torch_models]]
name = "minilm"
path = "{MODELS / "minilm"}"
"""
_TOOL_GROUPS = frozenset({"fields", "haystack", "litellm", "messages", "node", "ollama", "responses", "tools"})
_BORROWING_GROUPS = frozenset({"evaluators", "guidellm"})
_SEEING_GROUPS = frozenset({"vision"})
_TENSOR_GROUPS = frozenset({"kserve", "mlserver"})
_KEY = "the-key-of-the-checked-clients"
_TEXT_MODELS = ("classify", "cross-encoder")


def main(names: list[str]) -> int:
    """Check the groups with these names, or all; return the exit status."""
    groups = [each for each in sorted(FOLDER.iterdir()) if (each / "requirements.txt").is_file()]
    unknown = set(names) - {each.name for each in groups}
    if unknown:
        print(f"expected groups of {FOLDER.name}, got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    chosen = [each for each in groups if not names or each.name in names]
    pythons = [_environment(each) for each in chosen]
    failed = [each.name for each, python in zip(chosen, pythons, strict=True) if _serve_and_check(each, python)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _environment(group: Path) -> Path:
    """Return the Python of a group's environment, which is made again when its requirements have changed."""
    requirements = group / "requirements.txt"
    folder = ENVIRONMENTS / group.name
    stamp, digest = folder / "digest", sha256(requirements.read_bytes()).hexdigest()
    python = folder / "bin" / "python"
    if not (stamp.is_file() and stamp.read_text() == digest):
        print(f"installing the clients of {group.name}", flush=True)
        _install([sys.executable, "-m", "venv", "--clear", str(folder)])
        if group.name in _BORROWING_GROUPS:
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _install([str(python), "-m", "pip", "install", "--quiet", "--progress-bar", "off", "-r", str(requirements)])
        stamp.write_text(digest)
    return python


def _install(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=INSTALL_WITHIN_S)


def _serve_and_check(group: Path, python: Path) -> int:
    """Run the tests of a group against a server; return the exit status."""
    environ = {GRPC_PORT: "", API_KEY_VARIABLE: _KEY} if group.name in _TENSOR_GROUPS else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, _config(group, folder), environ) as server:
            server.wait_ready()
            status = _check(group, python, server.url)
            server.check_log()
    return status


def _config(group: Path, folder: Path) -> str:
    if group.name in _TENSOR_GROUPS:
        return EMBEDDED + onnx_entries(folder, {name: ALL_KINDS[name] for name in ONNX_DTYPES})
    entries = [f"[[models.{each}" for each in text_entries(folder).split("[[models.") if each]
    texts = "".join(each for each in entries if any(f'name = "{name}"' in each for name in _TEXT_MODELS))
    name, path = "tiny-llama", MODELS / "tiny-llama"
    if group.name in _TOOL_GROUPS:
        name, path = "caller", save_tool_model(folder / "caller", "hermes", max_position_embeddings=4096)
    if group.name in _SEEING_GROUPS:
        return f'[[models.torch_models]]\nname = "tiny-vision"\npath = "{MODELS / "tiny-vision"}"\n'
    # The scores of evaluators are compared with those of another program, on any device.
    return f'{_MODELS}[[models.torch_models]]\nname = "{name}"\npath = "{path}"\ndtype = "f32"\n{texts}'


def _check(group: Path, python: Path, url: str) -> int:
    """Run the tests of a group; return the exit status."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ = own | {"ROUNDHOUSE_URL": url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    # LiteLLM fetches a list of prices otherwise.
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environ |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "ROUNDHOUSE_MODEL": str(MODELS / "tiny-llama")}
    environ[API_KEY_VARIABLE] = _KEY
    environ["ROUNDHOUSE_PICTURE"] = str(MODELS / "tiny-vision" / EXAMPLE)
    words = [str(python), "-m", "pytest", "-q", "-c", str(FOLDER / "pytest.ini"), "--rootdir", str(group), str(group)]
    return subprocess.run(words, env=environ, timeout=CHECK_WITHIN_S, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
