"""Let Python name files by UTF-8, as the libraries that load models do."""

import os
import sys

_VARIABLE = "PYTHONUTF8"


def ensure_utf8() -> None:
    """Start this process again in Python's UTF-8 mode if its locale has another encoding of file names.

    A locale such as C gives paths of arguments and of config.toml different forms, and ONNX Runtime accepts neither.
    The process keeps its ID, its arguments and its open files.
    """
    is_utf8 = sys.getfilesystemencoding().replace("-", "").lower() == "utf8"
    # With the variable set, an option of Python has switched the mode off.
    if not is_utf8 and os.environ.get(_VARIABLE) != "1":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, _VARIABLE: "1"})  # noqa: S606 - our own arguments
