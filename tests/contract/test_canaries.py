"""Access to planted secrets fails, and no output shows one of them. No host is needed.

Commands run at the highest verbosity; every process and every file that the runner writes is watched meanwhile.
Over 300 lines, because each place where a secret could show needs its own planted one.
"""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import structlog

from runner import log
from runner.act import play_secrets
from runner.loop import run as loop
from runner.loop import tick
from runner.platform.client import Client
from runner.slurm.app import SLURM
from sandbox.fleet.keys import KeyPair
from tests.canaries import Canaries, Watcher, here, privately
from tests.commands import EXEC, ends
from tests.contract.test_runner_without_hosts import everything
from tests.otlp import collecting
from tests.platform_process import Project
from tests.prometheus import free_port
from tests.runner_process import COMMAND, environment, settings
from tests.waits import until

TOKEN, DELIVERY, LIST = r"service-account/token$", r"/deliveries$", r"/app-instances$"
LOGIN, UNWRAP = r"^/v1/auth/approle/login$", r"^/v1/sys/wrapping/unwrap$"


@dataclass
class CanaryProject:
    """A project in which every secret is a canary, with one deploy requested."""

    project: Project
    canaries: Canaries
    variables: dict[str, str]
    secrets: dict[str, str]
    instance_id: str
    home: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command and check that nothing it printed, wrote, sent or started holds a secret."""
        since = self.project.platform.control.requests()["last"]
        with Watcher(self.home) as watcher:
            done = subprocess.run(
                [COMMAND, *arguments],
                env=self.variables,
                cwd=self.home / "work",
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        self.assert_no_secret_in(done.stdout + done.stderr, since)
        assert len(watcher.seen) > 10, "the watcher saw no process"
        assert watcher.leaks(self.canaries) == []
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def assert_no_secret_in(self, output: str, since: int) -> None:
        calls = self.project.platform.control.requests(since)["requests"]
        self.canaries.plant_from([one for one in calls if not one["fault"]])
        assert self.canaries.seen_in(output) == set(), output
        assert self.canaries.in_calls(calls) == []
        assert self.canaries.on_disk(here, str(self.home)) == {}
        assert not list((self.home / "tmp").iterdir())

    def records(self) -> str:
        """All that the platform keeps, the timeline and work by hand too."""
        events = self.project.operator.get(f"{self.project.path}/app-instances/{self.instance_id}/events").json()
        return json.dumps([*everything(self.project, self.instance_id), events])

    def notes(self) -> list[dict[str, Any]]:
        """Work by hand, as it is on record."""
        (instance, *_) = everything(self.project, self.instance_id)
        return list((instance["status_detail"] or {})["by_hand"]["notes"])

    def fault(self, path: str, status: int, body: Any, times: int = 50) -> None:
        self.project.platform.control.inject_fault("status", path, status=status, body=body, times=times)

    def credential(self, private_key: str) -> None:
        control, project = self.project.platform.control, self.project
        control.put_credential(project.project_id, project.credential_id, username="ops", private_key=private_key)


@pytest.fixture
def canary_project(dialable: Project, tmp_path: Path) -> Iterator[CanaryProject]:
    control, canaries = dialable.platform.control, Canaries()
    given = environment(
        dialable,
        GPUAAS_MAX_ATTEMPTS="1",
        GPUAAS_API_PATIENCE_SECONDS="0.3",
        GPUAAS_LOG_FORMAT="json",
        GPUAAS_ASSUMED_EVENTS="all",
        PATH=os.defpath,
    )
    secrets = {
        "client_secret": given["GPUAAS_CLIENT_SECRET"],
        "operator_token": given["GPUAAS_OPERATOR_TOKEN"],
        "vault_secret_id": given["VAULT_SECRET_ID"],
        "ssh_key": KeyPair.generate().private,
    }
    for kind, value in secrets.items():
        canaries.plant(kind, value)
    instance = dialable.deploy(workers=0)["id"]
    control.keep_bodies(keep=True)
    # Sockets have short path limits, and pytest's own directories long names.
    with tempfile.TemporaryDirectory(prefix="canary-") as home:
        variables = privately(given, tmp_path / "settings.toml", Path(home))
        made = CanaryProject(dialable, canaries, variables, secrets, instance, Path(home))
        made.credential(secrets["ssh_key"])
        yield made
    control.keep_bodies(keep=False)


def quoting(secret: str) -> Any:
    """A refusal that quotes the request, as some validators do."""
    message = f'invalid request: {{"input": {json.dumps(secret)}}}'
    return {"code": "validation_error", "message": message, "details": {"input": secret}, "errors": [message]}


@pytest.mark.parametrize("status", [401, 403, 422, 500])
def test_a_platform_that_quotes_the_clients_secret_in_its_refusal_is_not_quoted(
    canary_project: CanaryProject, status: int
) -> None:
    canary_project.fault(TOKEN, status, quoting(canary_project.secrets["client_secret"]))
    done = canary_project.run("run")
    ends(done, 2)
    assert "validation_error" in done.stderr, done.stderr


@pytest.mark.parametrize("status", [401, 403, 422])
def test_a_platform_that_quotes_our_token_in_its_refusal_is_quoted_without_it(
    canary_project: CanaryProject, status: int
) -> None:
    canary_project.fault(LIST, status, quoting(canary_project.secrets["operator_token"]))
    done = canary_project.run("status")
    ends(done, 2)
    assert "invalid request" in done.stderr and "(our token)" in done.stderr


@pytest.mark.parametrize("spoil", ["{}\n", "{}\u00e9"])
def test_a_token_that_cannot_be_sent_is_an_error_that_does_not_quote_it(
    canary_project: CanaryProject, spoil: str
) -> None:
    spoilt = spoil.format(canary_project.secrets["operator_token"])
    file = Path(canary_project.variables["GPUAAS_CONFIG"])
    file.write_text(f"operator_token = {json.dumps(spoilt)}\n")
    done = canary_project.run("status")
    ends(done, 2)
    assert "GPUAAS_OPERATOR_TOKEN holds" in done.stderr, done.stderr


def test_a_token_of_the_platforms_that_cannot_be_sent_is_not_quoted(canary_project: CanaryProject) -> None:
    bad = canary_project.canaries.plant("access_token", "eyJh.eyJz.c2lnbmF0dXJlLW9mLW1pbmU") + "\nx"
    canary_project.fault(TOKEN, 200, {"access_token": bad, "expires_in": 60})
    done = canary_project.run("run")
    ends(done, 2)
    assert "has no access_token" in done.stderr, done.stderr


def login_refused(canary_project: CanaryProject) -> str:
    canary_project.fault(LOGIN, 400, quoting(canary_project.secrets["vault_secret_id"]))
    return "vault_login_refused"


def unwrap_denied(canary_project: CanaryProject) -> str:
    canary_project.fault(UNWRAP, 403, quoting(canary_project.secrets["ssh_key"]))
    return "vault_denied"


def unwrap_broken(canary_project: CanaryProject) -> str:
    canary_project.fault(UNWRAP, 500, quoting(canary_project.secrets["ssh_key"]))
    return "vault_unreachable"


def wrapping_token_spent(canary_project: CanaryProject) -> str:
    canary_project.fault(UNWRAP, 400, {"errors": ["wrapping token is not valid or does not exist"]})
    return "wrapping_token_spent"


def key_without_a_beginning(canary_project: CanaryProject) -> str:
    canary_project.fault(
        UNWRAP, 200, {"data": {"private_key": canary_project.secrets["ssh_key"].replace("PRIVATE KEY", "PUBLIC")}}
    )
    return "credential_invalid"


def key_that_ssh_add_refuses(canary_project: CanaryProject) -> str:
    lines = canary_project.secrets["ssh_key"].splitlines()
    canary_project.credential("\n".join([*lines[:1], *lines[2:], ""]))
    return "credential_invalid"


def delivery_malformed(canary_project: CanaryProject) -> str:
    token = canary_project.canaries.plant("wrapping_token", "hvs.u7Gd2kLq9XcV5bN1mZ8w")
    canary_project.fault(DELIVERY, 201, {"wrapping_token": token, "username": "ops"})
    return "the answer is not a Delivery"


def delivery_elsewhere(canary_project: CanaryProject) -> str:
    token = canary_project.canaries.plant("wrapping_token", "hvs.u7Gd2kLq9XcV5bN1mZ8w")
    body = {"vault_addr": "http://elsewhere", "wrapping_token": token, "expires_at": "2030-01-02T03:04:05Z"}
    canary_project.fault(DELIVERY, 201, {**body, "username": "ops"})
    return "vault_address_mismatch"


@pytest.mark.parametrize(
    "cause",
    [
        unwrap_denied,
        unwrap_broken,
        wrapping_token_spent,
        key_without_a_beginning,
        key_that_ssh_add_refuses,
        delivery_malformed,
        delivery_elsewhere,
    ],
)
def test_no_failure_on_the_way_to_the_ssh_key_shows_a_secret(
    canary_project: CanaryProject, cause: Callable[[CanaryProject], str]
) -> None:
    expected = cause(canary_project)
    done = canary_project.run("run")
    assert expected in done.stderr + canary_project.records()
    assert canary_project.canaries.seen_in(canary_project.records()) == set()


@pytest.mark.parametrize("cause", [unwrap_denied, key_that_ssh_add_refuses, delivery_elsewhere])
def test_no_span_shows_a_secret_and_nothing_shows_the_collectors(
    canary_project: CanaryProject, cause: Callable[[CanaryProject], str]
) -> None:
    canaries = canary_project.canaries
    header = canaries.plant("header", "hdr.Zx8Kq2Lw9Xc4Vb1Nm7")
    expected = cause(canary_project)
    file = Path(canary_project.variables["GPUAAS_CONFIG"])
    file.write_text(f"{file.read_text()}otel_exporter_otlp_headers = {json.dumps(f'authorization={header}')}\n")
    with collecting() as collector:
        canary_project.variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        done = canary_project.run("run")
    assert expected in done.stderr + canary_project.records()
    assert {one.attributes["peer.service"] for one in collector.of("call")} >= {"platform"}
    assert collector.headers[0]["authorization"] == header
    assert canaries.seen_in(b"".join(collector.raw)) == set()
    assert canaries.seen_in(canary_project.records()) == set()


def test_settings_in_the_environment_reach_no_child_of_the_runner(canary_project: CanaryProject) -> None:
    """The runner's own environment is closed to other processes, as `test_memory` shows; here root looks."""
    key_that_ssh_add_refuses(canary_project)
    file = Path(canary_project.variables.pop("GPUAAS_CONFIG"))
    for name, value in tomllib.loads(file.read_text()).items():
        canary_project.variables[name.upper() if name.startswith("vault_") else f"GPUAAS_{name.upper()}"] = value
    waits = canary_project.home / "bin" / "ssh-add"  # keeps the agent running until the watcher has seen it
    waits.parent.mkdir()
    waits.write_text(
        f'#!/bin/sh\nuntil [ -e {canary_project.home}/seen ]; do sleep 0.02; done\nexec /usr/bin/ssh-add "$@"\n'
    )
    waits.chmod(0o755)
    canary_project.variables["PATH"] = f"{waits.parent}{os.pathsep}{canary_project.variables['PATH']}"
    with Watcher() as watcher:
        runner = subprocess.Popen([COMMAND, "run"], env=canary_project.variables, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: any("ssh-agent -D" in where for where in list(watcher.seen.values())), 60, "a child is seen")
        finally:
            (canary_project.home / "seen").touch()
            _, errors = runner.communicate(timeout=60)
    assert "credential_invalid" in canary_project.records(), errors
    leaks = watcher.leaks(canary_project.canaries)
    assert leaks and all(f"{COMMAND} run" in one for one in leaks), leaks


