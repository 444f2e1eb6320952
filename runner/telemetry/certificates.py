"""When certificates end, in seconds since 1970. None where that cannot be found out."""

import contextlib
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def end_of_peer(connection: Any) -> float | None:
    """The end of the certificate that the other side of a TLS connection showed."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return _end(connection.getpeercert())
    return None


def end_of_bundle(path: Path) -> float | None:
    """The next end of a CA certificate in the file. Certificates that have ended already count only if all have."""
    try:
        ends = [end for one in ssl.create_default_context(cafile=path).get_ca_certs() if (end := _end(one)) is not None]
    except OSError:
        return None
    return min((end for end in ends if end > time.time()), default=max(ends, default=None))


def _end(certificate: Mapping[str, Any] | None) -> float | None:
    ends = (certificate or {}).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None
