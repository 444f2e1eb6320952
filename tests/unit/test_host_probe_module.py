"""The module host_probe: how it ends if the host cannot be read."""

from typing import Any

import pytest

from plugins.modules import host_probe


class Ended(Exception):
    """What a module returns to Ansible when it ends."""

    def __init__(self, **result: Any) -> None:
        super().__init__(str(result))
        self.result = result


class FakeModule:
    """AnsibleModule with few parameters."""

    def __init__(self, **_declared: Any) -> None:
        self.params = {"reference_epoch": None, "contributed": None}

    def fail_json(self, **result: Any) -> None:
        raise Ended(**result)


@pytest.mark.parametrize(
    ("number", "code", "error_class"), [(5, "host_io_failed", "retryable"), (30, "disk_read_only", "intervention")]
)
def test_a_ledger_that_the_disk_does_not_give_is_an_adapter_error(
    monkeypatch: pytest.MonkeyPatch, number: int, code: str, error_class: str
) -> None:
    def check_host(*_asked: object) -> str:
        raise OSError(number, "Input/output error")

    monkeypatch.setattr(host_probe, "AnsibleModule", FakeModule)
    monkeypatch.setattr(host_probe, "probe", lambda: {"epoch": 0.0})
    monkeypatch.setattr(host_probe, "check_host", check_host)
    with pytest.raises(Ended) as ended:
        host_probe.main()
    problem = ended.value.result["adapter_error"]
    assert (problem["code"], problem["class"]) == (code, error_class)
    assert "reading the facts of the host" in ended.value.result["msg"]