def test_a_refused_login_to_vault_shows_no_secret_to_a_play_that_asks(canary_project: CanaryProject) -> None:
    """Each kind of runtime secret is asked for over the runner's socket, as a play asks."""
    expected = login_refused(canary_project)
    ask = (
        "import os, sys; from runner.act import play_secrets, vault; from runner.slurm.app import SLURM\n"
        "for name in SLURM.runtime_secrets:\n"
        "    try: play_secrets.fetch_secret(os.environ[play_secrets.SOCKET_VARIABLE], sys.argv[1], name)\n"
        "    except vault.SecretsError as error: print(error, file=sys.stderr)"
    )
    python = str(Path(COMMAND).with_name("python"))
    done = canary_project.run(
        *EXEC,
        "--instance",
        canary_project.instance_id,
        "--",
        python,
        "-c",
        ask,
        canary_project.instance_id,
    )
    assert done.stderr.count(expected) == len(SLURM.runtime_secrets), done.stderr


def ways_to_write(secret: str) -> list[tuple[str, ...]]:
    """Ways in which a person may put a secret into a command."""
    return [
        ("env", f"DB_PASSWORD={secret}", "true"),
        ("true", "--password", secret),
        ("true", f"--token={secret}"),
        ("true", "-e", f"slurmdbd_password={secret}"),
        ("true", "--extra-vars", json.dumps({"key": secret})),
        ("true", f"https://ops:{secret}@packages.example/"),
        ("true", f"Authorization: Bearer {secret}"),
        ("sh", "-c", f"true --password {secret}"),
    ]


