"""gpuaas-slurm access: prints the access bundle of an instance."""

from typing import Any

from runner.cli import view
from runner.cli.commands import as_reader
from runner.cli.options import Json, Target
from runner.model.errors import RequestError
from runner.model.plan import Detail
from runner.observe.find import find_instance


def access(target: Target, as_json: Json = False) -> None:
    """How to reach and use a cluster: hosts, ssh with the host's key, commands with their real output, paths, logs."""
    with as_reader() as (client, loaded):
        instance = find_instance(client, loaded, target)
    if not instance.access:
        raise RequestError(
            f"instance {instance.id} is {instance.status} and has no access bundle yet."
            " It is written when the cluster runs: see gpuaas-slurm status"
        )
    if as_json:
        view.print_json(instance.access)
    else:
        # Not as a table: it would fold lines that are meant to be pasted.
        shown = project_lines if instance.is_consumer else lines
        view.out.print("\n".join(shown(instance.access)), markup=False, soft_wrap=True)


def lines(bundle: Detail) -> list[str]:
    """The bundle as text. Absent parts are left out: an older runner may have written less."""
    cluster = f"cluster {bundle.get('cluster_name')}, as of {bundle.get('observed_at')}"
    shown = [cluster, *_pairs("versions", bundle), "", "log in", *_login(_part(bundle, "ssh"))]
    shown += ["", "hosts", *_hosts(bundle)]
    shown += ["", "submit", *_pairs("submit", bundle, ("batch", "interactive"))]
    shown += [
        f"  user {one.get('name')}: account {one.get('account')}" for one in _list(_part(bundle, "submit"), "users")
    ]
    for title, part in (("commands", "commands"), ("health checks", "health")):
        shown += ["", title]
        for one in _list(bundle, part):
            shown += [f"  $ {one.get('command')}   # {one.get('about')}", *_indented(one.get("output"), "    ")]
    shown += ["", "logs", *_pairs("logs", bundle)]
    for where, paths in _part(bundle, "paths").items():
        shown += ["", f"paths on a {where}", *(f"  {path}  {what}" for what, path in dict(paths).items())]
    return [*shown, "", *(f"- {note}" for note in bundle.get("notes") or [])]


def project_lines(bundle: Detail) -> list[str]:
    """The bundle of one project on a shared cluster, as text."""
    shown = [f"cluster {bundle.get('cluster_name')}, account {bundle.get('account')}", "", "log in"]
    shown += [*_login(_part(bundle, "ssh")), "", "submit", *_pairs("submit", bundle), "", "users"]
    shown += [f"  {one.get('name')}  {one.get('subject')}" for one in _list(bundle, "users")]
    shown += [f"  and {bundle['more_users']} more"] if bundle.get("more_users") else []
    return [*shown, "", *(f"- {note}" for note in bundle.get("notes") or [])]


def _login(ssh: Detail) -> list[str]:
    """The line for ssh, and the line by which ssh knows the host. An older bundle has the key in its command."""
    shown = [*_indented(ssh.get("command")), f"  key: {ssh.get('key')}"]
    if ssh.get("known_hosts_file"):
        shown += [f"  first add this line to {ssh['known_hosts_file']}:", *_indented(ssh.get("known_hosts"))]
    return shown


def _hosts(bundle: Detail) -> list[str]:
    listed = [("controller", _part(bundle, "controller"))] + [("worker", one) for one in _list(bundle, "workers")]
    shown = [
        f"  {role:<10} {one.get('hostname')}  {one.get('username')}@{one.get('host')} port {one.get('port')}"
        + (f", {one['gpus']} GPU(s)" if one.get("gpus") else "")
        for role, one in listed
    ]
    return shown + ([f"  and {bundle['more_workers']} more workers"] if bundle.get("more_workers") else [])


def _pairs(part: str, bundle: Detail, only: tuple[str, ...] = ()) -> list[str]:
    return [f"  {key}: {value}" for key, value in _part(bundle, part).items() if not only or key in only]


def _part(bundle: Detail, name: str) -> Detail:
    found = bundle.get(name)
    return found if isinstance(found, dict) else {}


def _list(bundle: Detail, name: str) -> list[Detail]:
    found: Any = bundle.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _indented(text: object, by: str = "  ") -> list[str]:
    return [f"{by}{line}" for line in str(text or "").splitlines()]
