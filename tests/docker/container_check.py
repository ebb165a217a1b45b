"""Run an image's root like a container, send it requests, stop it, and record the results.

docker/build-check.sh starts this module in network and mount namespaces of its own. The server is the first process and
has no root rights. Only the volume and /tmp are writable. Command, user and environment are those of the image.
"""

import base64
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

from tests.docker.kernel_image import try_kernel

READY_WITHIN_S = 300
RAY_WITHIN_S = 300
RAY_NODE = "ray start --head --num-cpus=4 --include-dashboard=false --object-store-memory=100000000"
STARTS = 3
DIGIT = {
    "input_data": [
        0, 0, 9, 16, 10, 1, 0, 0, 0, 0, 8, 3, 16, 4, 0, 0, 0, 0, 0, 5, 14, 2, 0, 0, 0, 0, 2, 16, 15, 7, 0, 0,
        0, 0, 0, 0, 3, 15, 2, 0, 0, 4, 6, 0, 0, 13, 7, 0, 0, 6, 13, 1, 5, 16, 3, 0, 0, 0, 10, 16, 15, 5, 0, 0,
    ]
}  # fmt: skip
"""A handwritten 3."""
KEY = "a-key-of-the-environment"
ONE_MODEL = "/opt/roundhouse/embedded/digits"
NOT_IN_AN_IMAGE = ("gcc", "cc", "c++", "make", "git")
PARTS = ("torch", "nvidia", "triton", "transformers", "sympy", "onnxruntime", "onnx", "numpy")
"""The largest packages; their share of the image is recorded."""


