"""The steps of `gpuaas-slurm smoke`, as a table in their order.

With one allocation, or on request, the controller's host is a worker too. Each step waits until the records show what
it is for, not only until its operation has ended.
"""

from dataclasses import replace

from runner.model.platform import Health, InstanceStatus, MemberStatus
from runner.slurm.components import CONTROLLER, WORKER
from runner.smoke.plan import Ask, At, Chapter, Deploy, Look, State, Step, Wait

CONTRACT = Chapter("contract", "the API alone: identities, records, one operation; no host is touched", always=True)
ADAPTER = Chapter("adapter", "the controller is brought up, then the first worker", always=True)
QUESTIONS = Chapter("questions", "what the API says of a success, and of a failure that is caused on purpose")
WORKERS = Chapter("workers", "drain, resume, remove, add again, replace, and several at once")
LIFECYCLE = Chapter("lifecycle", "stop, start and restart of the whole cluster")
SERVICE = Chapter("service", "the access bundle, and health")
PACKAGES = Chapter("packages", "upgrade to the newest packages that fit, and rollback", default=False)
PILOT = Chapter("pilot", "the app in the catalog, and a cluster moved between its versions", default=False)
DECOMMISSION = Chapter("decommission", "the cluster is taken down, and its hosts are left as found", always=True)
CHAPTERS = (CONTRACT, ADAPTER, QUESTIONS, WORKERS, LIFECYCLE, SERVICE, PACKAGES, PILOT, DECOMMISSION)

ACCESS = ("cluster_name", "controller", "ssh", "submit", "commands", "health", "logs", "paths")
WHY = {"reason": "smoke run"}


def steps(allocations: int, *, same_node: bool) -> tuple[Step, ...]:
    """The steps for that many allocations: the first is the controller's, the next are workers'."""
    one_host = same_node or allocations == 1
    own, spare = (0, 1) if one_host else (1, 2)
    controller, worker, new = At(CONTROLLER, 0), At(WORKER, own), At(WORKER, spare)
    bulk = tuple(range(spare + 1, max(allocations, spare + 2)))
    serving = State(instance=InstanceStatus.RUNNING, health=Health.HEALTHY)
    ready = State(worker, MemberStatus.READY)
    deploy = Deploy(0, (0,) if one_host else ())
    first = Ask("add", WORKER, places=(own,), seeded=one_host, then=ready)
    in_vain = Ask("add", WORKER, places=(own,), nowhere=True, follows=False)
    failure = Wait(State(), after="operation", ends="failed")
    decommission = Ask("decommission", then=State(instance=InstanceStatus.DELETED))
    return (
        Step("identities", CONTRACT, "the platform accepts the operator's and the runner's tokens", Look("identities")),
        Step("allocations", CONTRACT, "the allocations are active, reachable by name and free", Look("allocations")),
        Step("publish", PILOT, "the catalog has this version, and the same again changes nothing", Look("publish")),
        Step("entitlement", PILOT, "the project may use the app", Look("entitlement")),
        Step("deploy", CONTRACT, "an instance is requested, and both identities read it", deploy),
        Step("records", CONTRACT, "the members and events of the instance can be read", Look("records")),
        Step("operation", CONTRACT, "an add that cannot work is requested, and its status can be read", in_vain),
        Step("controller", ADAPTER, "the controller is ready", Wait(State(controller, MemberStatus.READY))),
        Step("worker", ADAPTER, "then the first worker joins", first),
        Step("healthy", ADAPTER, "the instance is running and healthy", Wait(serving)),
        Step("success", QUESTIONS, "the five questions about the worker's add", _explain("worker"), blocks=False),
        Step("failure", QUESTIONS, "the add that cannot work has failed, and touched nothing", failure),
        Step("reason", QUESTIONS, "the five questions about that failure", _explain("operation"), blocks=False),
        Step("drain", WORKERS, "the worker is drained", _of(worker, "drain", MemberStatus.DRAINING, WHY)),
        Step("resume", WORKERS, "the worker serves again", _of(worker, "resume", MemberStatus.READY)),
        Step("remove", WORKERS, "the worker is removed", _of(worker, "remove", MemberStatus.DELETED, WHY)),
        Step("re-add", WORKERS, "the same allocation joins again", Ask("add", WORKER, places=(own,), then=ready)),
        Step(
            "replace",
            WORKERS,
            "another allocation takes the worker's place",
            Ask("replace", WORKER, worker, (spare,), parameters=WHY, then=State(new, MemberStatus.READY)),
            needs=spare + 1,
        ),
        Step(
            "bulk-add",
            WORKERS,
            "the remaining allocations join in one operation",
            Ask("add", WORKER, places=bulk, then=State(At(WORKER, bulk[-1]), MemberStatus.READY)),
            needs=spare + 2,
        ),
        Step("stop", LIFECYCLE, "the cluster is stopped", Ask("stop", then=State(instance=InstanceStatus.STOPPED))),
        Step("start", LIFECYCLE, "the cluster serves again", Ask("start", then=serving)),
        Step("restart", LIFECYCLE, "the cluster serves after a restart", Ask("restart", then=serving)),
        Step("access", SERVICE, "the access bundle is complete", Look("access", fields=ACCESS), blocks=False),
        Step("health", SERVICE, "the instance is healthy", Wait(serving), blocks=False),
        Step("upgrade", PACKAGES, "the packages are the newest that fit", Ask("upgrade", then=serving)),
        Step("rollback", PACKAGES, "the packages from before are back", Ask("rollback", then=serving)),
        Step("move", PILOT, "another version of the app is requested", Look("move", of_instance=True)),
        Step("moved", PILOT, "the cluster serves with it", Wait(replace(serving, configured=True))),
        Step("move-back", PILOT, "the former version is requested", Look("move_back", of_instance=True)),
        Step("moved-back", PILOT, "the cluster serves with it", Wait(replace(serving, configured=True))),
        Step("decommission", DECOMMISSION, "the instance is deleted", decommission, last=True),
    )


def _explain(step: str) -> Look:
    return Look("questions", about=step, again=True)


def _of(worker: At, verb: str, status: MemberStatus, parameters: dict[str, str] | None = None) -> Ask:
    return Ask(verb, WORKER, worker, parameters=parameters or {}, then=State(worker, status))
