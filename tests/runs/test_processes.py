"""Runs by several processes, as under torchrun: the folder that one leaves, to the bit, whatever happens."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from children import SHORT, Child, Nursery, shared
from folders import assert_same_folders
from saddlepoint import runs

LINES = {
    "attack": "attack ensemble --data mnist-sample --models A,C --victims D --eps 0.15 --steps 3 --limit 10 "
    "--batch-size 3 --baseline average",
    "patch": "attack patch --data mnist-sample --models A,C --patch 8 --steps 2 --limit 12 "
    "--images-per-patch 2 --held-out 4 --views here,anywhere --baseline average",
    "evaluate": "evaluate mnist-c --data mnist-sample --threat linf:0.1 --threat l2:1 --limit 6 --batch-size 2 "
    "--no-doctor",
    "evaluate several": "evaluate --models mnist-a,mnist-c --data mnist-sample --threat linf:0.1 --limit 6 "
    "--batch-size 2 --no-doctor",
    "doctor": "evaluate mnist-c --data mnist-sample --threat linf:0.1 --limit 4",
    "reproduce": "reproduce steps-mnist --limit 3",
    "measure": "reproduce convergence --limit 1 --only 'linf, alpha 1/4 (Table 1)'",
    "demo": "demo --limit 2",
}
COMMANDS = {name: shlex.split(line) for name, line in LINES.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Child]]:
    """Commands by their name as one process runs them, undisturbed, once: the folder, and how it ended."""

    @functools.cache
    def run(name: str) -> tuple[Path, Child]:
        folder = tmp_path_factory.mktemp("whole")
        (child,) = shared().run(*COMMANDS[name], "--out", "run", cwd=folder)
        assert child.code == 0, child.err
        return folder / "run", child

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_leave_what_one_leaves(
    nursery: Nursery, tmp_path: Path, name: str, whole: Callable[[str], tuple[Path, Child]]
) -> None:
    folder, alone = whole(name)
    first, second = nursery.run(*COMMANDS[name], "--out", "run", cwd=tmp_path, processes=2)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert_same_folders(folder, tmp_path / "run")
    # The first process speaks for all.
    assert (second.out, second.err) == ("", "")
    assert len(first.out.splitlines()) == len(alone.out.splitlines()) > 0


def test_torchrun_itself_starts_and_ends_them(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    words = [*COMMANDS["attack"], "--out", str(tmp_path / "two")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, "-m", "saddlepoint", *words]
    job = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("report:") == 1
    run, tensors = runs.read_results(tmp_path / "two")
    assert (run.done, len(tensors["delta"])) == (10, 10)


@pytest.mark.parametrize("name", ["attack", "patch", "evaluate"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_another_number_of_processes_continues(
    nursery: Nursery,
    tmp_path: Path,
    whole: Callable[[str], tuple[Path, Child]],
    name: str,
    before: int,
    after: int,
) -> None:
    (folder, alone), words, out = whole(name), COMMANDS[name], ("--out", "part")
    killed = nursery.run(*words, *out, cwd=tmp_path, processes=before, die_at=alone.changes // 3)
    assert killed[0].code == -9
    assert all(each.code for each in killed)
    kept = set((tmp_path / "part" / "pages").glob("[!.]*"))
    assert kept
    resumed = nursery.run(*words, *out, "--resume", cwd=tmp_path, processes=after)
    assert [each.code for each in resumed] == [0] * after, resumed[0].err
    assert_same_folders(folder, tmp_path / "part")


# The second process cannot attack the image number 3, which is in its share.
FAILS = """
import os, time
from pathlib import Path
from saddlepoint import evaluation
from saddlepoint.runs import rows
def first_page():  # of process 0, or of the only one, which is then at work and has something to continue
    while not [page for page in Path().glob("*/pages/[!.]*") if not page.name.startswith("answers-")]:
        time.sleep(0.001)
if os.environ.get("RANK", ONLY) == ONLY:
    run, page = evaluation.OurAttack.run, rows._page
    def failing_run(attack, target):
        if attack.name == NAME and 3 in target.rows.tolist():
            first_page()
            raise RuntimeError("no more memory")
        return run(attack, target)
    def failing_page(job, positions, *rest):
        if 3 in positions.tolist():
            first_page()
            raise RuntimeError("no more memory")
        return page(job, positions, *rest)
    evaluation.OurAttack.run, rows._page = failing_run, failing_page
