"""The hand-written tables of the manual agree with the code, and the built site needs no other host."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.protocols.native.fields import FIELDS
from tests.manual.pages import PAGES, ROOT

MAX_PICTURE_BYTES = 150_000
ALERTS = (ROOT / "docker" / "alerts.yml").read_text(encoding="utf-8")


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(docs/([\w-]+\.md)\)", _text("README.md").partition("## Manual")[2]))
    assert listed == {page.name for page in PAGES if page.parent.name == "docs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_servers_beyond_loopback_are_asked_with_key(page: Path) -> None:
    """A container and a pod need a key: a block that starts one shows a request with the key."""
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        if re.search(r"docker run -d|docker compose .* up\b.*\n(?=\$)|port-forward", block):
            assert re.search(r"^\$ curl .*Bearer \$ROUNDHOUSE_API_KEY", block, flags=re.MULTILINE), block
        for line in re.findall(r"^\$ curl .*:8080/.*", block, flags=re.MULTILINE):
            assert "Bearer" in line or "ROUNDHOUSE_API_KEY" not in block, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_containers_publish_http_and_grpc(page: Path) -> None:
    for line in re.findall(r"^\$ docker run .*-p .*", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        assert "-p 127.0.0.1:8080:8080" in line


def test_readme_names_existing_folders() -> None:
    (picture,) = re.findall(r"## The code\n\n```text\n(.*?)```", _text("README.md"), flags=re.DOTALL)
    for line in picture.splitlines():
        names = re.split(r"\s{2,}", line)[0].split(", ")
        for name in names:
            beside = Path(names[0]).parent / name
            assert (ROOT / name).exists() or (ROOT / beside).exists(), name


def test_field_table_has_the_fields_of_infer() -> None:
    (table,) = re.findall(r"\| field of `/infer` .*?\n\n", _text("docs/native-api.md"), flags=re.DOTALL)
    cells = [line.split("|")[1] for line in table.splitlines()[2:] if line]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == FIELDS.keys()


def test_alert_table_has_every_alert() -> None:
    assert set(re.findall(r"\| `(Roundhouse\w+)`", _text("docs/metrics.md"))) == set(
        re.findall(r"alert: (\w+)", ALERTS)
    )


def test_architecture_names_existing_files() -> None:
    names = re.findall(r"`((?:app|frameworks|memory|tests|tools|docker|docs)/[\w./]*)`", _text("docs/architecture.md"))
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_glossary_names_existing_files_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w./]+)` \|$", _text("docs/glossary.md"), flags=re.MULTILINE)
    assert rows
    assert [(term, name) for term, name in rows if not (ROOT / name).exists()] == []
    assert len({term for term, _ in rows}) == len(rows)
    lines = [line for line in _text("docs/glossary.md").splitlines() if line.startswith("| ")]
    headings = [line for line in lines if line.endswith("| file |")]
    assert len(rows) == len(lines) - len(headings), "each row is a term, a line of meaning, and a file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_have_at_most_twenty_words(page: Path) -> None:
    text = re.sub(r"<!-- generated: .*?<!-- end: |```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`|\*\*", "", text)
    lines = (line for line in text.splitlines() if not line.startswith("|") and "](docs/" not in line)
    sentences = (each.split() for line in lines for each in re.split(r"(?<=[.;:!?]) ", line))
    assert [" ".join(words) for words in sentences if sum(any(map(str.isalnum, word)) for word in words) > 20] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).is_file(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_of_pages_are_small(page: Path) -> None:
    for target in re.findall(r"!\[[^\]]+\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).stat().st_size <= MAX_PICTURE_BYTES, target


@pytest.mark.extended
def test_site_is_built_without_other_hosts(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="needs the extra docs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    words = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert (
            re.findall(r"<(?:script|img|iframe)[^>]*https?://|<link[^>]*(?:stylesheet|preconnect)[^>]*//", html) == []
        )
        # The theme loads scripts of these elements from a CDN.
        assert not re.search(r'class="[^"]*(?:mermaid|glightbox)', html)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
