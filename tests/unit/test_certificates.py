"""When certificates and tokens end, as the metrics show it: read from a real TLS server, and from a CA bundle."""

import http.server
import json
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runner.act.vault import SecretsError, Vault
from runner.model.errors import PlatformError
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.telemetry import certificates
from runner.telemetry.meter import Meter
from runner.telemetry.metrics import PrometheusMeter

ID = UUID(int=7)


def at(days: float) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)


def certificate(path: Path, ends: datetime) -> Path:
    """A self-signed certificate for loopback, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, path.stem)])
    made = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(ends, at(0)) - timedelta(days=30))
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *form)
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


@dataclass
class Server:
    """Answers every call with the same status and body, over TLS."""

    certificate: Path
    ends: float
    port: int = 0
    status: int = 500
    body: Any = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        url = f"https://localhost:{self.port}"
        return {
            "base_url": url,
            "project_id": str(UUID(int=1)),
            "operator_token": "t0ken",
            "api_patience_seconds": 0,
            "ca_bundle": self.certificate,
            "VAULT_ADDR": url,
            "VAULT_CACERT": self.certificate,
            "VAULT_TOKEN": "vault-t0ken",
        }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    ends = at(9)
    made = Server(certificate(tmp_path / "server.pem", ends), ends.timestamp())

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = json.dumps(made.body).encode()
            self.send_response(made.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate)
    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        made.port = listening.server_port
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield made
        listening.shutdown()


def shown(meter: PrometheusMeter, name: str, **labels: str) -> float | None:
    return meter.registry.get_sample_value(f"gpuaas_{name}", labels)


@pytest.fixture
def meter() -> PrometheusMeter:
    return PrometheusMeter(SLURM.metrics, "1.1.0", 300)


def test_the_end_of_the_platforms_certificate_and_its_failures_are_shown(
    server: Server, meter: PrometheusMeter
) -> None:
    with Client(Settings(**server.settings), person=True, meter=meter) as client, pytest.raises(PlatformError):
        client.clone().allocations()
    assert shown(meter, "certificate_expiry_timestamp_seconds", peer="platform") == server.ends
    called = {"method": "GET", "route": "/projects/{id}/allocations"}
    assert shown(meter, "api_requests_total", **called, status="5xx") == 1
    assert shown(meter, "api_request_duration_seconds_count", **called) == 1


def test_a_platform_that_does_not_answer_is_counted(server: Server, meter: PrometheusMeter) -> None:
    away = Settings(**server.settings | {"base_url": "https://localhost:1"})
    with Client(away, person=True, meter=meter) as client, pytest.raises(PlatformError):
        client.allocations()
    called = {"method": "GET", "route": "/projects/{id}/allocations"}
    assert shown(meter, "api_requests_total", **called, status="none") == 1


def test_vaults_certificate_its_calls_and_the_end_of_our_token_are_shown(
    server: Server, meter: PrometheusMeter
) -> None:
    server.status = 200
    server.body = {"data": {"ttl": 3600, "data": {"munge_key": "k"}, "metadata": {"version": 1}}}
    vault = Vault(Settings(**server.settings), SLURM.runtime_secrets, meter)
    before = time.time()
    for _ in range(2):
        assert vault.runtime_secret(ID, "munge_key") == "k"
    assert shown(meter, "certificate_expiry_timestamp_seconds", peer="vault") == server.ends
    assert shown(meter, "vault_requests_total", method="GET", route="{mount}/data/{path}", status="2xx") == 2
    assert shown(meter, "vault_requests_total", method="GET", route="auth/token/lookup-self", status="2xx") == 1
    assert before + 3600 <= (shown(meter, "token_expiry_timestamp_seconds", token="vault") or 0) <= time.time() + 3600


@pytest.mark.parametrize(
    ("status", "body"),
    [(403, {"errors": ["denied"]}), (200, {"data": {"ttl": 0}}), (200, {}), (200, {"data": {"ttl": "x"}})],
)
def test_a_token_whose_end_is_not_known_has_no_series(
    server: Server, meter: PrometheusMeter, status: int, body: Any
) -> None:
    server.status, server.body = status, body
    vault = Vault(Settings(**server.settings), SLURM.runtime_secrets, meter)
    vault._login()
    assert shown(meter, "token_expiry_timestamp_seconds", token="vault") is None


def test_a_vault_that_does_not_answer_is_counted(server: Server, meter: PrometheusMeter) -> None:
    away = Settings(**server.settings | {"VAULT_ADDR": "https://localhost:1"})
    with pytest.raises(SecretsError):
        Vault(away, SLURM.runtime_secrets, meter).runtime_secret(ID, "munge_key")
    assert shown(meter, "vault_requests_total", method="GET", route="{mount}/data/{path}", status="none") == 1


def test_without_metrics_vault_is_not_asked_for_the_end_of_its_token(server: Server) -> None:
    server.status, server.body = 200, {"data": {"ttl": 5}}
    vault = Vault(Settings(**server.settings), SLURM.runtime_secrets)
    vault._login()
    assert not vault._expiry_shown and type(vault._meter) is Meter


def test_the_next_end_in_a_bundle_counts_and_one_that_has_passed_does_not(tmp_path: Path) -> None:
    ends = {name: at(days) for name, days in (("past", -1), ("near", 5), ("far", 50))}
    made = {name: certificate(tmp_path / f"{name}.pem", end).read_text() for name, end in ends.items()}
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("".join(made.values()))
    assert certificates.end_of_bundle(bundle) == ends["near"].timestamp()
    bundle.write_text(made["past"])
    assert certificates.end_of_bundle(bundle) == ends["past"].timestamp()
    bundle.write_text("no certificate")
    assert certificates.end_of_bundle(bundle) is None


def test_a_connection_without_tls_has_no_certificate() -> None:
    assert certificates.end_of_peer(None) is None
    assert certificates.end_of_peer(object()) is None
