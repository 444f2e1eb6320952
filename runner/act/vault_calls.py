"""Measures the calls to Vault, below hvac: each request, with its answer or without."""

import time
from typing import Any

from runner.telemetry import certificates
from runner.telemetry.labels import vault_route
from runner.telemetry.meter import Meter


def measure(session: Any, meter: Meter) -> None:
    """`session` is the requests.Session of an hvac client."""
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter

    class Measured(HTTPAdapter):
        def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
            began, status = time.monotonic(), None
            try:
                answer = super().send(request, *arguments, **options)
                status = answer.status_code
            finally:
                seconds = time.monotonic() - began
                meter.vault_call(request.method or "", vault_route(request.path_url), status, seconds)
            connection = getattr(answer.raw, "connection", None)
            meter.certificate("vault", certificates.end_of_peer(getattr(connection, "sock", None)))
            return answer

    for scheme in ("http://", "https://"):
        session.mount(scheme, Measured())
