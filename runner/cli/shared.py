"""gpuaas-slurm shared: one cluster for several projects of a tenant.

The tenant's administrator uses GPUAAS_ORG_ID and an own token. What a project does by itself is in contributions.py.
"""

import sys
import uuid
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from runner.act import bundle
from runner.cli import access as cluster_access
from runner.cli import contributions, tables, view
from runner.cli.options import Form, Json, Output, chosen_form, given_id, read_pairs, split_list
from runner.cli.shared_records import ROOT_WARNING, Runtime, as_administrator, as_tenant, row
from runner.model.attached import AttachedProject
from runner.model.errors import Conflict, RequestError
from runner.model.times import stamp
from runner.slurm.attribution import UnreadableRows, attributed
from runner.slurm.charges import charges

shared = typer.Typer(
    help="One cluster for several projects: attach them, say who may submit where, contribute workers.",
    epilog="Administrator: GPUAAS_ORG_ID and your GPUAAS_OPERATOR_TOKEN. docs/tenant.md explains all of it.",
    no_args_is_help=True,
)
ATTACHMENTS = tables.Columns(("project", "status", "submits", "partitions", "limits", "users"), ("why",))
ELIGIBLE = tables.Columns(("project", "allocation", "name", "status", "sku", "gpus"), ("host",))
Project = Annotated[str, typer.Argument(help="The project's id, or the start of it once it is attached.")]


def _answer(runtime: Runtime, changed: AttachedProject, done: str, *, as_json: bool) -> None:
    """The record for a program; for a person what was asked for, and when it holds."""
    next_step = f"next: the runner of {runtime.record.id} carries it out; see gpuaas-slurm shared who"
    view.show_record(changed, f"project {changed.project_id} {done}", next_step, as_json=as_json)


def _print_charges(runtime: Runtime) -> None:
    for charge in charges(runtime.record, runtime.client.members(runtime.record.id)):
        view.err.print(charge.sentence)


