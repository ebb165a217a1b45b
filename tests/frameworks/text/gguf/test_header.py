"""Headers of GGUF files: what they say, and files that are cut, changed or lie."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from frameworks.core.errors import InvalidModel
from frameworks.text.gguf.header import read_header

Change = Callable[[bytearray], None]
# Offsets in any file: magic 0, version 4, number of tensors 8, number of keys 16, length of the first key 24.
_NUM_TENSORS, _NUM_KEYS, _FIRST_KEY = 8, 16, 24
MIB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every type of metadata and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_float32("a.factor", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_array("a.texts", ["one", "two", "drei ä"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    blocks = gguf.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def changed(file: Path, folder: Path, change: Change) -> Path:
    content = bytearray(file.read_bytes())
    change(content)
    other = folder / "changed.gguf"
    other.write_bytes(content)
    return other


def at(file: Path, text: bytes) -> int:
    """The offset after a key or a name."""
    return file.read_bytes().index(text) + len(text)


def test_header_is_read(file: Path) -> None:
    header = read_header(file)
    assert header.text("general.architecture") == "llama"
    assert (header.integer("a.count"), header.number("a.factor"), header.flag("a.flag", False)) == (7, 0.5, True)
    assert header.strings("a.texts") == ["one", "two", "drei ä"]
    assert header.numbers("a.numbers") == [1, 2, 3]
    plain, blocks = header.tensors["plain"], header.tensors["blocks"]
    assert (plain.shape, plain.block_type.name, plain.size_bytes) == ((2, 3), "F32", 24)
    assert (blocks.shape, blocks.block_type.name, blocks.size_bytes) == ((4, 64), "Q8_0", 4 * 2 * 34)
    content = np.frombuffer(file.read_bytes()[plain.start : plain.start + 24], np.float32)
    assert content.tolist() == [0, 1, 2, 3, 4, 5]


def test_digest_is_of_header_only(file: Path, tmp_path: Path) -> None:
    def weights(content: bytearray) -> None:
        content[-1] ^= 1

    def metadata(content: bytearray) -> None:
        content[at(file, b"a.count") + 4] ^= 1

    digest = read_header(file).digest
    assert read_header(changed(file, tmp_path, weights)).digest == digest
    assert read_header(changed(file, tmp_path, metadata)).digest != digest


def test_every_cut_file_is_refused(file: Path, tmp_path: Path) -> None:
    content = file.read_bytes()
    header = read_header(file)
    end = max(tensor.start + tensor.size_bytes for tensor in header.tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in range(end):
        cut.write_bytes(content[:length])
        with pytest.raises(InvalidModel, match=r"cut\.gguf"):
            read_header(cut)


def _number(offset: int, form: str, number: int) -> Change:
    def change(content: bytearray) -> None:
        struct.pack_into(form, content, offset, number)

    return change


def test_lying_numbers_are_refused_cheaply(file: Path, tmp_path: Path) -> None:
    texts, name = at(file, b"a.texts"), at(file, b"blocks")
    lies = {
        "the number of tensors: expected at most": _number(_NUM_TENSORS, "<Q", 1 << 40),
        "the number of metadata keys: expected at most": _number(_NUM_KEYS, "<Q", 1 << 62),
        r"expected \d+ bytes from byte": _number(_FIRST_KEY, "<Q", 1 << 63),
        "a.texts: expected at most": _number(texts + 8, "<Q", 1 << 33),
        "tensor blocks: expected 1 to 4 dimensions": _number(name, "<I", 1 << 31),
        r"tensor blocks: expected rows of a multiple of 32": _number(name + 4, "<Q", 63),
        r"tensor blocks: expected \d+ bytes from byte \d+, got a file": _number(name + 12, "<Q", 1 << 60),
        "tensor blocks: expected a type of F32, .*, got type 10 of ggml": _number(name + 20, "<I", 10),
        r"tensor blocks: expected 272 bytes from byte": _number(name + 24, "<Q", 1 << 50),
        "expected version 2 or 3 of GGUF, got 50331648; it is for big-endian machines": _number(4, ">I", 3),
    }
    for message, lie in lies.items():
        other = changed(file, tmp_path, lie)
        tracemalloc.start()
        with pytest.raises(InvalidModel, match=message):
            read_header(other)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < MIB


def test_any_changed_byte_is_read_or_refused(file: Path, tmp_path: Path) -> None:
    content, numbers = file.read_bytes(), random.Random(0)
    other = tmp_path / "other.gguf"
    outcomes = set()
    for _ in range(1500):
        changed_content = bytearray(content)
        for _ in range(numbers.randint(1, 3)):
            changed_content[numbers.randrange(len(content))] = numbers.choice([0, 1, 127, 128, 255])
        other.write_bytes(changed_content)
        try:
            read_header(other)
            outcomes.add("read")
        except InvalidModel:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_other_content_is_refused(tmp_path: Path) -> None:
    for content, message in (
        (b"", "expected a GGUF file, got one that cannot be read"),
        (b"PK\3\4" + bytes(100), "expected a GGUF file, got one that begins with"),
    ):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(InvalidModel, match=message):
            read_header(path)
    with pytest.raises(InvalidModel, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.gguf")
