"""Say at the start where the server is, and when its models are loaded, how to call them.

A terminal gets text. Elsewhere there is one log event for each of the two.
"""

import asyncio
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from app.auth.key_store import KeyStore
from app.auth.tls import ServerTls
from app.config import API_KEY_VARIABLE, LoadedSettings
from app.inference.lifecycle import ServerLifecycle
from app.observability.logs.logs import write_lines
from app.server.example_requests import Caller, curl_lines
from app.server.keys import create_command
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.states import ModelState

log = structlog.get_logger(__name__)

_POLL_S = 0.1
_MAX_NAMES = 10
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class StartOptions:
    """`on_terminal`: standard error is one. `needs_model`: the server ends where no model could be loaded.
    `api_key`: the text of ROUNDHOUSE_API_KEY, or "". `warnings`: of the command line, to be logged.
    """

    on_terminal: bool = False
    needs_model: bool = False
    api_key: str = ""
    warnings: tuple[str, ...] = ()


class StartReport:
    """The report of one start. Owned by the event loop, in the process that manages the models."""

    def __init__(self, loaded: LoadedSettings, options: StartOptions, keys: KeyStore, tls: ServerTls | None) -> None:
        self._options = options
        self._settings = loaded.settings
        self._loaded = loaded
        self._keys = keys
        self._tls = tls
        self._writes_text = (
            options.on_terminal
            and self._settings.logging.format != "json"
            and self._settings.logging.level in ("debug", "info")
        )
        self._url = ""
        self.failure = ""
        """Why the server ends: no model could be loaded. Empty while it serves."""

    def listening(self, host: str, port: int, grpc_port: int, workers: int | None = None) -> None:
        """Report the address. `host`, `port`: of the socket. `workers`: None for one process."""
        self._url = url_of(self._settings.server.host, port, self._tls, self._settings.server.allowed_hosts)
        log.info(
            "listening", host=host, port=port, grpc_port=grpc_port, pid=os.getpid(), workers=workers, url=self._url
        )
        for warning in self._options.warnings:
            log.warning("command line", reason=warning)
        if self._writes_text:
            write_lines([f"\nRoundhouse is at {self._url}\n"])

    async def run(self, lifecycle: ServerLifecycle) -> bool:
        """Report the curl lines when all start-up models are loaded or have failed.

        Returns whether the server is to end, with `failure`. Called after `listening`.
        """
        while True:
            if not lifecycle.is_starting:
                break
            await asyncio.sleep(_POLL_S)
        if lifecycle.is_draining:
            return False
        slots = lifecycle.models.slots
        failed = [slot for slot in slots if slot.state is ModelState.FAILED]
        if self._options.needs_model and _is_without_model(slots):
            reasons = [f'model "{slot.name}": {slot.reason}' for slot in failed[:_MAX_NAMES]]
            self.failure = "\n".join(["no model could be loaded; correct its files, or name another path", *reasons])
            return True
        self._report_models(slots, [slot.name for slot in failed])
        return False

    def _report_models(self, slots: Iterable[ModelSlot], failed: list[str]) -> None:
        caller = Caller(self._url, self._curl_options())
        lines = [caller.get("/models"), *curl_lines(slots, caller)]
        page = self._url if self._settings.server.web else None
        docs, notes = f"{self._url}/docs", self._notes()
        state = "ready" if not failed else f"started; not loaded: {_listed(failed)}"
        if self._writes_text:
            urls = f"page {page}, all routes {docs}" if page else f"all routes {docs}"
            write_lines(["", f"{state}; {urls}; in another shell:", "", *lines, "", *notes])
        else:
            event = "started" if failed else "ready"
            log.info(
                event, failed=failed or None, url=self._url, page=page, docs=docs, examples=lines, notes=notes or None
            )

    def _curl_options(self) -> tuple[str, ...]:
        server, options = self._settings.server, []
        if self._tls is not None and server.tls_certificate is not None and _signs_itself(self._tls):
            options.append(f"--cacert {shlex.quote(str(self._loaded.resolve(server.tls_certificate)))}")
        if server.tls_client_ca is not None:
            options.append("--cert client.pem --key client.key")
        if self._keys.required and len(self._keys):
            options.append(f'-H "authorization: Bearer ${API_KEY_VARIABLE}"')
        return tuple(options)

    def _notes(self) -> list[str]:
        """Return where keys and certificates come from."""
        notes = []
        if self._keys.required and self._options.api_key:
            notes.append(f"key: the server was started with {API_KEY_VARIABLE}; set it in the other shell too")
        elif self._keys.required and len(self._keys):
            notes.append(f"key: set {API_KEY_VARIABLE} to one that was made by `{create_command(self._loaded)}`")
        if self._tls is not None and not _signs_itself(self._tls):
            notes.append("certificate: add --cacert FILE where its authority is not one of the system")
        if self._settings.server.tls_client_ca is not None:
            notes.append("client certificate: client.pem stands for one of an authority in server.tls_client_ca")
        return notes


def url_of(host: str, port: int, tls: ServerTls | None = None, allowed_hosts: Iterable[str] = ()) -> str:
    """Return the address for a client on this machine, and with TLS for one that checks the certificate.

    `host`: server.host. `allowed_hosts`: further names of the server.
    """
    name = _LOOPBACK.get(host, host)
    if tls is not None and host in _LOOPBACK:
        known = _names(tls)
        name = next((each for each in ("localhost", name, *allowed_hosts) if each in known), name)
    return f"http{'' if tls is None else 's'}://{f'[{name}]' if ':' in name else name}:{port}"


def _is_without_model(slots: list[ModelSlot]) -> bool:
    """Whether all versions of all models have failed, and no changed file is loaded later."""
    return bool(slots) and all(
        not getattr(slot.entry, "watch", False)
        and all(slot.versions[name].phase is ModelState.FAILED for name in slot.served)
        for slot in slots
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _names(tls: ServerTls) -> set[str]:
    """Return the names and addresses in the certificate."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificates(tls.material.certificate)[0]
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return set()
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _signs_itself(tls: ServerTls) -> bool:
    """Whether the certificate is its own authority, so that clients need its file."""
    from cryptography import x509

    certificate = x509.load_pem_x509_certificates(tls.material.certificate)[0]
    return certificate.issuer == certificate.subject
