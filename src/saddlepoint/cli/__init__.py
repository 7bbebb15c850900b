"""The command line: parses, builds objects, calls the library, prints. Nothing else prints.

Modules of this folder import torch inside their functions, so that `--help` answers at once.
"""

import io
import os
import sys
from collections.abc import Sequence

from saddlepoint.extras import install

try:
    from cyclopts import App, CycloptsError
except ImportError as error:  # the extra is not installed
    raise SystemExit(
        f"saddlepoint: the command line needs more packages: {install('cli')}"
    ) from error

from saddlepoint import __version__
from saddlepoint.allocator import keep_memory
from saddlepoint.bars import columns
from saddlepoint.runs.plain import printable
from saddlepoint.runs.signals import end_undisturbed, stop_on_signals

from .errors import Failure, one_line, usage_text, wants_traceback, with_suggestion

__all__ = ["app", "main"]

app = App(
    name="saddlepoint",
    help="Worst-case robustness across models, images and threats.",
    help_epilogue="Start with: saddlepoint demo. Each command has its own --help with examples.",
    version=__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `main` says that it was stopped
)
_EXAMPLES = {
    "demo": ("demo", "demo --limit 64 --out runs/small"),
    "report": ("report runs/demo", "report runs/average runs/minmax --out both.html"),
    "evaluate": (
        "evaluate mnist-a --threat linf:0.2 --threat l2:2.0 --limit 200",
        "evaluate runs/ampgd/model.safetensors:mnist_cnn --data mnist --threat linf:0.3 --suite paper",
        "evaluate --models A,B,C,D --threat linf:0.2 --budget 5m --out runs/all",
    ),
    "doctor": ("doctor mnist-a", "doctor my.networks:robust --data photos/ --eps 8/255"),
    "reproduce": (
        "reproduce --list",
        "reproduce ensemble-mnist --limit 64",
        "reproduce all --jobs 2 --resume",
        'reproduce ensemble-mnist --only "l2, eps 3" --only "linf, eps 0.2" --method both',
    ),
    "train": (
        "train --data mnist --model A --out runs/a",
        "train --data mnist --model mnist_cnn --threat linf:0.3 --threat l2:2.0 --threat l1:10 --out runs/m",
        "train --data photos/ --size 64 --model nets.py:network --init old.pt --threat linf:4/255 --out runs/b",
    ),
}
for _name, _where, _help in (
    ("demo", "demo:demo", "Average against min-max on embedded images, with a report."),
    ("attack", "attack:app", "Attack your models: ensemble, universal, transform, patch."),
    ("evaluate", "evaluate:evaluate", "Accuracy that is left under every attack of a suite."),
    ("report", "report:report", "Draw the report of a run again, or compare runs."),
    ("doctor", "doctor:doctor", "Is a model fit to be evaluated?"),
    (
        "reproduce",
        "reproduce:reproduce",
        "A table or figure of the paper, with our numbers beside its.",
    ),
    ("train", "train:train", "Train a network."),
    ("models", "models:app", "Networks with parameters: list, check, pack."),
    ("data", "data:app", "Data sets: list, fetch."),
):
    _lines = [f"- `saddlepoint {words}`" for words in _EXAMPLES.get(_name, ())]
    _more = {"help_epilogue": "\n".join(["Examples:", "", *_lines])} if _lines else {}
    app.command(f"saddlepoint.cli.{_where}", name=_name, help=_help, **_more)


def main(words: Sequence[str] | None = None) -> None:
    """Runs one command and exits: 0 done, 1 the work failed, 2 for the user to mend, 130 stopped.

    Args:
        words: Command and options; those of the process if None.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without our signs shows question marks.
            stream.reconfigure(errors="replace")
    keep_memory()
    if columns() is None:  # rich, and with it --help, would stumble over it
        os.environ.pop("COLUMNS", None)
    try:
        with stop_on_signals():
            code = _run(sys.argv[1:] if words is None else list(words))
        if code == 130:
            end_undisturbed()
    except KeyboardInterrupt:
        end_undisturbed()
        print("saddlepoint: stopped", file=sys.stderr)
        code = 130
    except BrokenPipeError:  # the reader of our output has gone, as in `saddlepoint ... | head`
        sys.stderr.close()
        code = 1
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    try:
        result = app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _fail(error, usage_text(error), 2)
    except Failure as error:
        return _fail(error, str(error), error.code)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        return _fail(error, one_line(error), 2)
    except Exception as error:
        return _fail(error, f"{one_line(error)} (SADDLEPOINT_TRACEBACK=1 shows where)", 1)
    return result if isinstance(result, int) else 0


def _fail(error: Exception, text: str, code: int) -> int:
    if wants_traceback():
        raise error
    # Names and records that others wrote are quoted: what a terminal would obey is left out.
    text = printable(" ".join(text.split()))
    print(f"saddlepoint: {with_suggestion(text)}", file=sys.stderr)
    return code
