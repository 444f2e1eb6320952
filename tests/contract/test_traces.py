"""Traces of real work on a real platform: a collector holds the spans, as real protobuf."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from runner.act import bundle
from runner.loop import run as loop
from runner.loop import tick
from runner.loop.shared import Summary
from runner.model import trace
from runner.platform.client import Client
from runner.slurm.app import SLURM
from runner.telemetry.start import tracing
from tests.contract.simulated_hosts import Hosts
from tests.otlp import Collector, collecting
from tests.platform_process import Doc, Project
from tests.runner_process import settings


def run_traced(project: Project, url: str, **changes: Any) -> Summary:
    own = settings(project, OTEL_EXPORTER_OTLP_ENDPOINT=url, **changes)
    names = bundle.bundle_dir(), bundle.error_codes()
    with tracing(own, SLURM.metrics, *names) as tracer, Client(own, tracer=tracer) as client:
        return loop.run(client, own, SLURM)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as started:
        yield started


def test_a_deploy(dialable: Project, hosts: Hosts, collector: Collector) -> None:
    made = dialable.deploy(workers=2)
    run_traced(dialable, collector.url)
    for s in sorted(collector.spans, key=lambda s: s.start):
        print(s.kind, s.name, s.trace_id[:6], s.span_id[:6], s.parent_id[:6], s.attributes, s.links, collector.above(s))
    print(json.dumps(dialable.shown(made, "/members"), indent=1)[:3000])
    print(json.dumps(dialable.shown(made, "/member-operations"), indent=1)[:3000])
    assert 0
