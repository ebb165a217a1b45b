"""`make bench`: the figures that the README states, measured here and now, printed as a table.

The server has one core and the load another, where the machine has two. Rounds of the servers that are compared take
turns, and the median of the rounds is printed: absolute numbers hold for this machine today, ratios hold longer.
"""

import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.models import write_image_model, write_vector_model
from tests.bench.requests_cpu import measure_requests
from tests.bench.startup import measure_startup
from tests.bench.table import Row, print_table
from tests.bench.texts import measure_texts


def main() -> int:
    """0 once every figure is printed. A server that gives a wrong answer raises."""
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {cpu_model()}, Python {platform.python_version()}\n")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        image, vector = Path(folder) / "image.onnx", Path(folder) / "vector.onnx"
        write_image_model(image)
        write_vector_model(vector)
        rows += measure_startup(vector)
        rows += measure_requests(image, vector)
    rows += measure_texts(Path("models"))
    print_table(rows)
    return 0


def cpu_model() -> str:
    """What the kernel calls the processor; empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    sys.exit(main())
