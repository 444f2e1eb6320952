"""Debian's Prometheus and promtool, which `./dev setup` unpacks into .cache, and the files in deploy/ for them."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.waits import until

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "deploy" / "prometheus" / "gpuaas-slurm.rules.yml"
RULE_TESTS = ROOT / "deploy" / "prometheus" / "tests" / "gpuaas-slurm.test.yml"
CONFIG = ROOT / "deploy" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "gpuaas-slurm.json"
NAME = re.compile(r"\b(?:gpuaas|slurm)_[a-z0-9_]+\b")


def program(name: str) -> str:
    found = shutil.which(name, path=str(ROOT / ".cache" / "prometheus" / "usr" / "bin")) or shutil.which(name)
    assert found, f"{name} is not there: run ./dev setup"
    return found


def promtool(*arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [program("promtool"), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard without the rows."""
    return [one for one in json.loads(DASHBOARD.read_text())["panels"] if one["type"] != "row"]


def dashboard_expressions() -> list[str]:
    """With the variables of Grafana filled in."""
    found = [target["expr"] for one in panels() for target in one["targets"]]
    return [expr.replace("$__rate_interval", "1m").replace("$cluster", ".*") for expr in found]


@dataclass
class Prometheus:
    url: str

    def get(self, path: str, **query: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def values(self, expression: str) -> dict[str, float]:
        """Values of an instant query, by job."""
        found = self.get("query", query=expression)["result"]
        return {one["metric"].get("job", ""): float(one["value"][1]) for one in found}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def scraping(directory: Path, targets: dict[str, int]) -> Iterator[Prometheus]:
    """A real Prometheus with the configuration in deploy/, each of its jobs with another port on loopback."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{targets[job['job_name']]}"]}]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    log = (directory / "prometheus.log").open("w")
    started = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=log,
    )
    made = Prometheus(f"http://127.0.0.1:{port}")

    def is_up() -> bool:
        assert started.poll() is None, (directory / "prometheus.log").read_text()
        with contextlib.suppress(OSError):
            found = made.get("targets")["activeTargets"]
            return len(found) == len(targets) and all(one["health"] == "up" for one in found)
        return False

    try:
        until(is_up, 60, "Prometheus scrapes every target")
        yield made
    finally:
        started.kill()
        started.wait()
        log.close()
