"""The options of podman on machines of different kinds."""

import os
import resource
import shutil

import pytest

from sandbox.fleet.errors import CannotRunError
from sandbox.fleet.runtime import Podman, choose_runtime, ulimit_flags


def test_hybrid_cgroups_use_runc_even_if_podman_prefers_crun() -> None:
    assert choose_runtime("v1", "crun", ["crun", "runc"]) == "runc"


def test_cgroup_v2_keeps_podmans_own_choice() -> None:
    assert choose_runtime("v2", "crun", ["crun", "runc"]) == "crun"


def test_hybrid_cgroups_without_runc_name_the_install_command() -> None:
    with pytest.raises(CannotRunError, match=r"needs runc.*apt-get install"):
        choose_runtime("v1", "crun", ["crun"])


@pytest.mark.parametrize(
    ("hard", "nofile"), [(1024, "1024:1024"), (1 << 20, "65536:65536"), (resource.RLIM_INFINITY, "65536:65536")]
)
def test_limits_never_exceed_those_of_the_machine(hard: int, nofile: str) -> None:
    assert ulimit_flags({"nofile": hard, "nproc": 100}) == [
        *("--ulimit", f"nofile={nofile}"),
        *("--ulimit", "nproc=100:100"),
    ]


def test_without_root_the_error_names_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRunError, match="sudo"):
        Podman.detect()


def test_without_podman_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CannotRunError, match="podman is not installed; run: apt-get install"):
        Podman.detect()
