"""Several projects on one cluster: who may submit where, who sees what, and that nothing done by hand opens it.

A scenario in order. Its projects come from attachments by the code that decides for the runner, and go to the hosts by
its play. Every attempt is made as a user of a project, never as root, to whom Slurm denies nothing.
Over 300 lines, because each part goes on from the cluster that the one before it left.
"""

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runner.model.attached import AttachedProject
from runner.model.attachments import Attachment
from runner.slurm.attribution import attributed
from runner.slurm.tenant.accounting_state import parse_remembered
from runner.slurm.tenant.desired import Desired, account_name, desired, partitions
from runner.slurm.tenant.identities import derived, digest_of
from sandbox.fleet.images import SUITES
from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, until
from tests.platform_process import ROOT
from tests.runner_process import COMMAND

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("shared")]

ORG = UUID("0a000000-0000-4000-8000-000000000000")
PROJECTS = {letter: UUID(f"{letter.lower() * 8}-0000-4000-8000-000000000000") for letter in "ABC"}
ACCOUNT = {letter: account_name(one) for letter, one in PROJECTS.items()}
# Of each project the user who tries, and another who is in it at the start.
USER = {"A": "ann", "B": "bob", "C": "cat"}
NAMELESS = derived(digest_of("idp|nameless"))
TO_MAIN = {"submit": True, "partitions": ["main"]}
TO_OWN = {"submit": True, "partitions": ["own"]}
START = "gs-1"
FEATURE = "{{ '" + ACCOUNT["B"] + "' if probed_host.hostname == 'gs-3' else 'worker' }}"
SLEEP = "sleep 3000"


