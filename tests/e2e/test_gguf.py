"""A GGUF file over a real socket: the same greedy texts as the folder that it was made of."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind

from app.cli.commands import main
from tests.e2e.server import MODELS, READY_WITHIN_S, serving, wait_until
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, data_url
from tests.support.gguf_files import write_gguf, write_mmproj
from tests.support.models.vision.catalogue import MAKERS

QUESTION = [{"role": "user", "content": "What is a list?"}]


def test_file_gives_texts_of_its_folder(tmp_path: Path) -> None:
    """The chat template and the end tokens come from the metadata."""
    file = write_gguf(MODELS / "tiny-llama", tmp_path / "tiny.gguf")
    entries = f"""
[models]
cache_dir = "{tmp_path / "cache"}"
[[models.torch_models]]
name = "folder"
path = "{MODELS / "tiny-llama"}"
dtype = "f32"
[[models.torch_models]]
name = "file"
path = "{file}"
dtype = "f32"
"""
    with serving(tmp_path, entries) as server:
        server.wait_ready()
        for body in ({"messages": QUESTION}, {"prompt": "The answer is"}, {"prompt": "It is", "choice": ["yes", "no"]}):
            one, other = (server.infer(name, max_tokens=80, temperature=0, **body) for name in ("folder", "file"))
            for answer in (one, other):
                del answer["model_name"], answer["latency_ms"]
            assert one == other
            assert one["text"]


def test_vision_part_beside_file_reads_images(tmp_path: Path) -> None:
    original, converted = tmp_path / "original", tmp_path / "converted"
    for folder in (original, converted):
        folder.mkdir()
    MAKERS["smolvlm"](original)
    write_gguf(original, converted / "model.gguf", Kind.F32)
    write_mmproj(original, converted / "mmproj-model.gguf", Kind.F32)
    entries = f'[models]\ncache_dir = "{tmp_path / "cache"}"\n'
    for name, folder in (("folder", original), ("files", converted)):
        entries += f'[[models.torch_models]]\nname = "{name}"\npath = "{folder}"\ndtype = "f32"\n'
    picture = {"type": "image_url", "image_url": {"url": data_url(IMAGES[0])}}
    talk = [{"role": "user", "content": [picture, {"type": "text", "text": "tell me"}]}]
    with serving(tmp_path, entries) as server:
        server.wait_ready()
        one, other = (server.infer(name, messages=talk, max_tokens=16, temperature=0) for name in ("folder", "files"))
        assert one["text"] == other["text"] != ""
        listed = {each["id"]: each["capabilities"] for each in server.client.get("/v1/models").json()["data"]}
        assert "vision" in listed["files"]
        server.check_log()


@pytest.mark.nightly
@pytest.mark.parametrize("is_file", [True, False])
def test_quantised_weights_serve_while_compiling(tmp_path: Path, is_file: bool) -> None:
    """The code takes 10 seconds and more; the model changes to it when it is there."""
    path = MODELS / "tiny-llama"
    if is_file:
        path = write_gguf(path, tmp_path / "tiny.gguf", Kind.Q8_0)
    entry = f'[models]\ncache_dir = "{tmp_path}"\n[[models.torch_models]]\nname = "m"\npath = "{path}"\n'
    entry += "" if is_file else 'dtype = "int8"\n'
    code = {"NUMBA_CACHE_DIR": str(tmp_path / "code")}
    with serving(tmp_path, entry, code, is_fork=False) as server:
        server.wait_ready()
        assert server.client.get("/models/m").json()["awaits_kernels"]
        assert server.infer("m", messages=QUESTION, max_tokens=20, temperature=0)["text"]
        [work] = server.client.get("/health").json()["progress"]
        # The original's product, too, is timed beside that of a folder's weights.
        assert (work["kind"], work["name"]) == ("compile", "m")
        assert work["total"] == 2 if is_file else work["total"] > 2
        wait_until(lambda: not server.client.get("/models/m").json()["awaits_kernels"], READY_WITHIN_S)
        assert server.events("the model uses compiled kernels", model="m", compiled_step=True)
        assert server.client.get("/health").json()["progress"] == []
        assert server.infer("m", messages=QUESTION, max_tokens=20, temperature=0)["text"]


def test_check_names_cut_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = write_gguf(MODELS / "tiny-llama", tmp_path / "whole.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    config = tmp_path / "config.toml"
    entry = '[[models.torch_models]]\nname = "{}"\npath = "{}"\n'
    config.write_text(entry.format("whole", whole) + entry.format("cut", cut))
    assert main(["check", str(config)]) == 2
    printed = "".join(capsys.readouterr())
    assert "cut.gguf: tensor" in printed
    assert "is the copy complete?" in printed
    assert "whole.gguf" not in printed
