"""Credentials of contributed workers: each opens the hosts of its own project, and one that is gone harms no other."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from runner.act import play_secrets
from runner.act.play_secrets import AGENTS_VARIABLE, UNAVAILABLE, Access, read_agents
from runner.act.vault import SPENT
from runner.intent.errors import IntentError
from runner.platform.client import Client
from runner.slurm.app import SLURM
from sandbox.fleet.keys import KeyPair
from tests.contract.shared_runtime import runner_settings
from tests.platform_process import Project
from tests.tenant import Tenant


def keys_of(socket: str) -> list[str]:
    shown = subprocess.run(["ssh-add", "-L"], env={"SSH_AUTH_SOCK": socket}, capture_output=True, text=True, check=True)
    return [" ".join(line.split()[:2]) for line in shown.stdout.splitlines()]


def opened_by(project: Project) -> str:
    """A new key as the project's credential; returns its public part."""
    pair = KeyPair.generate()
    project.platform.control.put_credential(
        project.project_id, project.credential_id, username="ops", private_key=pair.private
    )
    return " ".join(pair.public.split()[:2])


@pytest.fixture
def givers(tenant: Tenant) -> list[Project]:
    """Two projects with a contribution each."""
    found = [tenant.project(), tenant.project()]
    for one in found:
        tenant.attach(one, may_contribute=True)
        tenant.contribute(one)
    return found


@contextmanager
def accessed(tenant: Tenant, *projects: Project) -> Iterator[Access]:
    own = runner_settings(tenant)
    with Client(own) as client:
        runtime = client.instance(UUID(tenant.runtime["id"]))
        credentials = {UUID(one.credential_id) for one in projects}
        with play_secrets.access(client, own, SLURM, runtime, own_credentials=credentials) as access:
            yield access


def test_each_credential_has_an_agent_of_its_own(tenant: Tenant, givers: list[Project]) -> None:
    mine, keys = opened_by(tenant.owner), [opened_by(one) for one in givers]
    with accessed(tenant, *givers) as access:
        assert keys_of(access.environment["SSH_AUTH_SOCK"]) == [mine]
        for giver, key in zip(givers, keys, strict=True):
            agent = access.agents[UUID(giver.credential_id)]
            assert (keys_of(agent.socket), agent.public_key) == ([key], key)
        shown = access.for_command[AGENTS_VARIABLE]
        assert read_agents(shown) == access.agents and "PRIVATE" not in shown
    with pytest.raises(subprocess.CalledProcessError):
        keys_of(agent.socket)


def test_a_revoked_credential_is_an_error_of_its_own_workers_only(tenant: Tenant, givers: list[Project]) -> None:
    opened_by(tenant.owner)
    gone, stays = givers
    key = opened_by(stays)
    tenant.platform.control.set_credential_status(gone.project_id, gone.credential_id, "revoked")
    with accessed(tenant, *givers) as access:
        assert [one.public_key for one in access.agents.values()] == [key]
        (problem,) = access.problems.values()
    assert (problem.code, problem.klass) == (UNAVAILABLE, "intervention") and "revoked" in problem.message


def test_a_credential_without_a_usable_key_is_an_error_of_its_own_workers(
    tenant: Tenant, givers: list[Project]
) -> None:
    opened_by(tenant.owner)
    control = tenant.platform.control
    control.put_credential(
        givers[0].project_id, givers[0].credential_id, username="ops", private_key="canary PRIVATE KEY"
    )
    with accessed(tenant, givers[0]) as access:
        (problem,) = access.problems.values()
    assert problem.code == UNAVAILABLE and "canary" not in problem.message


def test_a_platform_that_fails_for_one_credential_is_asked_again(tenant: Tenant, givers: list[Project]) -> None:
    opened_by(tenant.owner)
    control, path = tenant.platform.control, rf"/access-credentials/{givers[0].credential_id}/deliveries"
    control.inject_fault("status", path, times=200, status=503)
    with accessed(tenant, givers[0]) as access:
        (problem,) = access.problems.values()
    control.clear_faults()
    assert (problem.code, problem.klass) == (UNAVAILABLE, "retryable")
    assert SPENT not in problem.message


def test_agents_that_exec_did_not_set_are_refused() -> None:
    assert read_agents(None) is None
    with pytest.raises(IntentError, match="unset it"):
        read_agents("{1: 2}")
