"""Secrets are planted, something goes wrong on the way to them, and no word of it shows one. No host is needed.

At the highest verbosity, and looking all the time at every process and at every file that the runner writes.
"""

import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from tests.commands import ends
from tests.contract.test_runner_without_hosts import everything
from tests.platform_process import Project
from tests.runner_process import COMMAND, environment, settings
from tests.waits import until

TOKEN, DELIVERY, LIST = r"service-account/token$", r"/deliveries$", r"/app-instances$"
LOGIN, UNWRAP = r"^/v1/auth/approle/login$", r"^/v1/sys/wrapping/unwrap$"


@dataclass
class Planted:
    """A project in which every secret is known, and one deploy is wanted."""

    project: Project
    canaries: Canaries
    variables: dict[str, str]
    known: dict[str, str]
    instance_id: str
    home: Path

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command; afterwards nothing that it said, wrote, sent or started may hold a secret."""
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
        self.nothing_shows(done.stdout + done.stderr, since)
        assert len(watcher.seen) > 10, "nobody looked"
        assert watcher.leaks(self.canaries) == []
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def nothing_shows(self, said: str, since: int) -> None:
        calls = self.project.platform.control.requests(since)["requests"]
        self.canaries.plant_from([one for one in calls if not one["fault"]])
        assert self.canaries.seen_in(said) == set(), said
        assert self.canaries.in_calls(calls) == []
        assert self.canaries.on_disk(here, str(self.home)) == {}
        assert not list((self.home / "tmp").iterdir())

    def told(self) -> str:
        return json.dumps(everything(self.project, self.instance_id))

    def fault(self, path: str, status: int, body: Any, times: int = 50) -> None:
        self.project.platform.control.inject_fault("status", path, status=status, body=body, times=times)

    def credential(self, private_key: str) -> None:
        control, project = self.project.platform.control, self.project
        control.put_credential(project.project_id, project.credential_id, username="ops", private_key=private_key)


@pytest.fixture
def planted(dialable: Project, tmp_path: Path) -> Iterator[Planted]:
    control, canaries = dialable.platform.control, Canaries()
    given = environment(
        dialable, GPUAAS_MAX_ATTEMPTS="1", GPUAAS_API_PATIENCE_SECONDS="0.3", GPUAAS_LOG_FORMAT="json", PATH=os.defpath
    )
    known = {
        "client_secret": given["GPUAAS_CLIENT_SECRET"],
        "operator_token": given["GPUAAS_OPERATOR_TOKEN"],
        "vault_secret_id": given["VAULT_SECRET_ID"],
        "ssh_key": KeyPair.generate().private,
    }
    for kind, value in known.items():
        canaries.plant(kind, value)
    instance = dialable.deploy(workers=0)["id"]
    control.keep_bodies(keep=True)
    # Sockets have short path limits, and pytest's own directories long names.
    with tempfile.TemporaryDirectory(prefix="canary-") as home:
        variables = privately(given, tmp_path / "settings.toml", Path(home))
        made = Planted(dialable, canaries, variables, known, instance, Path(home))
        made.credential(known["ssh_key"])
        yield made
    control.keep_bodies(keep=False)


def quoting(secret: str) -> Any:
    """A refusal that quotes the request, as validators like to."""
    message = f'invalid request: {{"input": {json.dumps(secret)}}}'
    return {"code": "validation_error", "message": message, "details": {"input": secret}, "errors": [message]}


@pytest.mark.parametrize("status", [401, 403, 422, 500])
def test_a_platform_that_quotes_the_clients_secret_in_its_refusal_is_not_quoted(planted: Planted, status: int) -> None:
    planted.fault(TOKEN, status, quoting(planted.known["client_secret"]))
    done = planted.run("run")
    ends(done, 2)
    assert "validation_error" in done.stderr, done.stderr


@pytest.mark.parametrize("status", [401, 403, 422])
def test_a_platform_that_quotes_our_token_in_its_refusal_is_quoted_without_it(planted: Planted, status: int) -> None:
    planted.fault(LIST, status, quoting(planted.known["operator_token"]))
    done = planted.run("status")
    ends(done, 2)
    assert "invalid request" in done.stderr and "(our token)" in done.stderr


@pytest.mark.parametrize("spoil", ["{}\n", "{}\u00e9"])
def test_a_token_that_cannot_be_sent_is_a_sentence_without_it(planted: Planted, spoil: str) -> None:
    spoilt = spoil.format(planted.known["operator_token"])
    file = Path(planted.variables["GPUAAS_CONFIG"])
    file.write_text(f"operator_token = {json.dumps(spoilt)}\n")
    done = planted.run("status")
    ends(done, 2)
    assert "GPUAAS_OPERATOR_TOKEN holds" in done.stderr, done.stderr


def test_a_token_of_the_platforms_that_cannot_be_sent_is_not_quoted(planted: Planted) -> None:
    bad = planted.canaries.plant("access_token", "eyJh.eyJz.c2lnbmF0dXJlLW9mLW1pbmU") + "\nx"
    planted.fault(TOKEN, 200, {"access_token": bad, "expires_in": 60})
    done = planted.run("run")
    ends(done, 2)
    assert "has no access_token" in done.stderr, done.stderr


def login_refused(planted: Planted) -> str:
    planted.fault(LOGIN, 400, quoting(planted.known["vault_secret_id"]))
    return "vault_login_refused"


def unwrap_denied(planted: Planted) -> str:
    planted.fault(UNWRAP, 403, quoting(planted.known["ssh_key"]))
    return "vault_denied"


def unwrap_broken(planted: Planted) -> str:
    planted.fault(UNWRAP, 500, quoting(planted.known["ssh_key"]))
    return "vault_unreachable"


def wrapping_token_spent(planted: Planted) -> str:
    planted.fault(UNWRAP, 400, {"errors": ["wrapping token is not valid or does not exist"]})
    return "wrapping_token_spent"


def key_without_a_beginning(planted: Planted) -> str:
    planted.fault(UNWRAP, 200, {"data": {"private_key": planted.known["ssh_key"].replace("PRIVATE KEY", "PUBLIC")}})
    return "credential_invalid"


def key_that_ssh_add_refuses(planted: Planted) -> str:
    lines = planted.known["ssh_key"].splitlines()
    planted.credential("\n".join([*lines[:1], *lines[2:], ""]))
    return "credential_invalid"


def delivery_malformed(planted: Planted) -> str:
    token = planted.canaries.plant("wrapping_token", "hvs.u7Gd2kLq9XcV5bN1mZ8w")
    planted.fault(DELIVERY, 201, {"wrapping_token": token, "username": "ops"})
    return "the answer is not a Delivery"


def delivery_elsewhere(planted: Planted) -> str:
    token = planted.canaries.plant("wrapping_token", "hvs.u7Gd2kLq9XcV5bN1mZ8w")
    body = {"vault_addr": "http://elsewhere", "wrapping_token": token, "expires_at": "2030-01-02T03:04:05Z"}
    planted.fault(DELIVERY, 201, {**body, "username": "ops"})
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
def test_no_failure_on_the_way_to_the_ssh_key_shows_a_secret(planted: Planted, cause: Callable[[Planted], str]) -> None:
    said = cause(planted)
    done = planted.run("run")
    assert said in done.stderr + planted.told()
    assert planted.canaries.seen_in(planted.told()) == set()


def test_settings_in_the_environment_reach_no_child_of_the_runner(planted: Planted) -> None:
    """That one is closed to other processes, as `test_memory` shows; the one who looks here is root."""
    key_that_ssh_add_refuses(planted)
    file = Path(planted.variables.pop("GPUAAS_CONFIG"))
    for name, value in tomllib.loads(file.read_text()).items():
        planted.variables[name.upper() if name.startswith("vault_") else f"GPUAAS_{name.upper()}"] = value
    waits = planted.home / "bin" / "ssh-add"  # the agent lives until it was seen
    waits.parent.mkdir()
    waits.write_text(f'#!/bin/sh\nuntil [ -e {planted.home}/seen ]; do sleep 0.02; done\nexec /usr/bin/ssh-add "$@"\n')
    waits.chmod(0o755)
    planted.variables["PATH"] = f"{waits.parent}{os.pathsep}{planted.variables['PATH']}"
    with Watcher() as watcher:
        runner = subprocess.Popen([COMMAND, "run"], env=planted.variables, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: any("ssh-agent -D" in where for where in list(watcher.seen.values())), 60, "a child is seen")
        finally:
            (planted.home / "seen").touch()
            _, said = runner.communicate(timeout=60)
    assert "credential_invalid" in planted.told(), said
    leaks = watcher.leaks(planted.canaries)
    assert leaks and all(f"{COMMAND} run" in one for one in leaks), leaks


def test_a_refused_login_to_vault_shows_no_secret_to_a_play_that_asks(planted: Planted) -> None:
    """Each kind of runtime secret is asked for over the runner's socket, as a play asks."""
    said = login_refused(planted)
    ask = (
        "import os, sys; from runner.act import play_secrets, vault; from runner.slurm.app import SLURM\n"
        "for name in SLURM.runtime_secrets:\n"
        "    try: play_secrets.fetch_secret(os.environ[play_secrets.SOCKET_VARIABLE], sys.argv[1], name)\n"
        "    except vault.SecretsError as error: print(error, file=sys.stderr)"
    )
    python = str(Path(COMMAND).with_name("python"))
    done = planted.run("exec", "--instance", planted.instance_id, "--", python, "-c", ask, planted.instance_id)
    assert done.stderr.count(said) == len(SLURM.runtime_secrets), done.stderr


@pytest.fixture
def log_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("where", ["in the play", "with the key in hand"])
def test_an_unexpected_error_is_logged_with_its_traceback_and_no_secret(
    planted: Planted,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log_format: str,
    where: str,
) -> None:
    def surprise(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("a surprise")

    monkeypatch.setattr(*((tick, "play") if where == "in the play" else (play_secrets, "_add_key")), surprise)
    monkeypatch.setenv("TMPDIR", planted.variables["TMPDIR"])
    monkeypatch.setattr(tempfile, "tempdir", None)
    given = {name: planted.known[name] for name in ("client_secret", "operator_token")}
    own = settings(planted.project, log_format=log_format, log_level="debug", **given)
    assert own.vault_secret_id is not None
    planted.canaries.plant("vault_secret_id", own.vault_secret_id.get_secret_value())
    log.configure(own)
    since = planted.project.platform.control.requests()["last"]
    with Client(own) as client:
        summary = loop.run(client, own, SLURM)
    said = capsys.readouterr()
    planted.nothing_shows(said.out + said.err + str(summary.problems), since)
    assert summary.problems and "a surprise" in said.err and "Traceback" in said.err
