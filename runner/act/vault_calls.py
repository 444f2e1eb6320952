"""Measures and traces the calls to Vault, below hvac: each request, with its answer or without."""

import time
from typing import Any

from runner.telemetry import certificates
from runner.telemetry.labels import vault_route
from runner.telemetry.meter import Meter
from runner.telemetry.tracer import Tracer


def measure(session: Any, meter: Meter, tracer: Tracer) -> None:
    """`session` is the requests.Session of an hvac client."""
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter

    class Measured(HTTPAdapter):
        def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
            began, method, route = time.monotonic(), request.method or "", vault_route(request.path_url)
            with tracer.calling("vault", method, route) as call:
                try:
                    answer = super().send(request, *arguments, **options)
                    call.status = answer.status_code
                finally:
                    meter.vault_call(method, route, call.status, time.monotonic() - began)
            connection = getattr(answer.raw, "connection", None)
            meter.certificate("vault", certificates.end_of_peer(getattr(connection, "sock", None)))
            return answer

    for scheme in ("http://", "https://"):
        session.mount(scheme, Measured())