@shared.command("deploy")
def deploy(
    owner: Annotated[str, typer.Option(help="Id of the project that owns the runtime and pays for its machines.")],
    controller: Annotated[str, typer.Option(help="Id of the controller's allocation, of the owner's project.")],
    access_credential: Annotated[str, typer.Option(help="Id of the ssh credential of these hosts.")],
    workers: Annotated[str, typer.Option(help="Ids of the tenant's own workers' allocations, comma separated.")] = "",
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
    slurm: Annotated[list[str] | None, typer.Option(help="A slurm.conf setting KEY=VALUE, repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Request the tenant's shared cluster. No user may submit until a project is attached and allowed."""
    first, *others = [given_id(one, "an allocation") for one in (controller, *split_list(workers))]
    body: dict[str, Any] = {
        "app_version": bundle.version(),
        "owner_project_id": given_id(owner, "a project"),
        "placement_intent": {
            "mode": "same_node" if first in others else "split",
            "controller_allocation_id": first,
            "worker_allocation_ids": others,
        },
        "config": {"slurm": read_pairs(slurm)} if slurm else {},
        "access_credential_id": given_id(access_credential, "an access credential"),
        **({"name": name} if name else {}),
    }
    view.err.print(f"project {owner} pays for 1 controller and {len(others)} reserved worker(s)")
    with as_tenant() as (client, loaded):
        try:
            made = client.create_instance({"app_slug": loaded.app_slug, **body}, key=uuid.uuid4().hex)
        except Conflict as refusal:
            if refusal.code != "shared_runtime_exists":
                raise
            raise RequestError(
                "the tenant has a shared cluster already, and a second one is refused: see gpuaas-slurm shared who"
            ) from None
    lines = (
        f"shared runtime {made.id} is {made.status}; correlation {made.correlation_id}",
        "next: create its operator identity on the platform, then run gpuaas-slurm run with GPUAAS_SHARED_RUNTIME_ID",
    )
    view.show_record(made, *lines, as_json=as_json)


@shared.command("who")
def who(as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Who may submit where, with which limits, and why not; and who pays for what."""
    form = chosen_form(output, as_json)
    with as_administrator() as runtime:
        found = runtime.attachments()
        paid = charges(runtime.record, runtime.client.members(runtime.record.id))
    rows = [row(one) for one in found]
    if form is Form.JSON:
        view.print_json(
            {
                "org_id": runtime.record.org_id,
                "shared_runtime_id": runtime.record.id,
                "status": runtime.record.status,
                "health": runtime.record.health,
                "projects": rows,
                "charges": [vars(one) for one in paid],
            }
        )
        return
    none = "no project is attached, so no user may submit. Attach one with gpuaas-slurm shared attach"
    view.show([tables.Section(ATTACHMENTS, rows, none)], wide=form is Form.WIDE)
    for charge in paid:
        view.out.print(charge.sentence)


@shared.command("attach")
def attach(
    project: Annotated[str, typer.Argument(help="The project's id.")],
    may_contribute: Annotated[bool, typer.Option("--may-contribute", help="It may contribute workers.")] = False,
    trusted: Annotated[
        bool, typer.Option("--trusted-contributor", help="Also hosts on which others can become root are taken.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Attach a project. Its users get accounts; none of them may submit until `shared allow`."""
    if trusted and not may_contribute:
        raise RequestError("--trusted-contributor goes with --may-contribute: pass both")
    if may_contribute:
        view.err.print(ROOT_WARNING.format(project))
    with as_administrator() as runtime:
        terms = {"app_policy": {}, "may_contribute": may_contribute, "trusted_contributor": trusted}
        made = runtime.attach(uuid.UUID(given_id(project, "a project")), terms)
        _print_charges(runtime)
        _answer(runtime, made, "is attached and may not submit yet: gpuaas-slurm shared allow", as_json=as_json)


@shared.command("allow")
def allow(
    project: Project,
    partition: Annotated[
        list[str] | None, typer.Option(help="main: the tenant's workers; own: those that it contributed. Repeatable.")
    ] = None,
    share_workers: Annotated[
        bool | None, typer.Option(help="Whether others that may use main may use the workers it contributed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a project's users submit. Without --partition it is main."""
    wanted = partition or ["main"]
    if unknown := sorted(set(wanted) - {"main", "own"}):
        raise RequestError(f"{unknown[0]!r} is not a partition of a policy: use main or own")
    changes: dict[str, Any] = {"submit": True, "partitions": sorted(set(wanted))}
    if share_workers is not None:
        changes["share_workers"] = share_workers
    _change_policy(project, changes, f"may submit to {', '.join(changes['partitions'])}", as_json=as_json)


@shared.command("deny")
def deny(project: Project, as_json: Json = False) -> None:
    """Take a project's permission to submit away; jobs that run go on. Its partitions and limits stay on record."""
    _change_policy(project, {"submit": False}, "may not submit any more", as_json=as_json)


@shared.command("limit")
def limit(
    project: Project,
    gpus: Annotated[
        int | None, typer.Option(min=-1, help="GPUs in use at once, of all its jobs; -1: no limit.")
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=-1, help="CPUs in use at once; -1: no limit.")] = None,
    jobs: Annotated[int | None, typer.Option(min=-1, help="Jobs that run at once; -1: no limit.")] = None,
    wall_minutes: Annotated[
        int | None, typer.Option(min=-1, help="The longest time limit of a job, in minutes; -1: no limit.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Limit what a project's users may use together. Limits that are not given stay."""
    given = {"gpus": gpus, "cpus": cpus, "jobs": jobs, "wall_minutes": wall_minutes}
    chosen = {name: value for name, value in given.items() if value is not None}
    if not chosen:
        raise RequestError("no limit is given: pass --gpus, --cpus, --jobs or --wall-minutes")
    _change_policy(project, {"limits": chosen}, "has other limits", as_json=as_json)


def _change_policy(project: str, changes: dict[str, Any], done: str, *, as_json: bool) -> None:
    """The platform replaces a policy whole, so what is not changed is sent again. A limit of -1 is taken away."""
    with as_administrator() as runtime:
        attachment = runtime.attachment(project)
        limits = {**(attachment.app_policy.get("limits") or {}), **changes.pop("limits", {})}
        limits = {name: value for name, value in limits.items() if value != -1}
        policy = {**attachment.app_policy, **changes, **({"limits": limits} if limits else {})}
        if not limits:
            policy.pop("limits", None)
        _answer(runtime, runtime.change(attachment, {"app_policy": policy}), done, as_json=as_json)


@shared.command("suspend")
def suspend(project: Project, as_json: Json = False) -> None:
    """Refuse a project's new jobs. Jobs that run go on; pending ones do not start."""
    _change_status(project, "suspended", "is suspended", as_json=as_json)


@shared.command("resume")
def resume(project: Project, as_json: Json = False) -> None:
    """Give a suspended project what its policy says again."""
    _change_status(project, "requested", "is to be active again", as_json=as_json)


@shared.command("detach")
def detach(
    project: Project,
    cancel_jobs: Annotated[bool, typer.Option("--cancel-jobs", help="Cancel its jobs instead of waiting.")] = False,
    deadline: Annotated[
        int | None, typer.Option(min=0, help="Seconds to wait for its jobs before they are cancelled.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a project leave: no new job, its account is closed, the history of its jobs stays."""
    if cancel_jobs and deadline is not None:
        raise RequestError("--cancel-jobs waits for no job: leave --deadline out")
    with as_administrator() as runtime:
        attachment = runtime.attachment(project)
        body: dict[str, Any] = {"status": "detaching"}
        how = "as soon as its jobs have ended"
        if cancel_jobs:
            body["app_policy"] = {**attachment.app_policy, "detach_jobs": "cancel"}
            how = "its jobs are cancelled"
        if deadline is not None:
            ends = stamp(datetime.now(UTC) + timedelta(seconds=deadline))
            body["detach_parameters"] = {"cancel_jobs_at": ends}
            how = f"its jobs are cancelled at {ends}"
        _answer(runtime, runtime.change(attachment, body), f"leaves: {how}", as_json=as_json)


def _change_status(project: str, status: str, done: str, *, as_json: bool) -> None:
    with as_administrator() as runtime:
        changed = runtime.change(runtime.attachment(project), {"status": status})
        _answer(runtime, changed, done, as_json=as_json)


@shared.command("allocations")
def allocations(as_json: Json = False, output: Output = Form.TABLE) -> None:
    """Allocations that may be added or contributed now, by project."""
    form = chosen_form(output, as_json)
    with as_administrator() as runtime:
        found = sorted(runtime.eligible(), key=lambda one: (str(one.project_id), str(one.id)))
    if form is Form.JSON:
        view.print_json([one.model_dump(mode="json") for one in found])
        return
    rows = [{"project": one.project_id, **view.allocation_row(one, {})} for one in found]
    none = "no allocation may be added: a project's count only with shared attach --may-contribute"
    view.show([tables.Section(ELIGIBLE, rows, none)], wide=form is Form.WIDE)


@shared.command("access")
def access(project: Project, as_json: Json = False) -> None:
    """How the users of one project reach and use the cluster."""
    with as_administrator() as runtime:
        found = runtime.attachment(project)
    if not found.access:
        raise RequestError(
            f"project {found.project_id} is {found.status} and has no access bundle: it is written once the project may"
            " submit. See gpuaas-slurm shared who"
        )
    if as_json:
        view.print_json(found.access)
    else:
        view.out.print("\n".join(cluster_access.project_lines(found.access)), markup=False, soft_wrap=True)


@shared.command("jobs")
def jobs() -> None:
    """Say which project and identity each job belongs to, as JSON. It reads the output of sacct on stdin:

    sacct --allusers --allocations --parsable2 --format=JobID,Account,User,State,JobName | gpuaas-slurm shared jobs
    """
    with as_administrator() as runtime:
        listed = runtime.attachments()
    try:
        view.print_json(list(attributed(sys.stdin.read(), listed)))
    except UnreadableRows as error:
        raise RequestError(
            f"stdin is not the output of sacct: {error}. Run sacct with --parsable2 and at least"
            " --format=JobID,Account,User on the controller"
        ) from None


contributions.add_to(shared)
