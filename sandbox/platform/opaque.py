"""Objects that belong to the app: the platform checks only their size."""

import json

from sandbox.platform.errors import validation_error

MAX_OPAQUE_BYTES = 16 * 1024


def check_size(name: str, value: object) -> None:
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_OPAQUE_BYTES:
        raise validation_error(f"{name} is {size} bytes as JSON, more than {MAX_OPAQUE_BYTES}", field=name, bytes=size)
