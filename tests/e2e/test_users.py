"""People are declared with the cluster: each can submit at once, and who is declared no more can not."""

import shlex
import subprocess
from pathlib import Path

import pytest

from sandbox.fleet.keys import KeyPair
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, until
from tests.e2e.conftest import Equipped
from tests.e2e.declared_users import declare_users
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("equipped")]


def as_user(cluster: Cluster, name: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    """As after a login, in the user's home."""
    return cluster.fleet.exec(cluster.controller_host, ["runuser", "--login", name, "-c", shlex.join(argv)])


def submit(cluster: Cluster, name: str) -> str:
    done = as_user(cluster, name, "sbatch", "--parsable", "--wrap=id --user")
    ends(done, 0)
    return done.stdout.strip()


def account_of(cluster: Cluster, job: str) -> list[str]:
    """User, account and state as accounting has them, once the job is over."""

    def ended() -> list[str]:
        output = cluster.on(
            cluster.controller_host, "sacct", "-X", "-n", "-P", f"--jobs={job}", "--format=User,Account,State"
        )
        row = output.split("|")
        return row if row[-1] not in ("", "PENDING", "RUNNING", "COMPLETING") else []

    return until(ended, 120, f"job {job}", every=1)


def login(cluster: Cluster, name: str, key: KeyPair, directory: Path) -> "subprocess.CompletedProcess[str]":
    identity = directory / "id"
    identity.touch(mode=0o600)
    identity.write_text(key.private)
    target = next(host for host in cluster.fleet.hosts() if host.name == cluster.controller_host)
    known_hosts = directory / "known_hosts"
    known_hosts.write_text(f"{target.address} {target.host_key}\n")
    options = (
        "-F",
        "none",
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "BatchMode=yes",
        "-o",
        "IdentitiesOnly=yes",
    )
    command = ["ssh", *options, "-i", str(identity), f"{name}@{target.address}", "whoami"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_first_job_of_each_user_runs_under_its_account(equipped: Equipped) -> None:
    jobs = {user["name"]: submit(equipped.cluster, user["name"]) for user in equipped.users}
    for user in equipped.users:
        row = account_of(equipped.cluster, jobs[user["name"]])
        assert row == [user["name"], user.get("account", "default"), "COMPLETED"]
    # It ran in its home on the worker, under the uid that every host has.
    assert equipped.cluster.on("gs-2", "sh", "-c", f"cat /home/ada/slurm-{jobs['ada']}.out") == "2001"


def test_users_have_the_same_numbers_on_every_host(equipped: Equipped) -> None:
    hosts = [equipped.cluster.controller_host, *equipped.cluster.workers()]
    ready = [host for host in hosts if equipped.cluster.workers().get(host, {"status": "ready"})["status"] == "ready"]
    for user in equipped.users:
        shown = {equipped.cluster.on(host, "id", user["name"]) for host in ready}
        assert shown == {
            f"uid={user['uid']}({user['name']}) gid={user['uid']}({user['name']}) groups={user['uid']}({user['name']})"
        }


def test_a_user_logs_in_on_the_controller_with_the_declared_key(equipped: Equipped, tmp_path: Path) -> None:
    done = login(equipped.cluster, "ada", equipped.key, tmp_path)
    assert ends(done, 0).stdout.strip() == "ada", done.stderr


def test_a_host_where_a_uid_is_taken_is_refused_before_any_change(equipped: Equipped) -> None:
    if equipped.suite != "bookworm":
        pytest.skip("the same code on every system")
    cluster = equipped.cluster
    cluster.on("gs-4", "useradd", "--uid", "2002", "squatter")
    operation = cluster.add("gs-4")
    ends(cluster.run(), 1)
    ended = next(one for one in cluster.operations() if one["id"] == operation["id"])
    assert ended["error"]["code"] == "uid_taken"
    assert "squatter" in ended["error"]["message"]
    assert cluster.on("gs-4", "sh", "-c", "ls /var/lib/gpuaas-slurm/ledger.json /home/ada 2>/dev/null; true") == ""


def test_users_come_and_go_with_a_worker_and_their_homes_stay(equipped: Equipped) -> None:
    if equipped.suite != "bookworm":
        pytest.skip("the same code on every system")
    cluster = equipped.cluster
    cluster.on("gs-4", "userdel", "squatter")
    before = cluster.on("gs-4", "sh", "-c", "cut -d: -f1 /etc/passwd | sort")
    cluster.add("gs-4")
    ends(cluster.run(), 0)
    assert cluster.on("gs-4", "stat", "--format=%U %u %a", "/home/ada") == "ada 2001 750"
    cluster.on("gs-4", "sh", "-c", "echo draft >/home/ada/thesis")
    asked = answer(cluster.variables, "op", "remove", cluster.instance_id, "--members", "gs-4")
    ends(cluster.run(), 0)
    ended = next(one for one in cluster.operations() if one["id"] == asked["id"])
    (result,) = ended["result"]["members"].values()
    assert [one.partition(":")[0] for one in result["homes_left"]] == [
        f"/home/{user['name']}" for user in equipped.users
    ]
    assert cluster.on("gs-4", "sh", "-c", "cut -d: -f1 /etc/passwd | sort") == before
    assert cluster.on("gs-4", "cat", "/home/ada/thesis") == "draft"
    assert cluster.on("gs-2", "id", "--user", "ada") == "2001"


def test_a_user_taken_off_the_list_submits_no_more_and_one_put_on_it_does(equipped: Equipped, tmp_path: Path) -> None:
    cluster = equipped.cluster
    earlier = submit(cluster, "ada")
    assert account_of(cluster, earlier)[-1] == "COMPLETED"
    running = as_user(cluster, "ada", "sbatch", "--parsable", "--wrap=sleep 600").stdout.strip()
    until(lambda: "R" in cluster.on("gs-1", "squeue", "-h", "-o", "%t", "-j", running), 60, "her job to run", every=1)

    cleo = {"name": "cleo", "uid": 2003, "account": "physics"}
    declare_users(cluster, tmp_path, [*(user for user in equipped.users if user["name"] != "ada"), cleo])

    refused = as_user(cluster, "ada", "sbatch", "--wrap=true")
    fails(refused)
    fails(login(cluster, "ada", equipped.key, tmp_path))
    assert account_of(cluster, earlier) == ["ada", "physics", "COMPLETED"]
    assert cluster.on("gs-1", "squeue", "-h", "-o", "%T", "-j", running) == "RUNNING"
    assert cluster.on("gs-2", "ls", f"/home/ada/slurm-{earlier}.out")
    jobs = {name: submit(cluster, name) for name in ("ben", "cleo")}
    assert {name: account_of(cluster, job)[-1] for name, job in jobs.items()} == dict.fromkeys(jobs, "COMPLETED")

    declare_users(cluster, tmp_path, [*equipped.users, cleo])
    assert account_of(cluster, submit(cluster, "ada")) == ["ada", "physics", "COMPLETED"]
    cluster.on("gs-1", "scancel", running)