def test_the_record_of_work_by_hand_shows_no_secret(canary_project: CanaryProject) -> None:
    """Not of the command, not of the error that ended it, and not in what the platform, the log and `explain` show."""
    canaries = canary_project.canaries
    secret = canaries.plant("in_a_command", "cmd8Kq2Lw9Xc4Vb1Nm7Zx3")
    commands, notes = ways_to_write(secret), list[dict[str, Any]]()
    since = canary_project.project.platform.control.requests()["last"]
    chosen = (*EXEC, "--instance", canary_project.instance_id, "--read-only", "--")
    for command in commands:
        # The command's own process has its arguments; here is what is written, sent and printed.
        done = subprocess.run(
            [COMMAND, *chosen, *command],
            env=canary_project.variables,
            cwd=canary_project.home / "work",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        ends(done, 0)
        assert canaries.seen_in(done.stdout + done.stderr) == set(), command
        notes.append(canary_project.notes()[-1])
        assert notes[-1]["exit_code"] == 0 and "***" in notes[-1]["command"], notes[-1]
    assert canaries.seen_in(json.dumps(notes)) == set()
    canary_project.fault(UNWRAP, 403, quoting(canary_project.secrets["ssh_key"]))
    failed = canary_project.run(*chosen, "true")
    ends(failed, 2)
    last = canary_project.notes()[-1]
    assert last["problem"] and "exit_code" not in last
    calls = canary_project.project.platform.control.requests(since)["requests"]
    assert canaries.in_calls(calls) == []
    assert canaries.seen_in(canary_project.records()) == set()
    shown = canary_project.run("explain", last["correlation_id"], "--json")
    ends(shown, 0)
    assert last["problem"] in shown.stdout
    assert canaries.seen_in(json.dumps(notes) + secret), "the search would find nothing"


def test_events_of_a_failure_show_no_secret(canary_project: CanaryProject) -> None:
    key_that_ssh_add_refuses(canary_project)
    ends(canary_project.run("run"), 0)  # the deploy failed; no operation did
    assert "apps.instance.failed" in canary_project.records()
    assert canary_project.canaries.seen_in(canary_project.records()) == set()


def test_metrics_show_no_secret(canary_project: CanaryProject) -> None:
    """At the endpoint and in the file, after calls that had each secret in them."""
    key_that_ssh_add_refuses(canary_project)
    port, file = free_port(), canary_project.home / "gpuaas-slurm.prom"
    own = {"GPUAAS_METRICS_LISTEN": str(port), "GPUAAS_METRICS_FILE": str(file), "GPUAAS_WATCH_SECONDS": "0.3"}
    since = canary_project.project.platform.control.requests()["last"]
    runner = subprocess.Popen(
        [COMMAND, "run", "--watch"],
        env=canary_project.variables | own,
        cwd=canary_project.home / "work",
        stderr=subprocess.PIPE,
        text=True,
    )

    def scraped() -> str:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
            used = re.search(r'^gpuaas_vault_requests_total{.*unwrap",status="2xx"} [1-9]', text, re.MULTILINE)
            return text if used and file.exists() else ""
        return ""

    try:
        shown = until(scraped, 60, "the metrics show a call to Vault")
    finally:
        runner.terminate()
        _, errors = runner.communicate(timeout=60)
    canary_project.assert_no_secret_in(shown + file.read_text() + errors, since)
    secret = canary_project.secrets["vault_secret_id"]
    assert canary_project.canaries.seen_in(shown + secret), "the search would find nothing"


@pytest.fixture
def log_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("where", ["in the play", "with the key in hand"])
def test_an_unexpected_error_is_logged_with_its_traceback_and_no_secret(
    canary_project: CanaryProject,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log_format: str,
    where: str,
) -> None:
    def surprise(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(*((tick, "play") if where == "in the play" else (play_secrets, "_add_key")), surprise)
    monkeypatch.setenv("TMPDIR", canary_project.variables["TMPDIR"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    given = {name: canary_project.secrets[name] for name in ("client_secret", "operator_token")}
    own = settings(canary_project.project, log_format=log_format, log_level="debug", **given)
    assert own.vault_secret_id is not None
    canary_project.canaries.plant("vault_secret_id", own.vault_secret_id.get_secret_value())
    log.configure(own)
    since = canary_project.project.platform.control.requests()["last"]
    with Client(own) as client:
        summary = loop.run(client, own, SLURM)
    printed = capsys.readouterr()
    canary_project.assert_no_secret_in(printed.out + printed.err + str(summary.problems), since)
    assert summary.problems and "a surprise" in printed.err and "Traceback" in printed.err