"""


def failing(only: str = "1", name: str = "attack-ce") -> str:
    return f"{SHORT}\nONLY, NAME = {only!r}, {name!r}\n{FAILS}"


@pytest.mark.parametrize("name", ["attack", "patch", "evaluate"])
@pytest.mark.parametrize("end_others", [True, False], ids=["torchrun", "nobody tells"])
def test_a_process_that_fails_ends_the_others_and_resuming_finishes(
    nursery: Nursery,
    tmp_path: Path,
    whole: Callable[[str], tuple[Path, Child]],
    name: str,
    end_others: bool,
) -> None:
    words, out, two = COMMANDS[name], ("--out", "part"), {"cwd": tmp_path, "processes": 2}
    first, second = nursery.run(*words, *out, **two, patch=failing(), end_others=end_others)
    assert second.code == 1
    assert "no more memory" in second.err
    # The connection to the second ends with that process, which is therefore never told to end. The first
    # notices (1), is told (130), or is told when it had said the next lines and was about to exit (-15).
    assert first.code in ((130, 1, -15) if end_others else (1,))
    assert "--resume" in first.err.splitlines()[-1]
    if first.code == 1:
        assert "process 0 of 2 lost contact with another one" in first.err.splitlines()[-1]
    assert "Traceback" not in first.err + second.err
    assert runs.Run.read(tmp_path / "part").status in ("interrupted", "failed")
    assert [each.code for each in nursery.run(*words, *out, "--resume", **two)] == [0, 0]
    assert_same_folders(whole(name)[0], tmp_path / "part")


UNDER_TORCHRUN = """
import os
os.environ.update(TORCHELASTIC_RUN_ID="none", LOCAL_WORLD_SIZE="2")
"""


def test_the_line_to_continue_is_one_of_torchrun_where_it_began_so(
    nursery: Nursery, tmp_path: Path
) -> None:
    two = {"cwd": tmp_path, "processes": 2, "end_others": False}
    words = (*COMMANDS["attack"], "--out", "part")
    first, _ = nursery.run(*words, **two, patch=failing() + UNDER_TORCHRUN)
    (line,) = (each for each in first.err.splitlines() if each.startswith("continue with: "))
    assert line.startswith(
        "continue with: torchrun --nproc-per-node 2 -m saddlepoint attack ensemble "
    )
    assert line.endswith("--out part --resume")
    # Without it, as by `reproduce --jobs`, nothing is said of it.
    first, _ = nursery.run(*words, "--overwrite", **two, patch=failing())
    assert "continue with: saddlepoint attack ensemble " in first.err


@pytest.mark.parametrize("name", ["attack", "evaluate"])
def test_processes_without_a_batch_are_told_how_to_divide(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    two = {"cwd": tmp_path, "processes": 2}
    line = re.sub("--batch-size [0-9]", "--batch-size 50", LINES[name])
    assert line != LINES[name]
    first, second = nursery.run(*shlex.split(line), "--out", "one", **two)
    assert (first.code, second.code) == (0, 0), first.err
    images = runs.Run.read(tmp_path / "one").rows
    assert first.err.count("nothing to do") == 1
    assert (
        f"there is one batch of {images} for 2 processes, 1 of which has nothing to do; divide it with "
        f"--batch-size {images // 2}" in first.err
    )
    assert second.err == ""
    first, _ = nursery.run(*COMMANDS[name], "--out", "many", **two)
    assert "nothing to do" not in first.err


# A process whose peer has failed is told to end while it records and tells that it lost contact.
TOLD = """
import importlib, signal
where = importlib.import_module("saddlepoint.{module}")
does = where.{name}
def told(*words, **more):
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
    return does(*words, **more)
where.{name} = told
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("runs.execute", "_leave"),
        ("cli.runs_shown", "_tell_way_on"),
        ("cli", "_fail"),
    ],
)
def test_a_signal_while_a_failure_is_told_takes_nothing_from_it(
    nursery: Nursery, tmp_path: Path, module: str, name: str
) -> None:
    words = (*COMMANDS["attack"], "--out", "part")
    told = TOLD.format(module=module, name=name)
    (child,) = nursery.run(*words, cwd=tmp_path, patch=failing() + told)
    assert child.code == 1
    assert "--resume" in child.err
    assert "no more memory" in child.err.splitlines()[-1]
    assert runs.Run.read(tmp_path / "part").status == "failed"