@dataclass
class Shared:
    cluster: Cluster
    directory: Path
    statuses: dict[str, str] = field(default_factory=lambda: dict.fromkeys("ABC", "active"))
    policies: dict[str, dict[str, Any]] = field(default_factory=lambda: {"A": TO_MAIN, "B": TO_OWN, "C": {}})
    members: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {
            "A": [{"subject": "idp|ann", "username": "ann"}, {"subject": "idp|dan", "username": "dan"}],
            "B": [{"subject": "idp|bob", "username": "bob"}, {"subject": "idp|nameless"}],
            "C": [{"subject": "idp|cat", "username": "cat"}],
        }
    )
    details: dict[str, dict[str, Any]] = field(default_factory=lambda: {letter: {} for letter in "ABC"})
    # Of other projects than the three.
    more: list[Attachment] = field(default_factory=list)

    # -- what the runner does ----------------------------------------------------------------------------------------

    def play(self, playbook: str, **variables: Any) -> str:
        file = self.directory / "variables.json"
        file.write_text(json.dumps(variables))
        play = ("ansible-playbook", "-v", "-i", "gpuaas.yml", f"playbooks/{playbook}.yml", "-e", f"@{file}")
        done = by_hand(self.cluster, COMMAND, *EXEC, "--instance", self.cluster.instance_id, "--", *play)
        return ends(done, 0).stdout

    def desired(self) -> Desired:
        """As the runner decides it, with the notes on the attachments and what Slurm remembers."""
        return desired(
            self.on("sacctmgr -nP show cluster format=cluster"),
            ORG,
            [*self.attachments(), *self.more],
            contributors=[PROJECTS["B"]],
            in_slurm=parse_remembered(self.on("sacctmgr -nP show qos format=name,description")),
        )

    def follow(self) -> str:
        """Attachments as they are now, carried out. Daemons keep running."""
        before = [self.cluster.process(START, unit) for unit in ("slurmctld", "slurmdbd")]
        wanted = self.desired()
        assert [(one.code, one.message) for one in wanted.kept_out] == []
        for letter, project in PROJECTS.items():
            self.details[letter] |= wanted.notes[project].changes
        output = self.play(
            "follow_attachments",
            slurm_projects=wanted.wanted.plain(),
            slurm_projects_cancelled=list(wanted.cancelled),
            **wanted.host_users(),
        )
        assert [self.cluster.process(START, unit) for unit in ("slurmctld", "slurmdbd")] == before
        return output

    def attachments(self) -> list[AttachedProject]:
        return [
            AttachedProject(
                id=project,
                project_id=project,
                status=self.statuses[letter],
                app_policy=self.policies[letter],
                identities=self.members[letter],
                adapter_detail=self.details[letter],
            )
            for letter, project in PROJECTS.items()
        ]

    # -- what people do ----------------------------------------------------------------------------------------------

    def on(self, command: str) -> str:
        """As root on the controller: to look and to prepare, never to try."""
        return self.cluster.on(START, "sh", "-c", command)

    def try_as(self, user: str, command: str) -> tuple[bool, str]:
        done = self.cluster.fleet.exec(START, ["runuser", "-l", user, "-c", f"cd /tmp && {command}"])
        return done.returncode == 0, done.stdout + done.stderr

    def submit(self, user: str, *options: str, wrap: str = SLEEP) -> str:
        line = shlex.join(["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={wrap}"])
        accepted, output = self.try_as(user, line)
        assert accepted, output
        return output.strip().splitlines()[-1]

    def state(self, job: str) -> str:
        return self.on(f"squeue --noheader --format=%T --jobs={job} 2>/dev/null || true")

    def awaits(self, job: str, state: str) -> None:
        until(lambda: self.state(job) == state, 90, f"job {job} is {state}")

    def attributed(self, job: str) -> list[dict[str, Any]]:
        """The job in Slurm's records, with its project and identity as `gpuaas-slurm shared jobs` finds them."""
        rows = self.on(f"sacct --allusers --allocations --parsable2 --jobs={job} --format=JobID,Account,User,State")
        return list(attributed(rows, self.attachments()))

    def running_jobs(self) -> dict[str, str]:
        """One of A and one of B, which are there for others to look at."""
        found = {}
        for letter, options in {"A": (), "B": ("-p", ACCOUNT["B"])}.items():
            listed = self.on(
                f"squeue --noheader --format=%i --states=RUNNING --user={USER[letter]} --name=shown"
            ).split()
            found[letter] = listed[0] if listed else self.submit(USER[letter], "--job-name=shown", *options)
        for job in found.values():
            self.awaits(job, "RUNNING")
        return found

    # -- the table ---------------------------------------------------------------------------------------------------

    def differs(self, closed: str = "", jobs: dict[str, str] | None = None) -> dict[str, tuple[list[str], list[str]]]:
        """Lines of the documented table that came out differently: what came of them, and what is documented.

        The `closed` project may submit nowhere for now. `jobs` are the jobs to look at; without one of both A and B the
        lines about a job of another are left out.
        """
        jobs = self.running_jobs() if jobs is None else jobs
        found: dict[str, list[str]] = {}
        for all_commands, outcome in ((ATTEMPTS, _attempted), (READS, _read)):
            commands = {name: one for name, one in all_commands.items() if "{job}" not in one or len(jobs) == 2}
            answers = {letter: self._all(letter, commands, jobs) for letter in "ABC"}
            for name in commands:
                found[name] = [outcome(letter, *answers[letter][name]) for letter in "ABC"]
        self.on("scancel --name=tried; true")
        listed = documented()
        at = "ABC".index(closed or "A")
        for name, outcomes in listed.items() if closed else ():
            if outcomes[at] == "accepted":
                outcomes[at] = "refused"
            elif found.get(name, outcomes)[at] == "own":
                outcomes[at] = "own"  # 24.11 shows less to a user without an association
        return {name: (found[name], listed[name]) for name in found if found[name] != listed[name]}

    def _all(self, letter: str, commands: dict[str, str], jobs: dict[str, str]) -> dict[str, tuple[bool, str]]:
        """Every command in one session of the user, each with its own exit code and output."""
        lines = [self._command(letter, command, jobs) for command in commands.values()]
        script = "".join(f'( {line} ) 2>&1\necho "@@$?@@"\n' for line in lines)
        done = self.cluster.fleet.exec(START, ["runuser", "-l", USER[letter], "-c", f"cd /tmp\n{script}"])
        parts = re.split(r"@@(\d+)@@\n", done.stdout)
        assert len(parts) == 2 * len(commands) + 1, done.stdout + done.stderr
        return {name: (parts[2 * at + 1] == "0", parts[2 * at]) for at, name in enumerate(commands)}

    def _command(self, letter: str, command: str, jobs: dict[str, str]) -> str:
        other = "B" if letter == "A" else "A"
        return command.format(own=ACCOUNT[letter], other=ACCOUNT[other], b=ACCOUNT["B"], job=jobs.get(other))


