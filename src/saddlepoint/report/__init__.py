"""Pages and tables that show runs. Nothing here computes, writes a run or prints."""

from importlib.util import find_spec

from saddlepoint.extras import install

if find_spec("jinja2") is None:
    raise ImportError(f"pages need jinja2; install it with {install('show')}", name="jinja2")

from saddlepoint.report.compare import write_comparison
from saddlepoint.report.page import MAX_BYTES, write_report
from saddlepoint.report.result_page import write_result
from saddlepoint.report.saved_images import SavedImages, check_folder, save_images, save_nearest

__all__ = [
    "MAX_BYTES",
    "SavedImages",
    "check_folder",
    "save_images",
    "save_nearest",
    "write_comparison",
    "write_report",
    "write_result",
]
