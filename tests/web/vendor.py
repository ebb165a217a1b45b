"""Fetch the libraries of the page from npm at pinned versions, and write them to app/web/vendor/ with their licences.

`make web` runs `python -m tests.web.vendor`. The result is committed, so that only a new version needs npm.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "app" / "web" / "vendor"
MAX_VENDOR_BYTES = 300_000
RECORD = "versions.json"
"""File in the folder: for each package its version, licence and integrity, and the SHA-256 of each written file."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package of npm. `files`: path in the package -> name in the folder. `integrity`: of its archive, from npm."""

    name: str
    version: str
    licence: str
    integrity: str
    files: dict[str, str]
    replaced: tuple[tuple[str, str], ...] = ()
    """Texts that are replaced in its scripts: a browser does not resolve names of packages, and has no source maps."""
    appended: str = ""


LIBRARIES = (
    Package(
        "preact",
        "11.2.0",
        "MIT",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {
            "dist/preact.mjs": "preact.js",
            "hooks/dist/hooks.mjs": "preact-hooks.js",
            "LICENSE": "preact.LICENSE",
        },
        (
            ('from"preact"', 'from"./preact.js"'),
            ("//# sourceMappingURL=preact.mjs.map\n", ""),
            ("//# sourceMappingURL=hooks.mjs.map\n", ""),
        ),
    ),
    Package(
        "htm",
        "3.1.1",
        "Apache-2.0",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js", "LICENSE": "htm.LICENSE"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "MIT",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css", "LICENSE": "uplot.LICENSE"},
        # Its module is published without minification only.
        appended="export default uPlot;\n",
    ),
    Package(
        "marked",
        "18.2.1",
        "MIT",
        "sha512-ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA==",
        {"lib/marked.esm.js": "marked.js", "LICENSE": "marked.LICENSE"},
        (("//# sourceMappingURL=marked.esm.js.map\n", ""),),
    ),
)


def main(packages: Sequence[Package] = LIBRARIES, folder: Path = VENDOR) -> int:
    """Write all files, or none if one cannot be fetched. Return the exit status."""
    npm = shutil.which("npm")
    if npm is None:
        print("npm: expected in PATH, got nothing; install Node.js with npm", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        written: dict[str, bytes] = {}
        record: dict[str, dict[str, object]] = {}
        for package in packages:
            try:
                files = _files_of(package, _fetch(npm, package, Path(scratch)))
            except (OSError, ValueError) as error:
                print(error, file=sys.stderr)
                return 1
            written |= files
            hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
            record[package.name] = {
                "version": package.version,
                "licence": package.licence,
                "integrity": package.integrity,
                "files": hashes,
            }
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in written.items():
        (folder / name).write_bytes(content)
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{len(written)} files, {sum(map(len, written.values())):,} bytes in {folder.relative_to(ROOT)}")
    return 0


def _fetch(npm: str, package: Package, scratch: Path) -> Path:
    """Download the archive of a package. Raises OSError if npm fails, ValueError if the archive is another one."""
    spec = f"{package.name}@{package.version}"
    words = [npm, "pack", "--json", "--ignore-scripts", "--pack-destination", str(scratch), spec]
    done = subprocess.run(words, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{spec}: expected an archive from npm, got status {done.returncode}: {done.stderr.strip()}")
    name: str = json.loads(done.stdout)[0]["filename"]
    archive = scratch / name
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.integrity:
        raise ValueError(f"{spec}: expected {package.integrity}, got {found}; another archive has this version")
    return archive


def _files_of(package: Package, archive: Path) -> dict[str, bytes]:
    """Return the files of a package by their new names. Raises ValueError if a text to replace is missing."""
    files: dict[str, bytes] = {}
    missing = {old for old, _ in package.replaced}
    with tarfile.open(archive) as packed:
        for inside, name in package.files.items():
            member = packed.extractfile(f"package/{inside}")
            if member is None:
                raise ValueError(f"{package.name}: expected the file {inside}, got a folder")
            content = member.read()
            if name.endswith(".js"):
                text = content.decode()
                for old, new in package.replaced:
                    if old in text:
                        missing.discard(old)
                        text = text.replace(old, new)
                content = (text.rstrip("\n") + "\n" + package.appended).encode()
            files[name] = content
    if missing:
        raise ValueError(f"{package.name}: expected {sorted(missing)} in its scripts, got another text")
    return files


if __name__ == "__main__":
    sys.exit(main())
