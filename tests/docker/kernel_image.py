"""Let the started image compile a kernel of CUDA devices, on a machine without a GPU."""

import importlib.util
import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
LAUNCHERS = "opt/roundhouse/lib/triton-launcher"


def try_kernel(
    root: Path, volumes: Iterable[str], command: Callable[[Sequence[str]], list[str]]
) -> dict[str, int | float]:
    """Compile a kernel of this server with the launcher of an image, then read it again as after a restart.

    `root`: of the mounted image. `volumes`: its folders that can be written. `command`: makes a command run in the
    image as its user, without the compiler of this machine. Returns the size of the launcher, and seconds.
    """
    (volume,) = volumes
    (launcher,) = (root / LAUNCHERS).glob("*/cuda_utils*.so")
    driver = root / volume.lstrip("/") / "libcuda.so.1"
    builder().make_driver(launcher, driver)
    apart = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={root / 'proc'}"]
    words = [*apart, *command(["python", "-", f"{volume}/triton", f"{volume}/{driver.name}"])]
    script = Path(__file__).with_name("kernel_check.py").read_bytes()
    first, second = (
        json.loads(subprocess.run(words, input=script, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
        for _ in range(2)
    )
    driver.unlink()
    assert first["files"] == second["files"], "expected kept kernels after a restart, got compiled ones"
    return {
        "launcher_kb": round(launcher.stat().st_size / 1000),
        "launcher_loaded_s": round(first["loaded_s"], 2),
        "kernel_compiled_s": round(first["compiled_s"], 2),
    }


def builder() -> ModuleType:
    """Return docker/triton_launcher.py as a module."""
    spec = importlib.util.spec_from_file_location("triton_launcher", ROOT / "docker" / "triton_launcher.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
