"""A whole cluster whose secrets are in a Vault that is not the sandbox's, and that Vault's own faults.

`./dev test vault` gives a real one. Without it a second stand-in process is the other Vault; it cannot be sealed.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hvac
import pytest
from hvac import exceptions

from sandbox.fleet.hosts import LOGIN_USER
from sandbox.fleet.keys import KeyPair
from sandbox.fleet.other_vault import OtherVault
from sandbox.platform import process
from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.platform_process import Doc
from tests.runner_process import answer
from tests.vault_server import VaultServer
from tests.vault_under_test import GIVEN

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("kept")]


@dataclass
class Kept:
    """A cluster, and the Vault that keeps its secrets."""

    cluster: Cluster
    address: str
    token: str

    @property
    def admin(self) -> hvac.Client:
        return hvac.Client(url=self.address, token=self.token)

    @property
    def mount(self) -> str:
        return self.cluster.variables["GPUAAS_VAULT_MOUNT"]

    @property
    def path(self) -> str:
        return f"projects/{self.cluster.variables['GPUAAS_PROJECT_ID']}/app-instances/{self.cluster.instance_id}"

    def secrets(self) -> dict[str, str]:
        read = self.admin.secrets.kv.v2.read_secret_version
        return dict(read(path=self.path, mount_point=self.mount, raise_on_deleted_version=True)["data"]["data"])

    def ask(self, verb: str, *rest: str) -> Doc:
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *rest)
        return asked

    def ended(self, asked: Doc) -> Doc:
        listed = answer(self.cluster.variables, "get", "operations", "--instance", self.cluster.instance_id)
        return next(dict(one) for one in listed if one["id"] == asked["id"])

    def carry_out(self, verb: str, *rest: str) -> None:
        asked = self.ask(verb, *rest)

        def is_over() -> bool:
            self.cluster.run()
            return self.ended(asked)["status"] not in ("accepted", "running")

        until(is_over, 300, f"{verb} is over", every=1)
        assert self.ended(asked)["status"] == "succeeded", self.ended(asked)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """gs-1 with worker gs-2."""
    state = tmp_path_factory.mktemp("vault")
    if GIVEN.get("VAULT_ADDR") and GIVEN.get("VAULT_TOKEN"):
        address, token = GIVEN["VAULT_ADDR"].rstrip("/"), GIVEN["VAULT_TOKEN"]
    else:
        found = process.start(state)
        address, token = found.base_url, found.admin_token
    try:
        with fleet_named("e2e-vault") as fleet:
            fleet.up(hosts=2, suite="bookworm", warm=True, vault=OtherVault(address, token))
            cluster = deploy(fleet, "gs-1", "gs-2", GPUAAS_RETRY_SECONDS="0")
            ends(cluster.run(), 0)
            yield Kept(cluster, address, token)
    finally:
        process.stop(state)


@pytest.fixture
def server() -> VaultServer:
    directory = GIVEN.get("VAULT_SERVER_DIRECTORY")
    if directory is None:
        pytest.skip("only a Vault that ./dev test vault has started may be sealed and restarted")
    return VaultServer(Path(directory))


def test_the_clusters_secrets_are_there_and_not_with_the_platform(kept: Kept) -> None:
    assert kept.cluster.variables["VAULT_ADDR"] == kept.address != kept.cluster.fleet.url
    assert set(kept.secrets()) == {"munge_key", "jwt_key", "slurmdbd_password"}
    kept.cluster.runs_a_job_on_every_worker()


def test_a_munge_key_is_rotated_there(kept: Kept) -> None:
    before = kept.secrets()
    kept.carry_out("rotate-credentials")
    after = kept.secrets()
    assert after["munge_key"] != before["munge_key"] and after["jwt_key"] == before["jwt_key"]
    kept.cluster.runs_a_job_on_every_worker()


def test_a_new_access_credential_is_delivered_from_there_for_the_next_play(kept: Kept) -> None:
    cluster, key, credential = kept.cluster, KeyPair.generate(), str(uuid.uuid4())
    for host in cluster.fleet.hosts():
        cluster.on(host.name, "sh", "-c", f"echo '{key.public}' > /home/{LOGIN_USER}/.ssh/authorized_keys")
    project = cluster.variables["GPUAAS_PROJECT_ID"]
    cluster.fleet.control().put_credential(project, credential, username=LOGIN_USER, private_key=key.private)
    ends(cluster.command("configure", cluster.instance_id, "--access-credential", credential), 0)
    kept.carry_out("remove", "--members", cluster.workers()["gs-2"]["id"])
    assert cluster.workers()["gs-2"]["status"] == "deleted"


def test_a_token_that_ended_is_denied_and_changes_nothing(kept: Kept) -> None:
    variables, login = kept.cluster.variables, hvac.Client(url=kept.address)
    role = {"role_id": variables["VAULT_ROLE_ID"], "secret_id": variables["VAULT_SECRET_ID"]}
    login.auth.approle.login(**role, mount_point=kept.mount)
    kept.admin.auth.token.revoke(login.token)
    before = kept.secrets()
    asked = kept.ask("add", "--allocations", "gs-2")
    ran = kept.cluster.run(VAULT_TOKEN=str(login.token), VAULT_ROLE_ID="", VAULT_SECRET_ID="")
    assert "vault_denied" in ran.stderr
    assert kept.secrets() == before
    assert kept.ended(asked)["status"] == "failed"
    kept.carry_out("add", "--allocations", "gs-2")
    kept.cluster.runs_a_job_on_every_worker()


def test_a_sealed_vault_stops_work_and_not_the_cluster(kept: Kept, server: VaultServer) -> None:
    asked = kept.ask("restart")
    server.seal()
    try:
        assert kept.cluster.run().returncode != 0
        kept.cluster.runs_a_job_on_every_worker()
    finally:
        server.unseal()
    until(
        lambda: kept.cluster.run() and kept.ended(asked)["status"] == "succeeded", 300, "the restart goes on", every=1
    )


def test_a_restarted_vault_has_every_secret(kept: Kept, server: VaultServer) -> None:
    before = kept.secrets()
    server.stop()
    server.start()
    assert kept.secrets() == before
    kept.carry_out("restart")


def test_a_decommission_leaves_nothing_of_the_cluster_there(kept: Kept) -> None:
    kept.ask("decommission")

    def is_gone() -> bool:
        kept.cluster.run()
        return bool(kept.cluster.instance()["status"] == "deleted")

    until(is_gone, 300, "it is gone", every=1)
    with pytest.raises(exceptions.InvalidPath):
        kept.secrets()
