"""The Dockerfile and the content of the images; docker/build-check.sh builds and runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.config import check_file
from tests.docker.files import DOCKER, needed, pinned
from tests.e2e.configs import DIGITS
from tests.e2e.server import ROOT, serving, wait_until

DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, flags=re.DOTALL | re.MULTILINE))
VARIANTS = ("onnx", "cpu", "ray", "cuda")


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the repository's root."""
    return subprocess.run(
        words, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=300, check=False
    )


def requirements(device: str, frameworks: str) -> list[str]:
    """Return the lines that docker/requirements.py prints."""
    done = run(sys.executable, "docker/requirements.py", device, frameworks)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", ["Dockerfile", "ray.Dockerfile"])
def test_hadolint_accepts_dockerfile(name: str) -> None:
    beside = Path(sys.executable).parent
    hadolint = shutil.which("hadolint", path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if hadolint is None:
        pytest.skip("needs hadolint")
    done = run(hadolint, f"docker/{name}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("variant", VARIANTS)
def test_image_record_matches_current_inputs(variant: str) -> None:
    recorded = json.loads((DOCKER / "build-check.json").read_text(encoding="utf-8"))[variant]
    words = ("--inputs", "ray") if variant == "ray" else ("--inputs",)
    today = run("docker/build-check.sh", *words, PYTHON=sys.executable).stdout.strip()
    assert recorded["inputs"] == today, f"the inputs of the images have changed: run docker/build-check.sh {variant}"


@pytest.mark.parametrize("frameworks", ["all", "onnx"])
def test_constraints_of_tests_pin_no_image(frameworks: str) -> None:
    """The record of the images does not depend on the versions of checks and tests."""
    packages: set[str] = set()
    for line in requirements("cpu", frameworks):
        needed(Requirement(line), packages)
    assert {"numpy", "fastapi"} <= packages
    assert packages.isdisjoint(pinned("constraints.txt", ROOT / "tests"))


@pytest.mark.parametrize(("variant", "limit_mb"), [("cpu", 1600), ("onnx", 450)])
def test_image_holds_size_and_start_limits(variant: str, limit_mb: int) -> None:
    recorded = json.loads((DOCKER / "build-check.json").read_text(encoding="utf-8"))[variant]
    assert recorded["image_mb"] <= limit_mb
    assert recorded["ready_with_one_onnx_model_s"] <= 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_manual_states_size_of_each_image(variant: str) -> None:
    recorded = json.loads((DOCKER / "build-check.json").read_text(encoding="utf-8"))[variant]
    target = {
        "onnx": "`--target cpu`, `FRAMEWORKS=onnx`",
        "cpu": "`--target cpu`",
        "ray": "`docker/ray.Dockerfile` on `--target cpu`",
        "cuda": "`--target cuda`",
    }[variant]
    assert f"\n| {target} | {recorded['image_mb']:,} MB |" in (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")


def test_cpu_and_cuda_stages_are_alike() -> None:
    cpu, cuda = STAGES["cpu"], STAGES["cuda"]
    assert cpu.strip() == cuda.replace("cuda-", "cpu-").strip()
    assert STAGES["cpu-code"].strip() == STAGES["cuda-code"].strip()
    assert list(STAGES)[-1] == "cuda"


@pytest.mark.parametrize("stage", ["cpu", "cuda"])
def test_image_has_user_health_check_and_volume(stage: str) -> None:
    lines = re.sub(r"\\\n\s*", "", STAGES[stage]).splitlines()
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert "STOPSIGNAL SIGTERM" in lines
    assert "EXPOSE 8080" in lines
    assert 'VOLUME ["/app/models"]' in lines
    assert any(line.startswith("HEALTHCHECK ") and "healthcheck.py" in line for line in lines)
    assert not any("pip" in line or "apt-get" in line for line in lines)


def test_dependency_stage_copies_no_code() -> None:
    for device, more in (("cpu", ""), ("cuda", "docker/triton_launcher.py ")):
        copied = re.findall(r"^COPY (.*)$", STAGES[f"{device}-dependencies"], flags=re.MULTILINE)
        assert copied == [f"pyproject.toml docker/constraints.txt docker/requirements.py docker/slim.py {more}./"]


def test_compiler_stays_in_stage_of_packages() -> None:
    """Images have the launcher that Triton would compile."""
    assert [name for name, stage in STAGES.items() if "gcc" in stage] == ["cuda-dependencies"]
    assert "FROM cuda-base AS cuda\n" in DOCKERFILE


def test_record_has_a_kernel_of_the_image() -> None:
    recorded = json.loads((DOCKER / "build-check.json").read_text(encoding="utf-8"))["cuda"]
    assert 0 < recorded["launcher_kb"] < 1000
    assert recorded["kernel_compiled_s"] > 0


def test_dockerignore_admits_only_copied_paths() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    seen = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE)
    wanted = {source.replace("/${FRAMEWORKS}.toml", "") for line in copied for source in line.split()}
    assert seen == wanted
    assert ignored[1] == "*"
    assert all((ROOT / path).exists() for path in seen)
    tracked = run("git", "ls-files", "-s", *sorted(wanted)).stdout
    links = [ROOT / path for path in re.findall(r"^120000 .*\t(.+)$", tracked, flags=re.MULTILINE)]
    assert ROOT / "app" / "web" / "manual" in links
    assert {link.resolve().relative_to(ROOT).as_posix() for link in links} <= wanted


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_image_installs_the_declared_packages(device: str) -> None:
    names = {re.split(r"[^\w.-]", line)[0] for line in requirements(device, "all")}
    assert {"torch", "transformers", "fastapi", {"cpu": "onnxruntime", "gpu": "onnxruntime-gpu"}[device]} <= names
    lean = requirements(device, "onnx")
    assert names - {re.split(r"[^\w.-]", line)[0] for line in lean} == {
        "av", "jinja2", "llguidance", "numba", "pandas", "safetensors", "torch", "transformers",
        "adlfs", "gcsfs", "huggingface-hub", "s3fs",
        "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk",
    }  # fmt: skip
    assert [line for line in lean if "[" in line] == (["onnxruntime-gpu[cuda,cudnn]>=1.24"] if device == "gpu" else [])


@pytest.mark.parametrize("words", [("tpu", "all"), ("cpu", "jax"), ("cpu",), ()])
def test_unknown_device_or_framework_is_refused(words: tuple[str, ...]) -> None:
    done = run(sys.executable, "docker/requirements.py", *words)
    assert done.returncode == 1
    assert not done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("frameworks", ["all", "onnx"])
def test_configuration_of_image_is_valid(frameworks: str, tmp_path: Path) -> None:
    """The models of the image are replaced by those of this repository."""
    text = (DOCKER / f"config/{frameworks}.toml").read_text(encoding="utf-8")
    served = re.findall(r'^path = "/opt/roundhouse/embedded/(\w+)"$', text, flags=re.MULTILINE)
    assert served == ["digits", "shapes"] + (["tiny_llama"] if frameworks == "all" else [])
    file = tmp_path / "config.toml"
    here = text.replace("/opt/roundhouse", str(ROOT / "app")).replace("/app/models", str(tmp_path))
    file.write_text(here, encoding="utf-8")
    assert not check_file(file, {})
    assert ("torch_models" in text.replace("# ", "#")) == (frameworks == "all")


@pytest.mark.extended
def test_health_check_reports_readiness(tmp_path: Path) -> None:
    missing = '[[models.onnx_models]]\nname = "missing"\npath = "./nowhere"\n'
    with serving(tmp_path, missing + DIGITS) as server:
        environ = {"ROUNDHOUSE_SERVER__HOST": "0.0.0.0", "ROUNDHOUSE_SERVER__PORT": str(server.port)}

        def check() -> tuple[int, str, str]:
            done = run(sys.executable, "-I", "docker/healthcheck.py", **environ)
            return done.returncode, done.stdout, done.stderr

        wait_until(lambda: server.client.get("/models/digits").json()["state"] == "ready")
        assert check() == (1, '{"status":"degraded","waits_for":["missing"]}\n', "")
        assert server.client.delete("/models/missing").status_code == 200
        assert check() == (0, '{"status":"ready"}\n', "")
    status, said, complained = check()
    assert (status, complained) == (1, "")
    assert said.startswith("no response from 0.0.0.0:")