def _attempted(_letter: str, accepted: bool, output: str) -> str:
    assert accepted or re.search(r"rror|nvalid|denied|privilege|Nothing modified", output), (
        f"refused without a sentence: {output}"
    )
    return "accepted" if accepted else "refused"


def _read(letter: str, _accepted: bool, output: str) -> str:
    others = [name for one in "ABC" if one != letter for name in (USER[one], ACCOUNT[one])]
    shown = [name for name in others if re.search(rf"(?<![A-Za-z0-9_]){name}(?![A-Za-z0-9_])", output)]
    return "others" if shown else "own"


SBATCH = "sbatch --job-name=tried --output=/dev/null"
ATTEMPTS = {
    "`sbatch`": f"{SBATCH} --wrap=true",
    "`srun`": "srun --job-name=tried --immediate=60 true",
    "`salloc`": "salloc --job-name=tried --immediate=60 true",
    "`sbatch --array`": f"{SBATCH} --array=1-2 --wrap=true",
    "`sbatch` to the workers of B": f"{SBATCH} -p {{b}} --wrap=true",
    "`sbatch --account` of another": f"{SBATCH} --account={{other}} --wrap=true",
    "`sbatch --account` of another to the workers of B": f"{SBATCH} --account={{other}} -p {{b}} --wrap=true",
    "`sbatch --qos` of another": f"{SBATCH} --qos={{other}} --wrap=true",
    "`sbatch --qos=normal`": f"{SBATCH} --qos=normal --wrap=true",
    "`scancel` of another's job": 'said=$(scancel {job} 2>&1); echo $said; test -z "$said"',
    "`scontrol update` of another's job": "scontrol update JobId={job} TimeLimit=1",
    "`scontrol hold` of another's job": "scontrol hold {job}",
    "`scontrol update` of a partition": "scontrol update PartitionName=main AllowAccounts=ALL",
    "`sacctmgr modify` of its own account": "sacctmgr -i modify account {own} set GrpSubmitJobs=-1",
}
READS = {
    "`squeue`": "squeue --all --format='%i %u %a %q'",
    "`scontrol show job`": "scontrol show job",
    "`scontrol show job` of another": "scontrol show job {job}",
    "`scontrol show step`": "scontrol show step",
    "`scontrol show assoc_mgr flags=assoc,users`": "scontrol show assoc_mgr flags=assoc,users",
    "`scontrol show assoc_mgr flags=qos`": "scontrol show assoc_mgr flags=qos",
    "`sacct`": "sacct --allusers --starttime=2020-01-01 --format=JobID,User%40,Account%40,QOS%40",
    "`sacctmgr show association`": "sacctmgr -nP show association",
    "`sacctmgr show user`": "sacctmgr -nP show user withassoc",
    "`sacctmgr show account`": "sacctmgr -nP show account withassoc",
    "`sreport`": "sreport -nP cluster AccountUtilizationByUser start=2020-01-01; sreport -nP user top start=2020-01-01;"
    " sreport -nP job sizesbyaccount start=2020-01-01",
    "`sshare`": "sshare --all --parsable",
    "`sprio`": "sprio --long",
    "`sstat` of another's job": "sstat --allsteps --parsable --jobs={job}",
    "`sinfo`": "sinfo --Node --format='%N %T'",
    "`scontrol show partition`": "scontrol show partition",
    "`sacctmgr show qos`": "sacctmgr -nP show qos",
    "`sacctmgr show transactions`": "sacctmgr -nP show transactions",
    "`sdiag`": "sdiag",
    "`getent passwd`": "getent passwd",
}


