"""GPUs as the driver lists them become values that Slurm takes, or a refusal that names the problem."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import gpus as host_gpus
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.gpus import check_gpu_count, gpu_type, parse_gpus, read_gpus
from ansible.module_utils.slurm.gres import gres, gres_conf

from sandbox.fleet.gpus import MODELS, Gpus

ROW = "{0}, GPU-{0}, 40960, 00000000:0{0}:00.0, NVIDIA A100-SXM4-40GB\n"


def gpus(count: int, kind: str = "a100") -> list[dict[str, Any]]:
    return [{"index": n, "type": kind, "device": f"/dev/nvidia{n}"} for n in range(count)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA RTX A6000", "rtx_a6000"),
        ("NVIDIA TITAN V", "titan_v"),
    ],
)
def test_a_model_gets_its_usual_name(name: str, kind: str) -> None:
    assert gpu_type(name) == kind


@pytest.mark.parametrize("name", ["", "NVIDIA", "4090", "[N/A]" * 20, "日本", "x" * 40])
def test_a_model_of_which_no_safe_name_can_be_made_is_refused(name: str) -> None:
    with pytest.raises(AdapterError) as raised:
        gpu_type(name)
    assert raised.value.code == "gpu_type_unusable"


@pytest.mark.parametrize(
    "name", ["A100\nNodeName=evil", "A100 File=/dev/sda", 'A100" --conf "x', "A100#", "a100:9,gpu"]
)
def test_the_type_of_a_gpu_has_only_letters_digits_and_underscores(name: str) -> None:
    assert host_gpus.TYPE.fullmatch(gpu_type(name))


def test_rows_become_gpus_in_the_order_of_their_index() -> None:
    found = parse_gpus(ROW.format(1) + "\n" + ROW.format(0))
    assert [(one["index"], one["uuid"], one["memory_mb"], one["type"]) for one in found] == [
        (0, "GPU-0", 40960, "a100"),
        (1, "GPU-1", 40960, "a100"),
    ]


@pytest.mark.parametrize("text", ["Unable to determine the device handle", "x, GPU-1, 1, 0, A100", "0, GPU-1"])
def test_an_answer_that_is_not_a_table_is_refused(text: str) -> None:
    with pytest.raises(AdapterError) as raised:
        parse_gpus(text)
    assert raised.value.code == "gpu_unreadable"


@pytest.mark.parametrize("promised", [3, 5, 0])
def test_a_count_that_is_not_the_allocations_is_refused_with_both_numbers(promised: int) -> None:
    with pytest.raises(AdapterError) as raised:
        check_gpu_count(gpus(4), promised)
    assert raised.value.code == "gpu_count_mismatch"
    assert "4 GPU(s)" in raised.value.message
    assert f"has {promised}" in raised.value.message


def test_a_count_that_matches_or_was_not_promised_passes() -> None:
    check_gpu_count(gpus(4), 4)
    check_gpu_count(gpus(4), None)
    check_gpu_count([], 0)


def test_slurm_gets_each_type_with_its_count_and_each_device() -> None:
    mixed = [*gpus(2), {"index": 2, "type": "t4", "device": "/dev/nvidia7"}]
    assert gres(mixed) == "gpu:a100:2,gpu:t4:1"
    assert gres([]) == ""
    assert gres_conf(mixed).splitlines()[1:] == [
        "Name=gpu Type=a100 File=/dev/nvidia0",
        "Name=gpu Type=a100 File=/dev/nvidia1",
        "Name=gpu Type=t4 File=/dev/nvidia7",
    ]


def test_the_device_is_the_one_the_driver_names_for_the_gpus_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = tmp_path / "0000:0b:00.0"
    slot.mkdir()
    (slot / "information").write_text("Model: \t A100\nDevice Minor: \t 3\n")
    monkeypatch.setattr(host_gpus, "PROC", tmp_path)
    assert host_gpus._minor({"index": 0, "bus": "00000000:0b:00.0"}) == 3
    assert host_gpus._minor({"index": 0, "bus": "00000000:0c:00.0"}) == 0


class StandIn:
    """The sandbox's tool in a directory of ours, with the table it answers from."""

    def __init__(self, directory: Path, wanted: Gpus) -> None:
        table = directory / "table"
        files = {name.rpartition("/")[2]: text for name, (_, text) in wanted.files("h").items()}
        table.write_text(files.get("sandbox-gpus", ""))
        tool = directory / "nvidia-smi"
        text = (Path(__file__).parents[2] / "sandbox" / "fleet" / "nvidia-smi").read_text()
        tool.write_text(text.replace("table=/etc/sandbox-gpus", f"table={table}"))
        tool.chmod(0o755)
        self.tool = str(tool)

    def ask(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([self.tool, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_probe_reads_every_stand_in_as_it_would_the_real_tool(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = StandIn(tmp_path, Gpus(3, model))
    monkeypatch.setattr(shutil, "which", lambda _: tool.tool)
    monkeypatch.setattr(Path, "exists", lambda _: True)
    found = read_gpus()
    assert [one["device"] for one in found] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]
    assert len({one["uuid"] for one in found}) == 3
    assert {one["name"] for one in found} == {MODELS[model][0]}
    assert {one["memory_mb"] for one in found} == {MODELS[model][1]}


def test_a_gpu_without_its_device_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = StandIn(tmp_path, Gpus(1))
    monkeypatch.setattr(shutil, "which", lambda _: tool.tool)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(AdapterError) as raised:
        read_gpus()
    assert raised.value.code == "gpu_device_missing"


def test_a_driver_without_a_gpu_means_none_and_one_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = StandIn(tmp_path, Gpus(0))
    monkeypatch.setattr(shutil, "which", lambda _: tool.tool)
    assert read_gpus() == []
    Path(tool.tool).write_text(
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9\n"
    )
    with pytest.raises(AdapterError) as raised:
        read_gpus()
    assert raised.value.code == "gpu_unreadable"
    assert "could not talk to the driver" in raised.value.message


def test_the_stand_in_refuses_what_the_real_tool_refuses(tmp_path: Path) -> None:
    tool = StandIn(tmp_path, Gpus(2))
    assert tool.ask("--query-gpu=colour", "--format=csv").returncode == 2
    assert tool.ask("--frobnicate").returncode == 1
    assert tool.ask("-L").stdout.startswith("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-")
    assert tool.ask("--query-gpu=count,memory.total", "--format=csv").stdout.splitlines() == [
        "count, memory.total [MiB]",
        "2, 40960 MiB",
        "2, 40960 MiB",
    ]