# The run is stopped in the moment in which its failure has come up, before anything is done about it.
STOPPED = """
import signal
from saddlepoint.runs import execute
undisturbed = execute.end_undisturbed
def stopped():
    execute.end_undisturbed = undisturbed
    signal.raise_signal(signal.SIGTERM)
    undisturbed()
execute.end_undisturbed = stopped
"""


def test_a_signal_in_the_moment_of_a_failure_stops_the_run(
    nursery: Nursery, tmp_path: Path
) -> None:
    words = (*COMMANDS["attack"], "--out", "part")
    (child,) = nursery.run(*words, cwd=tmp_path, patch=failing() + STOPPED)
    assert child.code == 130
    assert "--resume" in child.err.splitlines()[-1]
    assert runs.Run.read(tmp_path / "part").status == "interrupted"


@pytest.mark.parametrize("name", ["evaluate", "evaluate several"])
def test_a_failure_that_is_noted_is_noted_alike(
    nursery: Nursery, tmp_path: Path, name: str
) -> None:
    """Whichever process it happens in: batches before the one that failed count, later ones do not."""
    words = (*COMMANDS[name], "--on-failure", "note")
    alone = nursery.run(*words, "--out", "one", cwd=tmp_path, patch=failing())
    two = {"cwd": tmp_path, "processes": 2, "end_others": False}  # as none has failed
    both = nursery.run(*words, "--out", "two", patch=failing(), **two)
    # Exit code 1 says that numbers are upper bounds; the second process has nothing to say.
    assert [each.code for each in (*alone, *both)] == [1, 1, 0], both[0].err + both[1].err
    assert_same_folders(tmp_path / "one", tmp_path / "two")
    record = json.loads((tmp_path / "two" / runs.RECORD).read_text())
    assert "no more memory" in record["metrics"]["failures"][0]["error"]


def test_a_budget_is_the_time_of_all_processes_together(nursery: Nursery, tmp_path: Path) -> None:
    slow = (
        f"{SHORT}import time\nfrom saddlepoint.evaluation import OurAttack\nrun = OurAttack.run\n"
    )
    slow += "OurAttack.run = lambda attack, target: (time.sleep(0.3), run(attack, target))[1]\n"
    line = (
        "evaluate mnist-c --data mnist-sample --threat l2:1 --limit 6 --batch-size 1 --budget 0.8s"
    )
    words = [*line.split(), "--no-doctor", "--out", "two"]
    ended = nursery.run(*words, cwd=tmp_path, processes=2, patch=slow)
    assert [each.code for each in ended] == [0, 0], ended[0].err
    metrics = runs.Run.read(tmp_path / "two").metrics
    (domain,) = metrics["domains"].values()
    (first, _) = domain["attacks"]
    # Each of the two has 0.4 s: a first batch of at least 0.3 s, and not time enough for a second one.
    assert (first["status"], first["attacked"]) in (
        ("cut short", 2),
        ("cut short", 1),
        ("cut short", 0),
    )
    assert "cut short by the budget of 0.8 s" in metrics["notes"][0]
    assert f"({first['attacked']} of 6 images attacked" in metrics["notes"][0]


def test_processes_that_see_other_data_are_refused(nursery: Nursery, tmp_path: Path) -> None:
    other = "import os\nfrom saddlepoint import data\nsample = data.sample\n"
    other += "if os.environ['RANK'] == '1':\n"
    other += "    data.sample = lambda name, limit=None: (1 - sample(name, limit)[0], sample(name, limit)[1])\n"
    words = (*COMMANDS["attack"], "--out", "o")
    two = {
        "cwd": tmp_path,
        "processes": 2,
        "patch": other,
        "end_others": False,
    }  # each has to say it
    for each in nursery.run(*words, **two):
        assert each.code == 2
        assert "got others in process 1 than in process 0" in each.err
    assert not (tmp_path / "o").exists()
    (alone,) = nursery.run(*words, cwd=tmp_path)
    assert alone.code == 0, alone.err
    before = {path: path.read_bytes() for path in (tmp_path / "o").iterdir()}
    for each in nursery.run(*words, "--overwrite", **two):
        assert each.code == 2
    # A start that is refused replaces nothing.
    assert {path: path.read_bytes() for path in (tmp_path / "o").iterdir()} == before
