"""A cluster that an API request brought up: what the API, operators and users see of it, on each Debian.

Over 300 lines, because a deploy takes minutes and all of these tests look at the same clusters.
"""

import base64
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, distinct, in_vault, log_lines, until
from tests.e2e.conftest import Deployed, journals
from tests.journal_table import TABLE, UNITS, Line, read_table, unexplained
from tests.platform_process import Doc

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("deployed", independent=True)]

CONTROLLER_PHASES = ["requested", "preflight", "munge", "accounting", "controller", "baseline", "serving"]
WORKER_PHASES = ["requested", "preflight", "munge", "joining", "registering", "serving"]
STATUSES = ["requested", "reconciling", "ready"]


def test_one_run_brings_up_every_instance_that_was_asked_for(deployed: Deployed) -> None:
    assert deployed.exit_code == 0, deployed.log
    for one in (deployed.split, deployed.same_node):
        instance = one.instance()
        assert (instance["status"], instance["health"]) == ("running", "healthy"), instance["status_detail"]
        assert {member["status"] for member in one.members()} == {"ready"}
        assert {operation["status"] for operation in one.operations()} == {"succeeded"}


def test_the_instance_is_requested_then_deploying_then_running(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        assert distinct([seen.status for seen in one.seen]) == ["requested", "deploying", "running"]
        assert [seen.health for seen in one.seen][-1] == "healthy"


def test_member_status_and_phase_move_forward_only(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        for member in one.members():
            seen = [found for sighting in one.seen if (found := sighting.of(member["id"]))]
            order = CONTROLLER_PHASES if member["component_key"] == "controller" else WORKER_PHASES
            statuses, phases = (distinct([pair[place] for pair in seen]) for place in (0, 1))
            assert statuses == sorted(statuses, key=lambda status: STATUSES.index(status))
            assert statuses[-1] == "ready"
            assert phases == sorted(phases, key=lambda phase: order.index(phase))
            assert phases[-1] == "serving"
            assert len(phases) >= 4, f"too few phases were seen to call it progress: {phases}"


def test_a_controller_is_serving_before_its_workers_begin(deployed: Deployed) -> None:
    controller = deployed.split.controller()["id"]
    for sighting in deployed.split.seen:
        begun = [phase for one, _, phase in sighting.members if one != controller and phase != "requested"]
        if begun:
            assert (sighting.of(controller) or ("", ""))[1] == "serving"


def test_the_timeline_has_requested_and_running_once_each_with_their_context(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        instance, events = one.instance(), one.events()
        assert [event["type"] for event in events] == ["apps.instance.requested", "apps.instance.running"]
        for event in events:
            for name in ("org_id", "project_id", "app_slug", "correlation_id"):
                assert event[name] == instance[name]
            assert event["app_instance_id"] == instance["id"]


def test_srun_reaches_every_worker_as_root_and_as_the_login_user(cluster: Cluster) -> None:
    cluster.runs_a_job_on_every_worker()
    workers = cluster.workers()
    output = cluster.on(
        cluster.controller_host, "sudo", "-u", "ops", "srun", f"-N{len(workers)}", "sh", "-c", "id -un; hostname"
    )
    assert sorted(output.split()) == sorted([*workers, *["ops"] * len(workers)])


def test_srun_inside_a_worker_reaches_another_worker(cluster: Cluster) -> None:
    first, second, *_ = sorted(cluster.workers())
    assert cluster.on(first, "sudo", "-u", "ops", "srun", "-w", second, "hostname") == second


def test_a_same_node_cluster_runs_jobs_on_its_one_host(deployed: Deployed) -> None:
    one = deployed.same_node
    assert {member["allocation_id"] for member in one.members()} == {deployed.fleet.allocation_id("gs-4")}
    assert sorted(member["component_key"] for member in one.members()) == ["controller", "worker"]
    one.runs_a_job_on_every_worker()
    _batch_job_completes_under_an_account(one, "ops")


@pytest.mark.parametrize("user", ["ops", "root"])
def test_a_batch_job_ends_completed_under_an_account_and_never_shows_invalid_account(
    cluster: Cluster, user: str
) -> None:
    _batch_job_completes_under_an_account(cluster, user)


def _batch_job_completes_under_an_account(cluster: Cluster, user: str) -> None:
    host = cluster.controller_host
    # Squeue's reason is asked for right after sbatch, in one shell, because an InvalidAccount may be gone soon.
    script = (
        "job=$(sbatch --parsable --output=/tmp/job-%j.out --wrap hostname); echo $job;"
        " for _ in 1 2 3 4 5 6 7 8 9 10; do squeue --noheader --format='%T %r'; done"
    )
    job, *waiting = cluster.on(host, "sudo", "-u", user, "sh", "-c", script).splitlines()
    assert "InvalidAccount" not in " ".join(waiting)

    def ended() -> list[str] | None:
        shown = cluster.on(host, "sacct", "-nPX", f"-j{job}", "--format=State,Account,Cluster,NodeList")
        fields = shown.split("|")
        return fields if fields[0] not in ("", "PENDING", "RUNNING", "COMPLETING") else None

    state, account, name, node = until(ended, 30, f"job {job} ends in sacct")
    assert (state, name) == ("COMPLETED", cluster.controller()["adapter_detail"]["cluster_name"])
    # Slurm gives root an account of its own; all other users work under the one that the access bundle names.
    assert account == ("root" if user == "root" else cluster.instance()["access"]["submit"]["account"])
    assert node in cluster.workers()


def test_controller_details_match_the_host(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        host = one.controller_host
        detail = one.controller()["adapter_detail"]
        config = _slurm_config(one, host)
        assert detail["role"] == "controller"
        assert detail["phase"] == "serving"
        assert detail["last_adapter_error"] is None
        assert detail["controller_hostname"] == one.on(host, "hostname")
        assert detail["slurmctld_state"] == one.on(host, "systemctl", "is-active", "slurmctld")
        assert detail["slurmdbd_state"] == one.on(host, "systemctl", "is-active", "slurmdbd")
        assert detail["cluster_name"] == config["ClusterName"]
        assert detail["slurm_version"] == config["SLURM_VERSION"]
        assert detail["package_version"] == one.on(host, "dpkg-query", "-W", "-f=${Version}", "slurmctld")
        assert detail["config_version"] == _digest(one, host, "/etc/slurm/slurm.conf")
        _is_recent(one, detail["last_runtime_observed_at"])
        started = datetime.fromisoformat(detail["slurmctld_started_at"])
        assert abs((started - _unit_started(one, host, "slurmctld")).total_seconds()) < 5


def test_worker_details_match_the_host_and_the_controller(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        controller = one.controller()["adapter_detail"]
        for host, worker in one.workers().items():
            detail = worker["adapter_detail"]
            assert detail["role"] == "worker"
            assert detail["phase"] == "serving"
            assert detail["last_adapter_error"] is None
            assert detail["worker_hostname"] == one.on(host, "hostname") == host
            assert detail["slurmd_state"] == one.on(host, "systemctl", "is-active", "slurmd")
            assert detail["slurm_version"] == one.on(host, "slurmd", "-V").split()[-1]
            assert detail["config_version"] == _digest(one, host, "/var/lib/slurm/slurmd/conf-cache/slurm.conf")
            assert detail["config_version"] == controller["config_version"]
            assert detail["cpus"] == int(one.on(host, "nproc"))
            assert detail["memory_mb"] == int(one.on(host, "awk", "/MemTotal/ {print int($2/1024)}", "/proc/meminfo"))
            assert detail["gpus"] == int(one.on(host, "sh", "-c", "ls /dev | grep -c '^nvidia[0-9]' || true"))
            node = one.on(one.controller_host, "scontrol", "show", "node", host)
            assert detail["registered_in_controller"] is True
            assert f"RealMemory={detail['memory_mb']} " in node
            assert f"CPUTot={detail['cpus']} " in node
            assert detail["drain_reason"] is None
            assert detail["jobs_remaining"] == 0
            _is_recent(one, detail["last_runtime_observed_at"])


def _slurm_config(cluster: Cluster, host: str) -> dict[str, str]:
    lines = cluster.on(host, "scontrol", "show", "config").splitlines()
    return {key.strip(): value.strip() for key, sign, value in (line.partition("=") for line in lines) if sign}


def _digest(cluster: Cluster, host: str, path: str) -> str:
    return "sha256:" + cluster.on(host, "sha256sum", path)[:16]


def _unit_started(cluster: Cluster, host: str, unit: str) -> datetime:
    shown = cluster.on(host, "date", "--utc", "+%s", "--date", _shown(cluster, host, unit, "ActiveEnterTimestamp"))
    return datetime.fromtimestamp(int(shown), UTC)


def _shown(cluster: Cluster, host: str, unit: str, what: str) -> str:
    return cluster.on(host, "systemctl", "show", unit, f"--property={what}", "--value")


def _is_recent(cluster: Cluster, stamp: str) -> None:
    asked = datetime.fromisoformat(cluster.instance()["created_at"])
    assert asked - timedelta(seconds=1) < datetime.fromisoformat(stamp) <= datetime.now(UTC)


def test_slurmctld_was_never_restarted_for_a_worker_that_joined(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        host = one.controller_host
        assert _shown(one, host, "slurmctld", "NRestarts") == "0"
        starts = one.on(host, "journalctl", "--unit=slurmctld", "--output=cat", "--grep=^Started ", "--quiet")
        assert len(starts.splitlines()) == 1


def test_an_added_worker_joins_without_disturbing_the_others(deployed: Deployed) -> None:
    one = deployed.split
    before = {host: one.process(host, "slurmd") for host in one.workers()}
    controller = one.process(one.controller_host, "slurmctld")
    operation = one.add("gs-5")
    ran = one.run()
    ends(ran, 0)
    ended = next(found for found in one.operations() if found["id"] == operation["id"])
    assert ended["status"] == "succeeded"
    assert [found["hostname"] for found in ended["result"]["members"].values()] == ["gs-5"]
    assert one.workers()["gs-5"]["status"] == "ready"
    assert one.process(one.controller_host, "slurmctld") == controller
    assert {host: one.process(host, "slurmd") for host in before} == before
    one.runs_a_job_on_every_worker()
    assert one.instance()["health"] == "healthy"


def test_no_daemon_of_a_fresh_deploy_logs_an_error_that_the_docs_do_not_explain(deployed: Deployed) -> None:
    """As it was before the first job: what comes with every new cluster, and nothing else."""
    units = {line.unit for lines in deployed.journals.values() for line in lines}
    assert units == set(UNITS), "the journal of a unit was not read"
    assert _unexplained(deployed, deployed.journals, "start") == {}


def test_nor_does_one_that_has_run_jobs(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        one.runs_a_job_on_every_worker()
    assert _unexplained(deployed, journals(deployed.fleet), "start", "jobs") == {}


def _unexplained(deployed: Deployed, logged: dict[str, list[Line]], *whens: str) -> dict[str, list[Line]]:
    table = read_table(TABLE.read_text())
    series = {"bookworm": "22.05", "trixie": "24.11"}[deployed.fleet.hosts()[0].spec.suite]
    found = {host: unexplained(lines, table, series, *whens) for host, lines in logged.items()}
    return {host: lines for host, lines in found.items() if lines}


def test_a_run_with_nothing_to_do_writes_nothing_and_touches_no_host(deployed: Deployed) -> None:
    one, control = deployed.split, deployed.fleet.control()
    logins = {host.name: _logins(one, host.name) for host in deployed.fleet.hosts()}
    last = control.requests()["last"]
    ran = one.command("run", GPUAAS_OBSERVE_SECONDS="86400")
    ends(ran, 0)
    requests = control.requests(since=last)["requests"]
    assert [(one["method"], one["template"]) for one in requests[:2]] == [
        ("POST", "/auth/service-account/token"),
        ("GET", "/projects/{project_id}/app-instances"),
    ]
    for instance in (deployed.split, deployed.same_node):
        own = [request for request in requests[2:] if instance.instance_id in request["path"]]
        assert len(own) <= 2
        assert {request["method"] for request in own} <= {"GET"}
    assert len(requests) <= 2 + 2 * 2
    assert {host.name: _logins(one, host.name) for host in deployed.fleet.hosts()} == logins


def _logins(cluster: Cluster, host: str) -> int:
    return len(cluster.on(host, "journalctl", "--unit=ssh", "--output=cat", "--no-pager").splitlines())


def test_what_is_refused_changes_nothing_on_any_host(deployed: Deployed) -> None:
    """The same list as in tests/contract/test_refusals.py, on hosts: no host is logged in to and nothing is changed."""
    one = deployed.split
    members = {member["component_key"]: member["id"] for member in one.members()}
    listed = one.api.get(f"/projects/{one.variables['GPUAAS_PROJECT_ID']}/allocations").json()["items"]
    spare = next(allocation["id"] for allocation in listed if allocation["name"] == "gs-5")
    asked = [
        _ask(one, code, operation, component, [members[target] for target in targets], allocations)
        for code, operation, component, targets, allocations in (
            ("second_controller", "add", "controller", [], [spare]),
            ("controller_not_supported", "drain", "controller", ["controller"], []),
            ("controller_not_supported", "remove", "controller", ["controller"], []),
            ("controller_not_supported", "replace", "controller", ["controller"], [spare]),
            ("operation_unknown", "levitate", "worker", ["worker"], []),
            ("component_unknown", "add", "gateway", [], [spare]),
            ("allocations_required", "add", "worker", [], []),
        )
    ]
    before = {host.name: _state_of(one, host.name) for host in deployed.fleet.hosts()}
    ends(one.run(GPUAAS_OBSERVE_SECONDS="86400"), 1)
    ended = {found["id"]: found for found in one.operations()}
    assert [(ended[made]["status"], ended[made]["error"]["code"]) for _, made in asked] == [
        ("failed", code) for code, _ in asked
    ]
    assert {host.name: _state_of(one, host.name) for host in deployed.fleet.hosts()} == before


def _ask(
    cluster: Cluster, code: str, operation: str, component: str, members: list[str], allocations: list[str]
) -> tuple[str, str]:
    """Straight to the API, as no command of ours would; gives back the code that is expected, and the operation."""
    body = {"operation": operation, "component_key": component, "member_ids": members, "allocation_ids": allocations}
    made = cluster.api.post(f"{cluster.path}/member-operations", body)
    assert made.status_code == 201, made.text
    return code, str(made.json()["id"])


def _state_of(cluster: Cluster, host: str) -> tuple[str, str, int]:
    """Every process of ours with its id, everything that we keep on the host, and how often it was logged in to."""
    units = ("munge", "mariadb", "slurmdbd", "slurmctld", "slurmd")
    processes = cluster.on(host, "systemctl", "show", "--property=Id,MainPID,ActiveEnterTimestampMonotonic", *units)
    kept = "find /var/lib/gpuaas-slurm /run/gpuaas-slurm -type f -exec sha256sum {} + 2>/dev/null | sort; true"
    return processes, cluster.on(host, "sh", "-c", kept), _logins(cluster, host)


def test_a_look_reports_a_drain_by_a_person_and_does_not_lift_it(deployed: Deployed) -> None:
    one = deployed.split
    host = one.controller_host
    one.on(host, "scontrol", "update", "nodename=gs-2", "state=drain", "reason=bad fan")
    try:
        ends(one.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
        detail = one.workers()["gs-2"]["adapter_detail"]
        assert (detail["drain_reason"], detail["node_state"]) == ("bad fan", "IDLE+DRAIN")
        instance = one.instance()
        assert (instance["status"], instance["health"]) == ("running", "healthy")
        (reason,) = instance["status_detail"]["reasons"]
        assert reason["code"] == "worker_held_by_person" and "bad fan" in reason["message"]
        assert "Reason=bad fan" in one.on(host, "scontrol", "show", "node", "gs-2")
    finally:
        one.on(host, "scontrol", "update", "nodename=gs-2", "state=resume")
    ends(one.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert one.instance()["health"] == "healthy"
    assert one.workers()["gs-2"]["adapter_detail"]["drain_reason"] is None


def test_the_five_questions_of_a_success_are_answered_by_the_api_alone(cluster: Cluster) -> None:
    instance = cluster.instance()
    answers_the_five_questions(cluster, instance["correlation_id"], cluster.workers()["gs-2"], "succeeded")
    assert instance["status_detail"]["versions"]["slurmctld"]


def answers_the_five_questions(cluster: Cluster, correlation_id: str, member: Doc, outcome: str) -> None:
    """From a correlation id: which instance, which member, which operation, and what the runtime reports."""
    listed = cluster.api.get(cluster.path.rsplit("/", 1)[0]).json()["items"]
    assert cluster.instance_id in [one["id"] for one in listed]
    found = [one for one in cluster.members() if one["correlation_id"] == correlation_id]
    assert member["id"] in [one["id"] for one in found]
    operation = next(one for one in cluster.operations() if one["correlation_id"] == correlation_id)
    assert operation["status"] == outcome
    assert member["adapter_detail"]["operation_id"] == operation["id"]
    assert member["id"] in operation["result"]["members"]
    assert member["adapter_detail"]["phase"]


def test_each_secret_is_on_the_hosts_that_need_it_and_there_for_its_daemon_alone(deployed: Deployed) -> None:
    wanted = {"/etc/munge/munge.key": "munge:munge 400"}
    controllers = {
        "/etc/slurm/jwt_hs256.key": "slurm:slurm 400",
        "/etc/slurm/slurmdbd.conf": "slurm:slurm 600",
    }
    for one in (deployed.split, deployed.same_node):
        secrets = in_vault(one)
        assert set(secrets) == {"munge_key", "slurmdbd_password", "jwt_key"}
        for host in {one.controller_host, *one.workers()}:
            expected = {**wanted, **(controllers if host == one.controller_host else {})}
            listed = " ".join([*wanted, *controllers])
            shown = one.on(host, "sh", "-c", f"stat --format='%n=%U:%G %a' {listed} 2>/dev/null || true")
            assert dict(line.split("=") for line in shown.splitlines()) == expected, host
            assert one.on(host, "base64", "--wrap=0", "/etc/munge/munge.key") == secrets["munge_key"]
        controller = one.controller_host
        assert one.on(controller, "base64", "--wrap=0", "/etc/slurm/jwt_hs256.key") == secrets["jwt_key"]
        assert f"StoragePass={secrets['slurmdbd_password']}\n" in one.on(controller, "cat", "/etc/slurm/slurmdbd.conf")


def test_a_token_works_without_a_munge_key_and_a_changed_token_is_refused(
    deployed: Deployed,
) -> None:
    one, inside, outside = deployed.split, deployed.split.controller_host, deployed.same_node.controller_host
    ends(deployed.fleet.exec(outside, ["tee", "/tmp/other.conf"], one.on(inside, "cat", "/etc/slurm/slurm.conf")), 0)
    token = one.on(inside, "sudo", "-u", "ops", "scontrol", "token", "lifespan=600").removeprefix("SLURM_JWT=")
    header, claims, signature = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["sun"] == "ops"
    for_a_week = ["sudo", "-u", "ops", "scontrol", "token", "lifespan=604800"]
    fails(deployed.fleet.exec(inside, for_a_week), why="a day is the most")

    def ask(host: str, *variables: str, command: tuple[str, ...] = ("squeue",)) -> "subprocess.CompletedProcess[str]":
        conf = "/tmp/other.conf" if host == outside else "/etc/slurm/slurm.conf"
        argv = ["sudo", "-u", "ops", "env", f"SLURM_CONF={conf}", *variables, *command]
        return deployed.fleet.exec(host, argv)

    ends(ask(inside), 0)
    fails(ask(outside), why="munge there has another key")
    for host in (inside, outside):
        ends(ask(host, f"SLURM_JWT={token}"), 0)
    accounting = ("sacctmgr", "--noheader", "list", "cluster")
    ends(ask(inside, f"SLURM_JWT={token}", command=accounting), 0, why="slurmdbd")
    root = base64.urlsafe_b64encode(json.dumps({"exp": 2**31, "iat": 1, "sun": "root"}).encode()).decode().rstrip("=")
    other = "A" if signature[0] != "A" else "B"
    for wrong in (f"{header}.{claims}.{other}{signature[1:]}", f"{header}.{root}.{signature}", f"{header}.{root}."):
        fails(ask(inside, f"SLURM_JWT={wrong}"), why="a changed token was taken")


def test_every_log_line_of_a_deploy_has_the_ids_of_its_instance(deployed: Deployed) -> None:
    lines = log_lines(deployed.log)
    ids = {one.instance_id: one.instance() for one in (deployed.split, deployed.same_node)}
    assert {line["app_instance_id"] for line in lines} == set(ids)
    for line in lines:
        instance = ids[line["app_instance_id"]]
        for name in ("org_id", "project_id", "app_slug", "correlation_id"):
            assert line[name] == instance[name], line


def test_no_secret_of_the_cluster_is_in_the_log_or_anywhere_in_the_api(deployed: Deployed) -> None:
    for one in (deployed.split, deployed.same_node):
        host = one.controller_host
        munge_key = one.on(host, "base64", "--wrap=0", "/etc/munge/munge.key")
        settings = one.on(host, "cat", "/etc/slurm/slurmdbd.conf")
        jwt_key = one.on(host, "base64", "--wrap=0", "/etc/slurm/jwt_hs256.key")
        password = next(
            line.partition("=")[2] for line in settings.splitlines() if line.lower().startswith("storagepass")
        )
        text = deployed.log + str([one.instance(), one.members(), one.operations(), one.events()])
        variables = one.variables
        for secret in (
            munge_key,
            jwt_key,
            password,
            variables["GPUAAS_CLIENT_SECRET"],
            variables["VAULT_SECRET_ID"],
            variables["GPUAAS_OPERATOR_TOKEN"],
            "PRIVATE KEY",
        ):
            assert len(secret) > 10
            assert secret not in text