def documented() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "tenant.md").read_text().partition("<!-- table -->")[2]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.strip().splitlines()
        if line.startswith("|")
    ]
    first = rows.index(["tried by a user of", "A", "B", "C"])
    found = {row[0]: row[1:] for row in rows[first + 2 :] if len(row) == 4 and {*row[1:]} <= {*OUTCOMES}}
    assert len(found) == len(ATTEMPTS) + len(READS)
    return found


OUTCOMES = ("accepted", "refused", "own", "others")


@pytest.fixture(scope="module", params=SUITES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """gs-1 with gs-2, which is the tenant's, and gs-3, which project B contributed."""
    with fleet_named(f"e2e-shared-{request.param}") as fleet:
        fleet.up(hosts=3, suite=request.param, warm=True)
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3")
        ends(cluster.run(), 0)
        found = Shared(cluster, tmp_path_factory.mktemp("shared"))
        found.play(
            "deploy", slurm_shared=True, slurmctld_partitions=partitions([PROJECTS["B"]]), slurmd_feature=FEATURE
        )
        # A node keeps the feature with which it was made, whatever its slurmd registers with later.
        cluster.on("gs-3", "systemctl", "stop", "slurmd")
        cluster.on(START, "scontrol", "delete", "NodeName=gs-3")
        cluster.on("gs-3", "systemctl", "start", "slurmd")
        until(
            lambda: (
                found.on("sinfo --noheader --Node --format='%P %N'").split() == ["main*", "gs-2", ACCOUNT["B"], "gs-3"]
            ),
            90,
            "gs-3 is in the partition of project B",
        )
        yield found


def test_before_any_attachment_no_project_is_admitted_anywhere(shared: Shared) -> None:
    listed = set(re.findall(r"AllowAccounts=(\S+)", shared.on("scontrol show partitions")))
    assert listed == {"gpuaas_closed"}


def test_users_of_three_projects_do_and_see_what_the_table_says(shared: Shared) -> None:
    shared.follow()
    assert shared.differs() == {}


def test_a_user_without_a_readable_name_has_the_derived_one_on_every_host(shared: Shared) -> None:
    for host in ("gs-1", "gs-2", "gs-3"):
        assert shared.cluster.on(host, "id", "-u", NAMELESS.name) == str(NAMELESS.uid)
    job = shared.submit(NAMELESS.name, "-p", ACCOUNT["B"], wrap="true")
    until(lambda: "COMPLETED" in shared.on(f"sacct -X -n -P -j {job} -o state"), 60, "the job of a derived user")


def test_a_second_pass_changes_nothing(shared: Shared) -> None:
    output = shared.follow()
    assert re.search(r"gs-1|controller", output) and not re.search(r"changed=[1-9]", output), output


def test_right_after_a_restart_without_a_runner_the_table_is_the_same(shared: Shared) -> None:
    shared.running_jobs()
    shared.cluster.on(START, "systemctl", "restart", "slurmctld")
    accepted, output = shared.try_as("ann", ATTEMPTS["`sbatch`"])
    assert accepted, output
    refused = {user: shared.try_as(user, ATTEMPTS["`sbatch`"])[0] for user in ("bob", "cat")}
    assert refused == {"bob": False, "cat": False}
    assert shared.differs() == {}


def test_a_killed_slurmctld_comes_back_with_its_lists(shared: Shared) -> None:
    before = shared.on("scontrol -o show partitions | grep -o 'AllowAccounts=[^ ]*'")
    shared.cluster.on(START, "systemctl", "kill", "--signal=KILL", "slurmctld")
    until(
        lambda: shared.on("scontrol -o show partitions 2>&1 | grep -o 'AllowAccounts=[^ ]*' || true") == before,
        60,
        "the lists are back",
    )


def test_a_listed_account_that_is_deleted_by_hand_opens_nothing(shared: Shared) -> None:
    shared.on("scancel --user=ann; scancel --user=dan; true")
    until(lambda: shared.on("squeue -h -A " + ACCOUNT["A"]) == "", 60, "A has no job")
    shared.on(f"sacctmgr -i delete user name=ann,dan; sacctmgr -i delete account name={ACCOUNT['A']}")
    assert ACCOUNT["A"] not in shared.on("sacctmgr -nP show association format=account")
    tried = {user: shared.try_as(user, ATTEMPTS["`sbatch`"])[0] for user in USER.values()}
    assert tried == dict.fromkeys(USER.values(), False)
    shared.cluster.on(START, "systemctl", "restart", "slurmctld")
    assert shared.differs(closed="A", jobs={}) == {}
    shared.follow()
    assert shared.differs() == {}


def test_after_the_last_project_is_withdrawn_a_partition_admits_none(shared: Shared) -> None:
    jobs = shared.running_jobs()
    shared.policies["B"] = TO_MAIN | {"partitions": []}
    shared.follow()
    own = ATTEMPTS["`sbatch` to the workers of B"].format(b=ACCOUNT["B"])
    assert {user: shared.try_as(user, own)[0] for user in USER.values()} == dict.fromkeys(USER.values(), False)
    shared.cluster.on(START, "systemctl", "restart", "slurmctld")
    assert shared.differs(closed="B", jobs=jobs) == {}
    assert [shared.state(job) for job in jobs.values()] == ["RUNNING", "RUNNING"]
    shared.policies["B"] = TO_OWN
    shared.follow()
    assert shared.try_as("bob", own)[0]


def test_a_suspended_project_starts_nothing_new_and_loses_nothing(shared: Shared) -> None:
    jobs = shared.running_jobs()
    waiting = shared.submit("ann", "--nodes=1", "--exclusive")
    until(lambda: shared.state(waiting) == "PENDING", 30, "a job that waits")
    shared.statuses["A"] = "suspended"
    shared.follow()
    accepted, output = shared.try_as("ann", ATTEMPTS["`sbatch`"])
    assert not accepted, output
    assert shared.try_as("bob", ATTEMPTS["`sbatch` to the workers of B"].format(b=ACCOUNT["B"]))[0]
    assert [shared.state(job) for job in jobs.values()] == ["RUNNING", "RUNNING"]
    shared.on(f"scancel --state=RUNNING --account={ACCOUNT['A']}")
    until(
        lambda: (
            shared.on("squeue --noheader --states=all --nodelist=gs-2 --format=%T | grep -c RUNNING || true") == "0"
        ),
        60,
        "gs-2 is free",
    )
    assert shared.state(waiting) == "PENDING"
    history = shared.try_as("ann", "sacct -X -n -P -o jobid")[1].split()
    assert jobs["A"] in history
    shared.statuses["A"] = "active"
    shared.follow()
    shared.awaits(waiting, "RUNNING")
    shared.on(f"scancel {waiting}")


def test_what_a_person_opened_by_hand_is_closed_and_reported_and_its_job_goes_on(shared: Shared) -> None:
    a = ACCOUNT["A"]
    shared.on(f"sacctmgr -i add user cat account={a}; sacctmgr -i add account lab parent={a}")
    shared.on("sacctmgr -i add user cat account=lab; sacctmgr -i add coordinator account=" + a + " name=ann")
    shared.on("sacctmgr -i add account physics; sacctmgr -i add user bob account=physics")
    shared.on("scontrol update PartitionName=main AllowAccounts=ALL")
    job = shared.submit("cat", "--account=" + a)
    shared.awaits(job, "RUNNING")
    output = shared.follow()
    assert "account lab was below" in output and "was coordinator" in output and "account physics with 1 user" in output
    for account in (a, "lab", "physics"):
        for partition in ("main", ACCOUNT["B"]):
            for user in ("cat", "bob"):
                command = f"{SBATCH} --account={account} -p {partition} --wrap=true"
                assert not shared.try_as(user, command)[0], (user, command)
    assert shared.state(job) == "RUNNING"
    assert shared.on("sacctmgr -nP show account physics format=account") == "physics"
    shared.on(f"scancel {job}")
    until(lambda: shared.state(job) == "", 60, "the job is over")
    shared.follow()
    assert shared.on(f"sacctmgr -nP show association account={a} user=cat format=user") == ""
    shared.on("sacctmgr -i delete user cat account=lab; sacctmgr -i delete account name=lab")
    shared.on("sacctmgr -i delete user bob account=physics; sacctmgr -i delete account name=physics")


def test_a_removed_identity_sees_none_of_the_projects_jobs(shared: Shared) -> None:
    own = shared.submit("dan")
    shared.awaits(own, "RUNNING")
    shown = shared.running_jobs()["A"]
    assert shown in shared.try_as("dan", "squeue --noheader --format=%i")[1]
    shared.members["A"] = shared.members["A"][:1]
    shared.follow()
    assert shared.state(own) == "RUNNING"
    assert not shared.try_as("dan", ATTEMPTS["`sbatch`"])[0]
    shared.on(f"scancel {own}")
    until(lambda: shared.state(own) == "", 60, "the last job is over")
    shared.follow()
    assert shared.try_as("dan", "squeue --noheader --all --format=%i")[1].strip() == ""
    assert shared.try_as("dan", f"scontrol show job {shown}")[0] is False


def test_a_removed_identity_keeps_its_name_though_all_notes_are_lost(shared: Shared) -> None:
    """Slurm remembers it, and rebuilds the users of the others."""
    before, details, members = shared.desired(), shared.details, shared.members["C"]
    shared.details = {letter: {} for letter in "ABC"}
    shared.members["C"] = [*members, {"subject": "idp|eve", "username": "dan"}]
    found = shared.desired()
    assert [(one.attachment_id, one.code) for one in found.kept_out] == [(PROJECTS["C"], "identity_conflict")]
    assert found.people == before.people
    shared.details, shared.members["C"] = details, members


def test_a_renamed_identity_keeps_its_user_and_its_jobs(shared: Shared) -> None:
    job = shared.running_jobs()["A"]
    shared.members["A"] = [{"subject": "idp|ann", "username": "anna"}]
    assert not re.search(r"changed=[1-9]", shared.follow())
    assert shared.state(job) == "RUNNING"
    (row,) = shared.attributed(job)
    assert (row["User"], row["subject"], row["project_id"]) == ("ann", "idp|ann", str(PROJECTS["A"]))


def test_limits_of_a_policy_refuse_a_job_that_is_too_large(shared: Shared) -> None:
    shared.on("scancel --user=ann; true")
    shared.policies["A"] = TO_MAIN | {"limits": {"cpus": 1, "jobs": 1, "wall_minutes": 90}}
    shared.follow()
    for option in ("--ntasks=2", "--time=91"):
        fails_with = shared.try_as("ann", f"{SBATCH} {option} --wrap=true")
        assert not fails_with[0] and "Limit" in fails_with[1]
    first, second = shared.submit("ann"), shared.submit("ann")
    shared.awaits(first, "RUNNING")
    assert shared.state(second) == "PENDING"
    shared.on(f"scancel {first} {second}")
    shared.policies["A"] = TO_MAIN
    shared.follow()


def test_a_detach_that_waits_ends_with_the_last_job_and_starts_none(shared: Shared) -> None:
    jobs = shared.running_jobs()
    waiting = shared.submit("bob", "-p", ACCOUNT["B"], "--nodes=1", "--exclusive")
    shared.statuses["B"] = "detaching"
    shared.follow()
    assert not shared.try_as("bob", ATTEMPTS["`sbatch` to the workers of B"].format(b=ACCOUNT["B"]))[0]
    assert shared.try_as("ann", ATTEMPTS["`sbatch`"])[0]
    assert shared.try_as("bob", f"scancel {jobs['B']}")[0]
    until(lambda: shared.state(jobs["B"]) == "", 60, "the job of B is over")
    assert (shared.state(waiting), shared.state(jobs["A"])) == ("PENDING", "RUNNING")
    shared.statuses["B"] = "detached"
    shared.follow()
    assert (shared.state(waiting), shared.state(jobs["A"])) == ("", "RUNNING")
    assert shared.on(f"sacctmgr -nP show association account={ACCOUNT['B']} format=user") == ""
    (row,) = shared.attributed(jobs["B"])
    assert (row["subject"], row["project_id"]) == ("idp|bob", str(PROJECTS["B"]))
    shared.statuses["B"] = "active"
    shared.follow()
    assert shared.try_as("bob", ATTEMPTS["`sbatch` to the workers of B"].format(b=ACCOUNT["B"]))[0]


def test_a_detach_that_cancels_ends_the_jobs_and_keeps_the_history(shared: Shared) -> None:
    jobs = shared.running_jobs()
    shared.policies["A"] = TO_MAIN | {"detach_jobs": "cancel"}
    shared.statuses["A"] = "detaching"
    shared.follow()
    until(lambda: shared.state(jobs["A"]) == "", 60, "the job of A is over")
    assert shared.state(jobs["B"]) == "RUNNING"
    shared.statuses["A"] = "detached"
    shared.follow()
    listed = shared.on(f"sacctmgr -nP show association account={ACCOUNT['A']} format=account,user,grpsubmitjobs")
    assert listed == f"{ACCOUNT['A']}||0"
    rows = shared.on(f"sacct -X -n -P -A {ACCOUNT['A']} -S 2020-01-01 -o jobid,user,state").splitlines()
    assert any(row.startswith(f"{jobs['A']}|ann|CANCELLED") for row in rows), rows
    (row,) = shared.attributed(jobs["A"])
    assert (row["subject"], row["project_id"]) == ("idp|ann", str(PROJECTS["A"]))
    assert not shared.try_as("ann", ATTEMPTS["`sbatch`"])[0]


def test_500_identities_of_50_projects_are_followed_in_one_pass(shared: Shared, record_property: Any) -> None:
    """One of the projects is large, so that what Slurm remembers of it is a long line of sacctmgr's input."""
    shared.more = [
        Attachment(
            id=UUID(int=number << 80),
            project_id=UUID(int=number << 80),
            status="active",
            app_policy=TO_MAIN,
            identities=[
                {"subject": f"idp|{number}-{one}", "username": f"n{number}u{one}"}
                for one in range(206 if number == 50 else 6)
            ],
            adapter_detail={},
        )
        for number in range(1, 51)
    ]
    for expected in ("all is made", "nothing is left to do"):
        begun = time.monotonic()
        output = shared.follow()
        record_property(expected, round(time.monotonic() - begun, 1))
    assert not re.search(r"changed=[1-9]", output)
    accepted, output = shared.try_as("n50u9", ATTEMPTS["`sbatch`"])
    assert accepted, output
    assert not shared.try_as("n50u9", f"{SBATCH} --account={account_name(UUID(int=49 << 80))} --wrap=true")[0]
