"""The module slurm_nodes as Ansible calls it: its arguments, its lock, what it returns and how it fails."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible.module_utils.host.claim import CLAIM_ARGUMENT

from plugins.modules import slurm_nodes
from tests.unit.controller_views import NO_ANSWER, NOTHING, Cluster, connect, drained, verdict


class Module:
    """AnsibleModule with its arguments given, which ends by raising."""

    made: dict[str, Any]
    params: dict[str, Any]
    check_mode = False

    def __init__(self, **made: Any) -> None:
        type(self).made = made

    def exit_json(self, **result: Any) -> None:
        raise SystemExit({"exit": result})

    def fail_json(self, **result: Any) -> None:
        raise SystemExit({"fail": result})


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def called(cluster: Cluster, locks: list[Any], *, dry: bool = False, **asked: Any) -> Any:
        @contextlib.contextmanager
        def host_lock(module: Any, doing: str, **more: Any) -> Iterator[bool]:
            assert isinstance(module, Module)
            locks.append((doing, more))
            yield True

        monkeypatch.setattr(slurm_nodes, "AnsibleModule", Module)
        monkeypatch.setattr(slurm_nodes, "host_lock", host_lock)
        connect(monkeypatch, cluster.seen, cluster.run)
        monkeypatch.setattr(Module, "params", NOTHING | asked, raising=False)
        monkeypatch.setattr(Module, "check_mode", dry)
        with pytest.raises(SystemExit) as ended:
            slurm_nodes.main()
        return ended.value.code

    return called


LOCK = "changing nodes", {"changes": True, "begin": False}


def test_the_module_returns_what_it_changed(main: Callable[..., Any]) -> None:
    locks: list[Any] = []
    cluster = Cluster({"a": drained()}, {})
    seen: dict[str, Any] = {"nodes": {}, "jobs": [], "reservations": []}
    result = {"nodes": {"a": verdict("deleted")}, "jobs": {}, "drains": {}, "snapshot": seen}
    changes = ["nodes a deleted"]
    assert main(cluster, locks, delete=["a"]) == {"exit": {"changed": True, "changes": changes, **result}}
    assert locks == [LOCK]
    found = main(Cluster({}), locks, verify_delete=["a"])["exit"]
    assert found["changed"] is False and locks[1:] == [(LOCK[0], {"changes": False, "begin": False})]
    dry = main(Cluster({"a": drained()}), locks, dry=True, delete=["a"])["exit"]
    assert dry["nodes"] == {"a": verdict("kept", "Nothing was changed: this is a dry run.", "state_unknown")}


def test_a_slurm_that_does_not_answer_fails_the_module_with_the_daemons_states(main: Callable[..., Any]) -> None:
    error = {"code": "slurm_silent", "message": NO_ANSWER.format(when=""), "class": "retryable"}
    report = {"phase": "controller", "snapshot": {"nodes": None, "jobs": [], "reservations": []}}
    failed = main(Cluster(None), [], delete=["a"])
    assert failed == {"fail": {"msg": error["message"], "adapter_error": error, "member_report": report}}


def test_another_error_fails_the_module_without_a_report(main: Callable[..., Any]) -> None:
    failed = main(Cluster({}), [], delete=["a,b"])["fail"]
    assert failed["adapter_error"]["code"] == "node_name_refused" and failed["member_report"] is None
    assert failed["msg"] == failed["adapter_error"]["message"]


def test_the_arguments_of_the_module_are_the_documented_ones(main: Callable[..., Any]) -> None:
    main(Cluster({}), [])
    texts = {"type": "list", "elements": "str", "default": []}
    names = {"type": "list", "elements": "str", "required": True}
    orders = {"type": "list", "elements": "dict", "default": []}
    text = {"type": "str", "required": True}
    assert Module.made == {
        "argument_spec": {
            **CLAIM_ARGUMENT,
            "drain": orders | {"options": {"nodes": names, "reason": text}},
            "resume": orders | {"options": {"nodes": names, "owner": text}},
            "hold_down": {"type": "bool", "default": False},
            **dict.fromkeys(("requeue", "unpin", "cancel", "verify_delete", "delete"), texts),
        },
        "supports_check_mode": True,
    }
