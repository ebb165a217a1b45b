"""Read the labels of an image classifier: of `config.json`, or of a text file with a label in each line."""

from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

FILE = "labels.txt"

_MAX_FILE_BYTES = 16 * 1024**2


def read_labels(folder: Path) -> tuple[str, ...]:
    """Return the labels of `labels.txt`, else those of `config.json`; empty without both. Raises InvalidModel."""
    if (folder / FILE).is_file():
        return read_label_file(folder / FILE)
    return read_config_labels(folder)


def read_label_file(file: Path) -> tuple[str, ...]:
    """Return the lines of a text file. Raises InvalidModel."""
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise InvalidModel(f"{file}: expected at most {_MAX_FILE_BYTES} bytes of labels; name another file")
        lines = [line.strip() for line in file.read_text("utf-8-sig").rstrip().splitlines()]
    except OSError as error:
        raise InvalidModel(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{file}: expected text in UTF-8 with a label in each line, got other bytes") from error
    if not lines or not all(lines):
        raise InvalidModel(f"{file}: expected a label in each line, got an empty one; remove or fill it")
    return tuple(lines)


def read_config_labels(folder: Path) -> tuple[str, ...]:
    """Return id2label of `config.json`; empty without it. Raises InvalidModel."""
    named = read_json(folder / "config.json").get("id2label")
    if named is None:
        return ()
    try:
        by_id = {int(key): str(label) for key, label in named.items()}
        return tuple(by_id[number] for number in range(len(named)))
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise InvalidModel(f"{folder / 'config.json'}: id2label does not name the labels 0, 1, … in order") from error
