"""Kill -9 at six changes to the disk, first and last among them, then --resume: the same folder, to the bit.

`make slow` does so at every one.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from children import Nursery
from folders import assert_same_folders

COMMANDS = {
    "attack": "attack ensemble --data mnist-sample --models A,C --victims D --eps 0.15 --steps 2 --limit 3 "
    "--batch-size 1",
    "patch": "attack patch --data cifar10-sample --models scores:A --patch 3 --views here --limit 6 "
    "--gradient searched:queries=10 --images-per-patch 2 --held-out 2",
    "evaluate": "evaluate --models mnist-a,mnist-c --data mnist-sample --threat linf:0.1 --limit 2 "
    "--batch-size 1 --no-doctor",
    "train": "train --data mnist-sample --model C --threat linf:0.1 --threat l2:1 --start warm --limit 160 "
    "--held-out 8 --epochs 2 --steps 1 --checkpoint-every 1 --test-images 4 --test-steps 1 --test-restarts 1",
    "reproduce": "reproduce eps-mnist-abc --limit 3 --only 'linf, eps 0.1'",
}
KILLS = 6  # of every command, evenly over its changes to the disk


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not_been(
    nursery: Nursery, tmp_path: Path, name: str, every: bool
) -> None:
    words = shlex.split(COMMANDS[name])
    (whole,) = nursery.run(*words, "--out", "whole", cwd=tmp_path)
    assert whole.code == 0, whole.err
    assert name != "reproduce" or list(
        tmp_path.glob("whole/*.png")
    )  # figures are among its changes
    kills = whole.changes if every else KILLS
    moments = {1 + number * (whole.changes - 1) // (kills - 1) for number in range(kills)}
    assert len(moments) == kills
    for moment in sorted(moments):
        out = ("--out", f"killed at {moment}")
        (killed,) = nursery.run(*words, *out, cwd=tmp_path, die_at=moment)
        assert (killed.code, killed.changes) == (-9, moment - 1)
        (resumed,) = nursery.run(*words, *out, "--resume", cwd=tmp_path)
        assert resumed.code == 0, (moment, resumed.err)
        assert_same_folders(tmp_path / "whole", tmp_path / f"killed at {moment}")
