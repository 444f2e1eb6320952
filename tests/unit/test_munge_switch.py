"""The moment at which hosts change their key, by clocks that agree and by clocks that do not."""

from pathlib import Path

import pytest
from ansible.module_utils.slurm.munge_switch import delay, is_live


@pytest.mark.parametrize(
    ("at", "here", "skews", "seconds"),
    [
        (110.0, 100.4, [0.4], 9.6),  # the request took 0.4 s; the host's own clock knows better
        (110.0, 107.0, [7.0, 0.9], 3.0),  # it took 7 s, which is no reason to distrust the clock
        (110.0, 99.9, [-0.1], 10.1),
        (110.0, 191.0, [91.0, 90.0], 9.0),  # a clock that is 90 s ahead, asked when it was 101 in truth
        (110.0, 40.0, [-60.0, -59.0], 10.0),
        (110.0, 112.0, [0.2], 0.0),  # the message came too late: at once
    ],
)
def test_a_host_counts_to_the_agreed_moment(at: float, here: float, skews: list[float], seconds: float) -> None:
    assert delay(at, here, skews) == pytest.approx(seconds)


def test_a_key_is_live_only_as_a_file_with_that_content(tmp_path: Path) -> None:
    path = tmp_path / "munge.key"
    assert not is_live(path, b"k")
    path.write_bytes(b"k")
    assert is_live(path, b"k") and not is_live(path, b"other")
    (tmp_path / "directory").mkdir()
    assert not is_live(tmp_path / "directory", b"k")
