"""Find the tenants that client certificates name, which a CA of `server.tls_client_ca` has signed."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.auth.errors import Unauthenticated
from app.auth.principal import Principal, Scope

CERTIFICATE_KEY_ID = "certificate"
"""Stands for the id of the key in logs, if a request has none."""
CERTIFICATE_SCOPES = frozenset({Scope.INFER, Scope.READ})
"""Of a request without a key. A certificate is on every request of a client: to manage models takes a key too."""

_ALTERNATIVE_NAMES = ("DNS", "URI")


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the common names, DNS names and URIs of a checked certificate, in the form of SSLObject.getpeercert."""
    if not certificate:
        return ()
    subject = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    alternative = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _ALTERNATIVE_NAMES]
    return (*subject, *alternative)


class ClientCertificates:
    """The principals of the names in certificates. Any thread may use them."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        """`principals`: exact name -> sender of requests without a key; one object for each tenant."""
        self._principals = principals

    def __len__(self) -> int:
        return len(self._principals)

    def find(self, names: Iterable[str]) -> Principal | None:
        """Return the principal of a certificate with these names; None if they name no tenant, or several."""
        found = {self._principals[name] for name in names if name in self._principals}
        return found.pop() if len(found) == 1 else None


def check_same_tenant(principal: Principal, certificate: Principal) -> None:
    """Refuse a key on the connection of another tenant's certificate. Raises Unauthenticated."""
    if certificate.tenant is not principal.tenant:
        raise Unauthenticated(
            "key: expected a key of the tenant that the client certificate names, got one of another tenant; "
            "send a key of this tenant, or none",
            "certificate",
        )
