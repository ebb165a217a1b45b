"""Compile a kernel of CUDA devices in an image, without a GPU: `python kernel_check.py FOLDER DRIVER`.

container_check.py sends this file to an image. The launcher is loaded as at the load of a model. `DRIVER` is a library
with the names of CUDA's driver. Triton then compiles a kernel of this server to machine code, and keeps it in `FOLDER`.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

CAPABILITY = 90


def main() -> None:
    """Print the seconds, and the files in the folder with their times, as JSON."""
    folder, driver = Path(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(driver)
    from frameworks.pytorch.device_kernels import code_folder, launcher

    started_s = time.monotonic()
    code_folder.keep_code_in(folder)
    reason = launcher.failure()
    loaded_s = time.monotonic() - started_s
    assert reason is None, reason
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaUtils
    from triton.compiler import ASTSource

    from frameworks.pytorch.device_kernels.layer_kernels import _gate

    # Code of the launcher: it makes the description of a kernel's arguments.
    assert CudaUtils().build_signature_metadata(["*bf16", "*bf16", "i32"])
    constants = {"IS_GELU": True, "COLUMNS": 1024}
    signature = {name: "constexpr" if name in constants else "*bf16" for name in _gate.arg_names} | {"size": "i32"}
    started_s = time.monotonic()
    compiled = compile_kernel(ASTSource(_gate, signature, constants), target=GPUTarget("cuda", CAPABILITY, 32))
    compiled_s = time.monotonic() - started_s
    assert compiled.asm["cubin"]
    assert folder.stat().st_mode & 0o777 == 0o700, oct(folder.stat().st_mode)
    files = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert any(Path(file).name.startswith("cuda_utils") for file in files), files
    print(json.dumps({"loaded_s": loaded_s, "compiled_s": compiled_s, "files": files}))


if __name__ == "__main__":
    main()
