"""A key, configuration or database of another owner is never adopted, and a server that others use is never removed.

gs-1 is bare, so its MariaDB comes with the cluster; others begin to use it. gs-2 and gs-3 are warm and are offered
again and again with a thing of others on them, as controller and as worker. At the end they serve a second cluster,
beside a database that was there before it and with homes on a file system of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from sandbox.fleet.images import SUITES
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.e2e.foreign import OURS, on, put_homes_elsewhere, server, sql, start_owners_server, use_it_meanwhile
from tests.e2e.host_picture import difference, picture
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("shared")]


@dataclass
class Shared:
    fleet: Fleet
    cluster: Cluster


@pytest.fixture(scope="module", params=SUITES)
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with fleet_named(f"e2e-foreign-{request.param}") as fleet:
        suite = request.param
        fleet.ensure([HostSpec("gs-1", suite), HostSpec("gs-2", suite, True), HostSpec("gs-3", suite, True)])
        cluster = deploy(fleet, "gs-1", GPUAAS_RETRY_SECONDS="0")
        ends(cluster.run(), 0)
        yield Shared(fleet, cluster)


def stands(cluster: Cluster, status: str) -> bool:
    ends(cluster.run(), 0)
    return bool(cluster.instance()["status"] == status)


def refused_deploy(fleet: Fleet, code: str, named: str) -> None:
    """A deploy on gs-2 ends with the code, names the thing, and leaves the host as it was."""
    before = picture(fleet, "gs-2")
    cluster = deploy(fleet, "gs-2")
    ends(cluster.run(), 0)
    assert cluster.instance()["status"] == "failed"
    error = cluster.controller()["adapter_detail"]["last_adapter_error"]
    assert (error["code"], error["class"]) == (code, "intervention"), error
    assert named in error["message"]
    assert difference(before, picture(fleet, "gs-2")) == []
    answer(cluster.variables, "op", "decommission", cluster.instance_id)
    until(lambda: stands(cluster, "deleted"), 120, "the refused instance is deleted", every=1)
    assert difference(before, picture(fleet, "gs-2")) == []


def refused_join(shared: Shared, code: str, path: str) -> None:
    before = picture(shared.fleet, "gs-3")
    operation = shared.cluster.add("gs-3")
    ends(shared.cluster.run(), 1)
    ended = next(one for one in shared.cluster.operations() if one["id"] == operation["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", code), ended
    assert path in ended["error"]["message"]
    assert difference(before, picture(shared.fleet, "gs-3")) == []


@pytest.mark.parametrize(
    ("path", "code"), [("/etc/munge/munge.key", "munge_key_exists"), ("/etc/slurm/slurm.conf", "slurm_conf_exists")]
)
def test_a_worker_with_a_key_or_configuration_of_others_is_refused(shared: Shared, path: str, code: str) -> None:
    on(shared.fleet, "gs-3", f"mkdir -p $(dirname {path}); echo of another owner >{path}")
    refused_join(shared, code, path)
    on(shared.fleet, "gs-3", f"rm {path}")


def test_a_database_or_user_of_others_is_not_adopted(shared: Shared) -> None:
    start_owners_server(shared.fleet, "gs-2")
    before = server(shared.fleet, "gs-2")
    for made, taken_back in (
        ("CREATE DATABASE slurm_acct_db", "DROP DATABASE slurm_acct_db"),
        ("CREATE USER slurm@'%'", "DROP USER slurm@'%'"),
    ):
        sql(shared.fleet, "gs-2", made)
        refused_deploy(shared.fleet, "database_exists", "slurm")
        sql(shared.fleet, "gs-2", taken_back)
    assert server(shared.fleet, "gs-2") == before


@pytest.mark.parametrize(
    ("break_it", "mend_it", "named"),
    [
        ("systemctl stop mariadb", "systemctl start mariadb", "inactive and enabled"),
        (
            "mariadb --execute=\"ALTER USER root@localhost IDENTIFIED BY 'x'\"",
            "mariadb --password=x --execute='ALTER USER root@localhost IDENTIFIED VIA unix_socket'",
            "Access denied",
        ),
        ("mariadb --execute='SET GLOBAL read_only=1'", "mariadb --execute='SET GLOBAL read_only=0'", "read-only"),
    ],
)
def test_a_server_that_cannot_take_our_database_is_refused(
    shared: Shared, break_it: str, mend_it: str, named: str
) -> None:
    on(shared.fleet, "gs-2", break_it)
    refused_deploy(shared.fleet, "database_unusable", named)
    on(shared.fleet, "gs-2", mend_it)


def test_a_stop_leaves_a_server_that_others_use_and_a_start_needs_no_restart_of_it(shared: Shared) -> None:
    cluster, fleet = shared.cluster, shared.fleet
    before = cluster.process("gs-1", "mariadb")
    sql(fleet, "gs-1", "CREATE DATABASE shop; CREATE TABLE shop.orders (id INT PRIMARY KEY, what TEXT)")
    use_it_meanwhile(fleet, "gs-1")
    answer(cluster.variables, "op", "stop", cluster.instance_id)
    until(lambda: stands(cluster, "stopped"), 120, "the cluster is stopped", every=1)
    left = cluster.controller()["adapter_detail"]["services_left"]
    assert [one.partition(":")[0] for one in left] == ["mariadb"] and "shop" in left[0]
    # Another password than Vault has is put right by SQL.
    sql(fleet, "gs-1", "ALTER USER slurm@localhost IDENTIFIED BY 'another'")
    answer(cluster.variables, "op", "start", cluster.instance_id)
    until(lambda: stands(cluster, "running"), 120, "the cluster runs again", every=1)
    assert cluster.process("gs-1", "mariadb") == before
    assert cluster.on("gs-1", "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster") != ""


def test_a_server_that_others_came_to_use_outlives_the_cluster(shared: Shared) -> None:
    cluster, fleet = shared.cluster, shared.fleet
    before = server(fleet, "gs-1")
    answer(cluster.variables, "op", "decommission", cluster.instance_id)
    until(lambda: stands(cluster, "deleted"), 300, "the instance is deleted", every=1)
    detail = cluster.controller()["adapter_detail"]
    assert detail["residue"] == [] and "afterwards, shop" in detail["data_left"][0], detail
    after = server(fleet, "gs-1")
    assert (after.process, after.dump) == (before.process, before.dump)
    assert sql(fleet, "gs-1", OURS) == ""
    fails(fleet.exec("gs-1", ["sh", "-c", "ls /etc/mysql/*gpuaas* /etc/mysql/*/*gpuaas*"]))
    packages = on(fleet, "gs-1", "dpkg-query --show --showformat='${Package} ${db:Status-Status}\\n'")
    assert "mariadb-server installed" in packages
    assert [line for line in packages.splitlines() if line.startswith(("slurm", "munge"))] == []


def test_a_server_and_homes_that_were_there_outlive_a_second_cluster(shared: Shared, tmp_path: Path) -> None:
    fleet = shared.fleet
    put_homes_elsewhere(fleet, "gs-3")
    before = {host: picture(fleet, host) for host in ("gs-2", "gs-3")}
    there_before = server(fleet, "gs-2")
    users = tmp_path / "users.json"
    users.write_text('[{"name": "ada", "uid": 2001}]')
    cluster = deploy(fleet, "gs-2", "gs-3", "--users", str(users), GPUAAS_RETRY_SECONDS="0")
    ends(cluster.run(), 0)
    cluster.runs_a_job_on_every_worker()
    assert server(fleet, "gs-2") == there_before
    use_it_meanwhile(fleet, "gs-2")
    in_use = replace(there_before, dump=server(fleet, "gs-2").dump)
    on(fleet, "gs-3", "echo draft >/home/ada/thesis")

    asked = answer(cluster.variables, "op", "remove", cluster.instance_id, "--members", "gs-3", "--remove-homes")
    until(lambda: removed(cluster, "gs-3"), 120, "gs-3 is removed", every=1)
    ended = next(one for one in cluster.operations() if one["id"] == asked["id"])
    (result,) = ended["result"]["members"].values()
    assert result["homes_left"] == ["/home/ada: it is on another file system"]
    assert on(fleet, "gs-3", "cat /home/ada/thesis") == "draft"
    assert difference(before["gs-3"], picture(fleet, "gs-3"), "/home/ada") == []

    answer(cluster.variables, "op", "decommission", cluster.instance_id, "--remove-homes")
    until(lambda: stands(cluster, "deleted"), 300, "the second instance is deleted", every=1)
    assert server(fleet, "gs-2") == in_use
    assert sql(fleet, "gs-2", OURS) == ""
    left = difference(before["gs-2"], picture(fleet, "gs-2"))
    assert [one for one in left if not one.startswith("+ database")] == []


def removed(cluster: Cluster, host: str) -> bool:
    ends(cluster.run(), 0)
    return bool(cluster.workers()[host]["status"] == "deleted")
