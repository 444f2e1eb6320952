"""Idempotency keys of writes."""

import hashlib
import json
from uuid import uuid4

from runner.model.platform import PlatformRecord


def idempotency_key(*parts: object) -> str:
    """The same write gives the same key, in any process."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return "gpuaas-slurm-" + hashlib.sha256(text.encode()).hexdigest()[:40]


def update_key(kind: str, record: PlatformRecord, body: object) -> str:
    """The key of an update. The same body written to another version of the record is another write."""
    return idempotency_key(kind, record.id, record.etag or uuid4(), body)
