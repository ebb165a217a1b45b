"""The libraries of the page: pinned, unchanged, with licences, and small."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.web.vendor import LIBRARIES, MAX_VENDOR_BYTES, RECORD, ROOT, VENDOR, Package, _files_of

WEB = ROOT / "app" / "web"
MAX_FIRST_LOAD_BYTES = 150_000
FIRST_VIEW = "views/overview.js"


def test_vendored_files_are_those_of_record() -> None:
    record = json.loads((VENDOR / RECORD).read_text(encoding="utf-8"))
    assert {name: (each["version"], each["licence"], each["integrity"]) for name, each in record.items()} == {
        package.name: (package.version, package.licence, package.integrity) for package in LIBRARIES
    }
    hashes = {name: digest for each in record.values() for name, digest in each["files"].items()}
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir()}
    del found[RECORD]
    assert found == hashes


def test_vendored_files_have_licences_and_are_small() -> None:
    for package in LIBRARIES:
        assert (VENDOR / f"{package.name}.LICENSE").stat().st_size > 500
    assert sum(file.stat().st_size for file in VENDOR.iterdir()) <= MAX_VENDOR_BYTES


def test_first_load_is_small() -> None:
    files = first_load()
    assert WEB / "vendor/uplot.js" in files
    assert sum(len(gzip.compress(file.read_bytes(), 6)) for file in files) <= MAX_FIRST_LOAD_BYTES


def test_scripts_import_files_of_page_only() -> None:
    scripts = [file for file in WEB.rglob("*.js") if not file.is_relative_to(WEB / "runtime")]
    assert len(scripts) > 20
    for script in scripts:
        for target in imports_of(script):
            assert target.startswith("."), (script, target)
            # The runtime is fetched by `make web`, and is optional.
            if "runtime/" not in target:
                assert (script.parent / target).resolve().is_file(), (script, target)


@pytest.mark.parametrize(
    "pattern", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style="]
)
def test_scripts_never_write_markup(pattern: str) -> None:
    own = [file for file in WEB.rglob("*.js") if "vendor" not in file.parts and "runtime" not in file.parts]
    found = [str(file) for file in own if pattern in file.read_text(encoding="utf-8").replace("style=${{", "")]
    assert found == []


def test_archive_without_replaced_text_is_refused(tmp_path: Path) -> None:
    package = Package("a", "1.0.0", "MIT", "sha512-", {"a.mjs": "a.js"}, (('from"b"', 'from"./b.js"'),))
    archive = tmp_path / "a.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        member = tarfile.TarInfo("package/a.mjs")
        content = b'import"b";'
        member.size = len(content)
        packed.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match=r'a: expected \[\'from"b"\'\] in its scripts, got another text'):
        _files_of(package, archive)


def first_load() -> set[Path]:
    """Return what a browser loads for the first view: the page, its styles, and all modules that they import."""
    index = WEB / "index.html"
    names = re.findall(r"\{\{base\}\}/([\w./-]+)", index.read_text(encoding="utf-8"))
    todo = [*(WEB / name for name in names), WEB / FIRST_VIEW]
    files = {index}
    while todo:
        file = todo.pop()
        if file in files:
            continue
        files.add(file)
        if file.suffix == ".js":
            todo += [(file.parent / target).resolve() for target in imports_of(file)]
    return files


def imports_of(script: Path) -> list[str]:
    """Return what a module imports before it runs; views are imported later."""
    return re.findall(r'(?:^|[\s;}])(?:import|export)[^"\'()]*?from\s*"([^"]+)"', script.read_text(encoding="utf-8"))
