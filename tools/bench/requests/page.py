"""Measure the web page: the bytes of its first load, and what open pages cost the server and its other clients."""

import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from posixpath import dirname, join, normpath
from statistics import median

import orjson

from app.http.page.files import WebFile, WebSite
from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_PAGES = 50
_ROUNDS = 5
_REQUESTS = 600
_IDLE_S = 10.0
_REFERENCE = re.compile(rb"""(?:from|import)\s*["'](\.[^"']+)["']|(?:src|href)="([^"]+)\"""")


def measure_page(model: Path) -> list[Row]:
    """Return the sizes, and the figures of pages that are open. `model`: with one vector as its input."""
    return [*_size_rows(), *_open_rows(model)]


def _size_rows() -> list[Row]:
    site = WebSite.read()
    if site is None:
        return [Row("the web page, first load", "not in this checkout", "≤ 150 KB")]
    loaded = {"index.html": site.index} | _static_imports(site)
    size = sum(
        len(file.content or b"") if file.compressed is None else len(file.compressed) for file in loaded.values()
    )
    return [Row("the web page, first load: compressed", f"{size / 1000:.0f} KB", "≤ 150 KB", f"{len(loaded)} files")]


def _static_imports(site: WebSite) -> dict[str, WebFile]:
    """Return the files that the page loads before it is asked for more: scripts, styles and their static imports."""
    found: dict[str, WebFile] = {}
    left = [(name.removeprefix(site.base).lstrip("/"), "") for name in _references(site.index.content or b"")]
    while left:
        name, folder = left.pop()
        path = normpath(join(folder, name))
        file = site.files.get(path)
        if file is not None and path not in found:
            found[path] = file
            if file.media_type.startswith(b"text/javascript"):
                left += [(each, dirname(path)) for each in _references(file.content or b"")]
    return found


def _references(content: bytes) -> list[str]:
    return [(one or other).decode() for one, other in _REFERENCE.findall(content)]


def _open_rows(model: Path) -> list[Row]:
    """Return CPU shares of an idle server, and the median latency of small requests in alternating rounds."""
    body = orjson.dumps({"input_data": [0.5] * 16})
    with on_cores(LOAD_CORES), roundhouse([str(model)]) as server:
        for _ in range(_REQUESTS):
            server.post("/models/vector/infer", body)
        shares = {}
        for pages in (0, 1, _PAGES):
            with _open_pages(server, pages):
                shares[pages] = _cpu_share(server)
        latencies: dict[int, list[float]] = {0: [], _PAGES: []}
        for _ in range(_ROUNDS):
            for pages, figures in latencies.items():
                with _open_pages(server, pages):
                    figures.append(_median_ms(server, body))
    alone, beside = median(latencies[0]), median(latencies[_PAGES])
    return [
        Row("CPU of an idle server, no page open", _share(shares[0])),
        Row("the same, one page open", _share(shares[1]), "≤ 0.10 % more", f"{_share(shares[1] - shares[0])} more"),
        Row(
            f"the same, {_PAGES} pages open", _share(shares[_PAGES]), "-", f"{_share(shares[_PAGES] - shares[0])} more"
        ),
        Row(
            f"p50 of a small request beside {_PAGES} open pages",
            f"{beside:.3f} ms",
            "-",
            f"without a page {alone:.3f} ms: {beside / alone:.2f}",
        ),
    ]


def _cpu_share(server: RunningServer) -> float:
    """Return the share of a core over some seconds without requests."""
    time.sleep(1.0)  # the first events are larger
    before_s, started_s = _run_s(server), time.perf_counter()
    time.sleep(_IDLE_S)
    return (_run_s(server) - before_s) / (time.perf_counter() - started_s)


def _run_s(server: RunningServer) -> float:
    """Return the CPU seconds of all threads; those of the process are counted in ticks of 10 ms."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _median_ms(server: RunningServer, body: bytes) -> float:
    taken_s = []
    for _ in range(_REQUESTS):
        started_s = time.perf_counter()
        server.post("/models/vector/infer", body)
        taken_s.append(time.perf_counter() - started_s)
    return median(taken_s) * 1e3


@contextmanager
def _open_pages(server: RunningServer, count: int) -> Iterator[None]:
    """Read the events of so many pages in a thread."""
    with selectors.DefaultSelector() as selector:
        sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
        received = dict.fromkeys(sockets, 0)
        for each in sockets:
            each.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            selector.register(each, selectors.EVENT_READ)
        ended = threading.Event()

        def read() -> None:
            while not ended.is_set():
                for key, _ in selector.select(0.05) if sockets else ():
                    assert isinstance(key.fileobj, socket.socket)
                    received[key.fileobj] += len(key.fileobj.recv(1 << 20))
                if not sockets:
                    return

        reader = threading.Thread(target=read)
        reader.start()
        try:
            while not all(received.values()):
                time.sleep(0.01)
            yield
        finally:
            ended.set()
            reader.join()
            for each in sockets:
                each.close()


def _share(share: float) -> str:
    return f"{share * 100:.3f} %"
