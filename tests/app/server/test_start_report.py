"""Report of a start: the address, curl lines, and where the key is found."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from app.auth.tls import ServerTls
from app.config import AuthSettings, LoadedSettings, Settings
from app.config.loading import LoggingSettings
from app.config.tls_files import TlsFiles
from app.inference.lifecycle import ServerLifecycle
from app.observability.logs.logs import configure_logging
from app.server.keys import open_keys
from app.server.start_report import StartOptions, StartReport, url_of
from frameworks.core.errors import InvalidModel
from frameworks.models.versions.states import ModelState
from tests.app.server.test_example_requests import LoadedSlot, tensor, tensor_spec
from tests.support.certificates import Authority, Pair

KEY = "a-key-of-the-environment"
DIGITS = tensor_spec(tensor("x", "float32", 1))


class Slot(LoadedSlot):
    """A model in a given state."""

    def __init__(self, name: str, state: ModelState) -> None:
        super().__init__(name, DIGITS if state is ModelState.READY else None)
        if state is ModelState.FAILED:
            self.active.fail(InvalidModel(f"{name} is broken"))
        else:
            self.active.unload(state)


class Models:
    def __init__(self, *slots: Slot) -> None:
        self.slots = list(slots)


def start(
    options: StartOptions, *slots: Slot, settings: Settings | None = None, folder: Path = Path("/none")
) -> tuple[StartReport, str]:
    """Report a start; return the report, and what standard error got."""
    stream = io.StringIO()
    settings = settings or Settings()
    configure_logging("info", "json", stream)
    loaded = LoadedSettings(settings, folder)
    report = StartReport(loaded, options, open_keys(loaded, options.api_key), None)
    lifecycle = ServerLifecycle(cast(Any, Models(*slots)), tuple(slot.name for slot in slots))
    report.listening("127.0.0.1", 8080, 0)
    asyncio.run(report.run(lifecycle))
    return report, stream.getvalue()


def test_pipe_gets_one_event_with_fields() -> None:
    _, printed = start(StartOptions(), Slot("digits", ModelState.READY))
    listening, ready = map(json.loads, printed.splitlines())
    assert (listening["event"], listening["url"]) == ("listening", "http://127.0.0.1:8080")
    assert (ready["event"], ready["page"], ready["docs"]) == ("ready", listening["url"], f"{listening['url']}/docs")
    assert ready["examples"][0] == "curl -s http://127.0.0.1:8080/models"
    assert '"digits"' in ready["examples"][1]
    assert "notes" not in ready


def test_terminal_gets_text_with_key_variable() -> None:
    _, printed = start(StartOptions(on_terminal=True, api_key=KEY), Slot("digits", ModelState.READY))
    lines = printed.splitlines()
    assert "Roundhouse is at http://127.0.0.1:8080" in lines
    curl = [line for line in lines if line.startswith("curl ")]
    assert len(curl) == 2
    assert all(line.startswith('curl -s -H "authorization: Bearer $ROUNDHOUSE_API_KEY" http') for line in curl)
    assert "key: the server was started with ROUNDHOUSE_API_KEY; set it in the other shell too" in lines
    assert KEY not in printed


def test_terminal_gets_log_lines_where_json_is_set() -> None:
    settings = Settings(logging=LoggingSettings(format="json"))
    _, printed = start(StartOptions(on_terminal=True), Slot("digits", ModelState.READY), settings=settings)
    assert [json.loads(line)["event"] for line in printed.splitlines()] == ["listening", "ready"]


def test_mode_off_needs_no_key() -> None:
    settings = Settings(auth=AuthSettings(mode="off"))
    _, printed = start(StartOptions(api_key=KEY), Slot("digits", ModelState.READY), settings=settings)
    assert "authorization" not in printed


def test_failed_model_is_named() -> None:
    report, printed = start(
        StartOptions(needs_model=True), Slot("good", ModelState.READY), Slot("bad", ModelState.FAILED)
    )
    assert report.failure == ""
    started = json.loads(printed.splitlines()[-1])
    assert (started["event"], started["failed"]) == ("started", ["bad"])


@pytest.mark.parametrize(("needs_model", "reasons"), [(True, ['model "bad": bad is broken']), (False, [])])
def test_only_failed_models_end_server(needs_model: bool, reasons: list[str]) -> None:
    report, _ = start(StartOptions(needs_model=needs_model), Slot("bad", ModelState.FAILED))
    assert report.failure.splitlines()[1:] == reasons


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("models.example.org", "http://models.example.org:80"),
    ],
)
def test_url_is_for_clients_of_this_machine(host: str, url: str) -> None:
    assert url_of(host, 80) == url


@pytest.mark.parametrize(
    ("names", "url"),
    [
        (["localhost", "127.0.0.1"], "https://localhost:80"),
        (["127.0.0.1"], "https://127.0.0.1:80"),
        (["models.example.org"], "https://models.example.org:80"),
        ([], "https://127.0.0.1:80"),
    ],
)
def test_url_has_name_of_certificate(names: list[str], url: str, tmp_path: Path) -> None:
    pair: Pair = Authority().issue("server", *names)
    tls = ServerTls(TlsFiles(*pair.write(tmp_path, "server")))
    assert url_of("0.0.0.0", 80, tls, ["other.example.org", "models.example.org"]) == url