class Image:
    """The unpacked root of an image, and its configuration."""

    def __init__(self, root: Path, inspected: dict[str, Any]) -> None:
        """`inspected`: the output of `buildah inspect`."""
        self.root = root
        self.config: dict[str, Any] = inspected["Docker"]["config"]
        self.environment: list[str] = [*self.config["Env"], f"ROUNDHOUSE_API_KEY={KEY}"]
        self.user, _, self.group = self.config["User"].partition(":")

    def mount(self) -> None:
        """Mount the root as `--read-only --tmpfs /tmp` does; the mounts end with the namespace of this process."""
        mount("--bind", self.root, self.root)
        mount("--options", "remount,bind,ro", self.root)
        for folder in ("dev", "sys"):
            mount("--rbind", f"/{folder}", self.root / folder)
        mount("--types", "tmpfs", "--options", "noexec,nosuid,nodev", "tmpfs", self.root / "tmp")
        (volume,) = self.config["Volumes"]
        owned = f"uid={self.user},gid={self.group}"
        mount("--types", "tmpfs", "--options", owned, "tmpfs", self.root / volume.lstrip("/"))

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command that runs `words` in the image with its user, folder and environment only."""
        inside = ["chroot", f"--userspec={self.user}:{self.group}", "--groups=", str(self.root)]
        return [
            *inside,
            "env",
            "--ignore-environment",
            f"--chdir={self.config['WorkingDir']}",
            *self.environment,
            *words,
        ]

    def is_healthy(self) -> bool:
        """Run the image's HEALTHCHECK."""
        kind, *words = self.config["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        return subprocess.run(self.command(words), stdout=subprocess.DEVNULL, check=False).returncode == 0

    def check_refusal(self) -> None:
        """Check that a server without a key refuses to start, as it listens beyond loopback."""
        words = ["env", "--unset=ROUNDHOUSE_API_KEY", *self.config["Entrypoint"], *self.config["Cmd"]]
        done = subprocess.run(self.command(words), capture_output=True, text=True, timeout=READY_WITHIN_S, check=False)
        assert done.returncode == 2, done.stderr
        assert "roundhouse keys create" in done.stderr, done.stderr

    def check_contents(self) -> None:
        """Check that the image holds the manual, no build tools and no caches, and that its modules are compiled."""
        paths = [path for each in self.environment if each.startswith("PATH=") for path in each[5:].split(":")]
        there = [word for word in NOT_IN_AN_IMAGE for path in paths if (self.root / path.lstrip("/") / word).exists()]
        caches = [folder for folder in ("root/.cache", "app/.cache", "build") if (self.root / folder).exists()]
        lists = list((self.root / "var/lib/apt/lists").glob("*_Packages*"))
        assert [there, caches, lists] == [[], [], []], (there, caches, lists)
        assert (self.packages() / "app/web/manual/index.md").is_file(), "expected the manual, a link to docs"
        compiled = list(self.packages().rglob("*.pyc"))
        stale = [path for path in compiled if not is_compiled(path)]
        assert compiled
        assert not stale, f"expected .pyc files without a time check, got {stale[:3]}"
        assert self.user.isdigit(), "expected a numeric user: a name may be root"
        assert self.user != "0"

    def sizes_mb(self) -> dict[str, Any]:
        """Return the megabytes of the image, of its base and of its largest packages."""
        total, installed = megabytes(self.root), megabytes(self.root / "opt/roundhouse")
        packages = self.packages()
        parts = {part: megabytes(packages / part) for part in PARTS if (packages / part).exists()}
        return {"image_mb": total, "of_these_mb": {"base": total - installed, **parts}}

    def packages(self) -> Path:
        """Return the folder of the packages that pip installed."""
        (folder,) = (self.root / "opt/roundhouse/lib").glob("python3*/site-packages")
        return folder


class Container:
    """A process tree of its own whose first process is the image's command."""

    def __init__(self, image: Image, arguments: Sequence[str], entrypoint: Sequence[str] | None = None) -> None:
        """`arguments`: those of `docker run` after the name of the image; none: the CMD of the image.

        `entrypoint`: replaces that of the image.
        """
        entry = image.config["Entrypoint"] if entrypoint is None else list(entrypoint)
        words = entry + list(arguments or image.config["Cmd"])
        apart = ["unshare", "--pid", "--fork", "--kill-child", f"--mount-proc={image.root / 'proc'}"]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen([*apart, *image.command(words)], stderr=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            # All processes of the namespace end with its first one. The change of the user has undone --kill-child.
            os.kill(self.first_process(), signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def seconds_to_ready(self, within_s: float = READY_WITHIN_S) -> float:
        """Return the time from the start until /health/ready answers 200."""
        while time.monotonic() - self.started_s < within_s:
            if self.process.poll() is not None:
                raise SystemExit(f"the server ended: {self.rest_of_log()}")
            try:
                if ask("GET", "/health/ready")[0] == http.client.OK:
                    return time.monotonic() - self.started_s
            except OSError:
                time.sleep(0.01)
        raise SystemExit("the server did not become ready")

    def stop(self, stop_signal: str) -> float:
        """Stop the server as `docker stop` does while a request is half sent, and return the seconds that it took.

        The request must be answered, and the exit status must be 0.
        """
        body = json.dumps(DIGIT).encode()
        head = b"POST /models/digits/infer HTTP/1.1\r\nhost: roundhouse\r\nx-api-key: %s\r\ncontent-length: %d\r\n\r\n"
        head %= (KEY.encode(), len(body))
        with socket.create_connection(("127.0.0.1", 8080), timeout=10) as half_sent:
            half_sent.sendall(head + body[:20])
            time.sleep(0.1)
            stopped_s = time.monotonic()
            os.kill(self.first_process(), signal.Signals[stop_signal])
            time.sleep(0.1)
            half_sent.sendall(body[20:])
            answer = half_sent.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert b'"output_data":[3]' in answer.replace(b" ", b""), answer
        log = self.rest_of_log()
        assert self.process.wait(30) == 0, log
        assert "Traceback" not in log, log
        return time.monotonic() - stopped_s

    def first_process(self) -> int:
        """Return the process id of the server outside its namespace; inside it is 1."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        (child,) = children.split()
        return int(child)

    def rest_of_log(self) -> str:
        """Return the rest of the log of a server that has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode("utf-8", "replace")


def main(variant: str, inputs: str, root: str, inspected: str, record: str) -> int:
    """Check one image and add the results to the file `record`.

    `inputs`: the hash of the image's inputs. `inspected`: a file with the output of `buildah inspect`.
    """
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    image = Image(Path(root), json.loads(Path(inspected).read_text(encoding="utf-8")))
    image.check_contents()
    found: dict[str, Any] = {"inputs": inputs, "checked_on": time.strftime("%Y-%m-%d"), **image.sizes_mb()}
    image.mount()
    image.check_refusal()
    found |= try_all_models(image)
    if variant == "cuda":
        found |= try_kernel(image.root, image.config["Volumes"], image.command)
    found["ready_with_all_models_s"] = round(median(start_once(image, []) for _ in range(STARTS)), 2)
    found["ready_with_one_onnx_model_s"] = round(
        median(start_once(image, ["serve", ONE_MODEL]) for _ in range(STARTS)), 2
    )
    if variant == "ray":
        found["ready_on_ray_s"] = round(try_ray(image), 2)
    noted = json.loads(Path(record).read_text(encoding="utf-8")) if Path(record).exists() else {}
    Path(record).write_text(json.dumps(noted | {variant: found}, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({variant: found}, indent=2))
    return 0


def try_all_models(image: Image) -> dict[str, Any]:
    """Start the image with its own CMD, send a request to every model, stop it."""
    with Container(image, []) as container:
        assert not image.is_healthy(), "it cannot be ready yet"
        seconds = container.seconds_to_ready()
        assert image.is_healthy()
        answers = {"digits": answer_of("digits", DIGIT)["output_data"]}
        assert answers["digits"] == [3], answers
        photo = (image.packages() / "app/embedded/shapes/example.jpg").read_bytes()
        (labels,) = answer_of("shapes", {"image": base64.b64encode(photo).decode()})["predictions"]
        answers["shapes"] = labels[0]["label"]
        _, models = ask("GET", "/models")
        if "tiny-llama" in [model["name"] for model in models["models"]]:
            question = {"prompt": "A list is", "max_tokens": 20, "temperature": 0}
            answers["tiny-llama"] = answer_of("tiny-llama", question)["text"]
            assert answers["tiny-llama"], answers
        assert "roundhouse_requests_total" in ask("GET", "/metrics")[1]
        assert ask("GET", "/docs/swagger-ui-bundle.js")[0] == http.client.OK
        stopped = container.stop(image.config["StopSignal"])
    return {"ready_at_first_start_s": round(seconds, 2), "answers": answers, "drained_in_s": round(stopped, 2)}


def start_once(image: Image, arguments: Sequence[str]) -> float:
    """Return the seconds until a server with these arguments is ready."""
    with Container(image, arguments) as container:
        seconds = container.seconds_to_ready()
        container.stop(image.config["StopSignal"])
    return seconds


def try_ray(image: Image) -> float:
    """Start a node of Ray in the image, deploy the models there and send requests. Returns the seconds until ready."""
    script = f"{RAY_NODE} && roundhouse deploy /app/config.toml --address 127.0.0.1:6379 && exec sleep infinity"
    with Container(image, ["-c", script], ["sh"]) as container:
        seconds = container.seconds_to_ready(RAY_WITHIN_S)
        assert answer_of("digits", DIGIT)["output_data"] == [3]
        question = {"prompt": "A list is", "max_tokens": 20, "temperature": 0}
        assert answer_of("tiny-llama", question)["text"]
    return seconds


def answer_of(model: str, question: object) -> Any:
    """Return the response of a request that must be answered with 200."""
    status, answer = ask("POST", f"/models/{model}/infer", question)
    assert status == http.client.OK, answer
    return answer


def is_compiled(path: Path) -> bool:
    """Return whether Python ignores the time of this .pyc's source (PEP 552: unchecked hash, flags 1)."""
    flags: int = struct.unpack("<4sI", path.read_bytes()[:8])[1]
    return flags == 1


def megabytes(path: Path) -> int:
    """Return the megabytes below a folder; a hard-linked file counts once."""
    done = subprocess.run(["du", "--summarize", "--bytes", path], stdout=subprocess.PIPE, text=True, check=True)
    return round(int(done.stdout.split()[0]) / 1e6)


def mount(*words: object) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *map(str, words)], check=True)


def ask(method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Return the status and the decoded response of the server at the image's port. Raises OSError without a server."""
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=30)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, body=text, headers={"x-api-key": KEY})
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(content) if content.startswith((b"{", b"[")) else content.decode()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
