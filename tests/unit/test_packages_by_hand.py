"""The platform decides where packages come from also for a play that a person runs by hand."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from runner.act import package_policy
from runner.intent.errors import IntentError
from runner.model.errors import RequestError, Unavailable
from runner.model.platform import Resolution
from runner.slurm.app import SLURM
from tests.unit.package_answers import DENY, MISSING, allowing, asking
from tests.unit.worlds import instance


def by_hand(monkeypatch: pytest.MonkeyPatch, answer: Any, setting: str = "platform", **how: Any) -> tuple[Any, Any]:
    """Variables of a play under exec, and the credential that opens a private source."""
    variables, login = package_policy.for_manual_command(
        *asking(answer, setting), read_only=how.get("read_only", False)
    )
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    return package_policy.manual_terms(SLURM, instance()), login


@pytest.mark.parametrize("answer", [DENY, MISSING, Resolution(decision="perhaps"), allowing(uri="ftp://x")])
def test_by_hand_only_an_allow_installs_packages(monkeypatch: pytest.MonkeyPatch, answer: Resolution) -> None:
    terms, login = by_hand(monkeypatch, answer)
    assert set(terms["slurm_package_source"]) == {"denied"} and login is None


def test_by_hand_a_deny_names_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_hand(monkeypatch, DENY)[0] == {"slurm_package_source": {"denied": "rule no-slurm"}}


def test_by_hand_an_allow_gives_its_source_and_its_login_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_hand(monkeypatch, Resolution(decision="allow")) == ({}, None)
    terms, login = by_hand(monkeypatch, allowing(credential_id=str(UUID(int=5))))
    assert login == UUID(int=5) and terms["slurm_package_source"]["private"] is True
    assert "credential_id" not in terms["slurm_package_source"]


def test_by_hand_a_policy_that_cannot_be_asked_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terms, _ = by_hand(monkeypatch, Unavailable("503", code="platform_unreachable"))
    assert "platform_unreachable" in terms["slurm_package_source"]["denied"]


def test_by_hand_the_setting_none_is_refused_where_the_platform_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(package_policy.PolicyPresent):
        by_hand(monkeypatch, DENY, "none")
    assert by_hand(monkeypatch, MISSING, "none") == ({}, None)


def test_by_hand_without_exec_or_for_another_instance_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(package_policy.SOURCE_VARIABLE, raising=False)
    not_asked = {"slurm_package_source": {"denied": package_policy.NOT_ASKED}}
    assert package_policy.manual_terms(SLURM, instance()) == not_asked
    by_hand(monkeypatch, Resolution(decision="allow"))
    other = instance(id=UUID(int=8))
    assert package_policy.manual_terms(SLURM, other) == not_asked
    assert "denied" in by_hand(monkeypatch, allowing(), read_only=True)[0]["slurm_package_source"]


@pytest.mark.parametrize("text", ["[]", "1", "{", '{"instance": "00000000-0000-0000-0000-000000000007"}'])
def test_by_hand_a_forged_answer_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(package_policy.SOURCE_VARIABLE, text)
    with pytest.raises(IntentError, match="use exec"):
        package_policy.manual_terms(SLURM, instance())


def test_by_hand_the_answer_of_policy_cannot_be_overridden_on_the_command_line() -> None:
    package_policy.refuse_override(SLURM, ["ansible-playbook", "playbooks/recover.yml"])
    for term in ("slurm_package_source=null", '{"preflight_package_source": null}'):
        with pytest.raises(RequestError):
            package_policy.refuse_override(SLURM, ["ansible-playbook", "-e", term, "playbooks/deploy.yml"])


def test_the_variable_that_plays_read_is_the_one_that_is_refused() -> None:
    read_by_plays = yaml.safe_load((Path(__file__).parents[2] / "roles/preflight/vars/main.yml").read_text())
    assert SLURM.package_source_variables[0] in read_by_plays[SLURM.package_source_variables[1]]
