"""The report in a real Chromium: no errors, no network, by mouse and by keyboard, wide and narrow."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from run_factory import HOSTILE, make_evaluation, make_run, make_training
from saddlepoint import report
from saddlepoint.doctor import Finding
from saddlepoint.runs import Run, rank_runs, read_results

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Chromium; `make browser` installs it")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in ("ensemble", "universal", "transform"):
        make_run(folder / kind, kind, rows=40, channels=3)
        hostile = {"names": HOSTILE[:3], "classes": HOSTILE, "data": HOSTILE[1]}
        make_run(folder / f"hostile-{kind}", kind, **hostile)
    make_run(folder / HOSTILE[1], rows=40, rule="average", channels=3)
    both = [folder / "ensemble", folder / HOSTILE[1]]
    report.write_comparison(rank_runs(both), folder / "comparison.html")
    for name, domains in (("evaluation", 1), ("evaluations", 3)):
        make_evaluation(folder / name, domains=domains, rows=30, channels=3)
        hostile = {"names": HOSTILE[:domains], "classes": HOSTILE, "data": HOSTILE[1]}
        make_evaluation(folder / f"hostile-{name}", domains=domains, **hostile)
    make_training(folder / "training")
    seen = [Finding("outputs", "fail", "rows sum to one.", "these are probabilities.", "logits")]
    report.write_findings(
        {"a_network_with_a_name_that_is_rather_long": seen},
        folder / "doctor.html",
        about="toy",
        command="x",
    )
    shutil.copytree(folder / "evaluation", folder / "the same with a name that is rather long")
    report.write_comparison(rank_runs([folder]), folder / "leaderboard.html")
    return folder


@pytest.fixture
def visit(browser, runs):
    """Opens a page and checks, when the test is over, that nothing went wrong in it."""
    pages = []
    trouble: list[str] = []

    def open_page(name: str, width: int = 1280, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "data:")) else trouble.append(request.url)
            ),
        )
        page.goto((runs / name).resolve().as_uri())
        pages.append(page)
        return page

    yield open_page
    assert trouble == []
    for page in pages:
        assert page.evaluate("window.pwned") is None
        page.close()


def shown(page) -> list[int]:
    cards = page.locator("#cards > li:visible")
    return [int(value) for value in cards.evaluate_all("nodes => nodes.map(n => n.dataset.row)")]


def test_sorting(visit):
    page = visit("ensemble/report.html")
    hard = shown(page)
    page.select_option("#sort", "easy")
    easy = shown(page)
    assert hard[0] != easy[0]
    page.locator("#more").click()
    more = shown(page)
    assert len(more) > len(easy)
    assert more[: len(easy)] == easy
    page.select_option("#sort", "row")
    rows = shown(page)
    assert rows == sorted(rows)
    page.select_option("#sort", "class")
    classes = page.locator("#cards > li:visible").evaluate_all("n => n.map(x => x.dataset.classes)")
    assert classes == sorted(classes)


def test_filtering(visit, runs):
    page = visit("ensemble/report.html")
    tensors = read_results(runs / "ensemble")[1]
    fooled, before = tensors["fooled"], tensors["clean_fooled"]
    page.select_option("#missed", "none")
    all_of_them = fooled.all(dim=1) & ~before.any(dim=1)
    assert set(shown(page)) <= set(all_of_them.nonzero().flatten().tolist())
    page.select_option("#missed", "before")
    assert set(shown(page)) <= set(before.any(dim=1).nonzero().flatten().tolist())
    assert page.locator("#count").inner_text() != ""
    for domain in range(3):
        page.select_option("#missed", str(domain))
        missed = set((~fooled & ~before)[:, domain].nonzero().flatten().tolist())
        assert set(shown(page)) == missed
        assert page.locator("#empty").is_visible() == (not missed)
    page.select_option("#missed", "")
    page.select_option("#class", "0")
    labels = page.locator("#cards > li:visible .head b").all_inner_texts()
    assert len(set(labels)) == 1
    assert len(labels) > 0


def test_large_view_by_keyboard(visit):
    page = visit("ensemble/report.html")
    card = page.locator("#cards > li:visible button").first
    card.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#large")
    assert dialog.is_visible()
    first = page.locator("#large-title").inner_text()
    assert first.startswith("Image ")
    assert page.locator("#large svg").count() == 2
    assert page.locator("#large svg polyline").count() == 6
    assert page.locator("#large img").first.evaluate("i => i.naturalWidth") == 6
    page.keyboard.press("ArrowRight")
    assert page.locator("#large-title").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert page.locator("#large-title").inner_text() == first
    for _ in range(8):  # focus stays inside
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || "
            "document.getElementById('large').contains(document.activeElement)"
        )
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert page.evaluate("document.activeElement.closest('li') !== null")


def test_large_view_by_mouse(visit):
    page = visit("universal/report.html")
    page.locator("#cards > li:visible button").nth(1).click()
    assert page.locator("#large").is_visible()
    assert page.locator("#large tbody tr").count() == 3
    page.locator("#close").click()
    assert not page.locator("#large").is_visible()


def test_everything_can_be_reached_by_tab(visit):
    page = visit("ensemble/report.html")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"skip", "sort", "missed", "class", "open"} <= reached


@pytest.mark.parametrize("kind", ["ensemble", "universal", "transform"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_fits_the_screen(visit, tmp_path, kind, scheme, width):
    page = visit(f"{kind}/report.html", width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"{kind}-{scheme}-{width}.png", full_page=True)
    page.locator("#cards > li:visible button").first.click()
    box = page.locator("#large").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(background.split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["image 18", "group 12345"])
def test_a_long_verdict_leaves_the_name_of_a_card_whole(visit, width, name):
    page = visit("ensemble/report.html", width)
    card = page.locator("#cards > li:visible .open").first
    verdict = "3 of 4 fooled, the others wrong from the start"
    for part, words in ((".name", name), (".state", verdict)):
        card.locator(part).evaluate("(node, words) => { node.textContent = words; }", words)
    boxes = {part: card.locator(part).bounding_box() for part in (".name", ".state")}
    whole = card.bounding_box()
    for box in boxes.values():
        assert box["x"] >= whole["x"]
        assert box["x"] + box["width"] <= whole["x"] + whole["width"]
    line = card.locator(".name").evaluate("node => parseFloat(getComputedStyle(node).lineHeight)")
    assert boxes[".name"]["height"] < 1.5 * line  # one line, not one letter per line


@pytest.mark.parametrize("kind", ["ensemble", "universal", "transform"])
def test_hostile_names_do_nothing(visit, kind):
    page = visit(f"hostile-{kind}/report.html")
    page.locator("#cards > li:visible button").first.click()
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert HOSTILE[1] in page.locator("main").inner_text()
    assert page.locator("svg[onload], img[src=x]").count() == 0


@pytest.mark.parametrize("name", ["comparison", "leaderboard"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_comparisons_fit_the_screen(visit, tmp_path, name, scheme, width):
    page = visit(f"{name}.html", width, scheme)
    for details in page.locator("main details").all():
        details.evaluate("node => { node.open = true; }")
    page.screenshot(path=tmp_path / f"{name}-{scheme}-{width}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Nothing in the page scrolls sideways either, and no cell reaches beyond the page.
    right = page.locator("main td, main th, main li, main svg").evaluate_all(
        "nodes => Math.max(...nodes.map(n => n.getBoundingClientRect().right))"
    )
    assert right <= width
    assert page.locator("main .scroll").count() == 0
    text = page.locator("main").inner_text()
    assert "Which attack on these models is stronger?" in text
    # Headings are above the numbers on a wide screen, beside them on a narrow one.
    said = "node => getComputedStyle(node, '::before').content"
    for heading in ("rank", "success, %", "95 %", "evaluations", "only the first"):
        cell = page.locator(f'td[data-label="{heading}"]').first
        assert cell.is_visible()
        assert (heading in cell.evaluate(said)) == (width == 390)
    assert page.locator("thead").first.is_visible() == (width == 1280)


def test_reads_without_scripts(browser, runs) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((runs / "ensemble" / "report.html").resolve().as_uri())
    assert page.locator("#cards > li").count() == 40
    assert page.locator("#cards > li").last.is_visible()
    context.close()


@pytest.mark.parametrize("name", ["training/report", "doctor"])
@pytest.mark.parametrize("width", [390, 1280])
def test_long_names_and_paths_do_not_widen_a_page(visit, name, width):
    page = visit(f"{name}.html", width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["evaluation", "evaluations"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_an_evaluation_fits_the_screen(visit, tmp_path, name, scheme, width):
    page = visit(f"{name}/report.html", width, scheme)
    for details in page.locator("main details").all():
        details.evaluate("node => { node.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"{name}-{scheme}-{width}.png", full_page=True)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(background.split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")
    pictures = page.locator("#closest img")
    assert pictures.count() > 0
    assert pictures.first.evaluate("node => node.naturalWidth") == 6
    assert page.locator("#radius svg").count() == 2


def test_an_evaluation_says_what_stands(visit, runs):
    page = visit("evaluation/report.html")
    metrics = Run.read(runs / "evaluation").metrics
    assert f"{metrics['union']:.1f}" in page.locator("h1").inner_text()
    assert "upper bound" in page.locator("#radius").inner_text()
    assert page.locator("#attacks tbody tr").first.is_visible()
    for link in page.locator("header nav a").all():
        target = link.get_attribute("href")
        assert page.locator(target).count() == 1
    page.locator("#copy").click()
    # The clipboard answers when it likes.
    page.locator("#copy", has_text=re.compile("Copied|Selected")).wait_for(timeout=10_000)


def test_bars_have_the_width_of_their_numbers(visit, runs):
    page = visit("evaluation/report.html")
    metrics = Run.read(runs / "evaluation").metrics
    track, bar = (
        page.locator(f".hero svg .{name}").first.bounding_box()["width"]
        for name in ("track", "bar")
    )
    assert bar / track == pytest.approx(metrics["clean"] / 100, abs=0.02)


@pytest.mark.parametrize("name", ["evaluation", "evaluations"])
def test_hostile_names_do_nothing_in_an_evaluation(visit, name):
    page = visit(f"hostile-{name}/report.html")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert HOSTILE[1] in page.locator("main").inner_text()
    assert page.locator("svg[onload], img[src=x]").count() == 0


def test_a_leaderboard_leads_to_the_reports(visit):
    page = visit("leaderboard.html")
    assert "Which model is more robust?" in page.locator("main").inner_text()
    page.locator(".ranking a", has_text="rather long").first.click()
    assert "still classified correctly" in page.locator("h1").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_training_fits_the_screen(visit, tmp_path, scheme, width):
    page = visit("training/report.html", width, scheme)
    page.screenshot(path=tmp_path / f"training-{scheme}-{width}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    right = page.locator("#tests td, #epochs td, #epochs svg").evaluate_all(
        "nodes => Math.max(...nodes.map(n => n.getBoundingClientRect().right))"
    )
    assert right <= width  # no column is cut off
    charts = [each.bounding_box() for each in page.locator("#epochs svg").all()]
    assert len({(round(box["width"]), round(box["height"])) for box in charts}) == 1
    assert page.locator("tr.kept").inner_text().startswith("epoch 2" if width == 390 else "2")


SITE = Path(__file__).parents[1] / "build" / "site"


@pytest.fixture
def site():
    if not (SITE / "index.html").exists():
        pytest.skip("needs the documentation site; `make docs` builds it")
    return SITE


@pytest.fixture
def served(site):
    """The site as a server shows it: a page there may start workers, one from a disk may not."""
    import functools
    import threading
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def opened(browser, address: str, trouble: list[str], width: int = 1280, scheme: str = "light"):
    """A page that notes what goes wrong, and every request that leaves the site."""
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page.on(  # remarks of the browser are no errors
        "console",
        lambda said: None if said.type == "info" else trouble.append(f"{said.type}: {said.text}"),
    )
    page.on("pageerror", lambda error: trouble.append(str(error)))
    home = ("file:", "data:", "blob:", "http://127.0.0.1:")
    page.on("request", lambda each: None if each.url.startswith(home) else trouble.append(each.url))
    page.goto(address)
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_of_the_site_fits_the_screen(browser, site, scheme, width):
    trouble: list[str] = []
    page = opened(browser, (site / "index.html").as_uri(), trouble, width, scheme)
    # The page for missing pages is for servers: its links begin at the top.
    paths = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    assert len(paths) > 40
    for path in paths:
        page.goto(path.as_uri())
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        channels = [float(part) for part in re.findall(r"[\d.]+", background)][:3]
        assert (channels[0] < 80) == (scheme == "dark"), path
        broken = page.locator("img").evaluate_all("all => all.filter(i => !i.naturalWidth).length")
        assert broken == 0, path
        assert trouble == [], path
    page.close()


@pytest.mark.parametrize("where", ["disk", "server"])
def test_the_site_is_searched(browser, site, served, where):
    trouble: list[str] = []
    address = site.as_uri() if where == "disk" else served
    page = opened(browser, f"{address}/index.html", trouble)
    page.wait_for_timeout(500)
    page.locator(".md-search__button").first.click()
    field = page.get_by_role("combobox")
    field.wait_for()
    field.press_sequentially("projection", delay=80)
    result = page.locator("a", has_text="project_simplex").first
    result.wait_for(timeout=20_000)
    assert field.input_value() == "projection"
    result.click()
    page.wait_for_url("**/reference/sets.html**")
    assert trouble == []
    page.close()


def test_menus_of_the_site_lead_to_its_pages(browser, site):
    trouble: list[str] = []
    page = opened(browser, (site / "index.html").as_uri(), trouble)
    page.locator(".md-nav a", has_text="Gallery of reports").first.click()
    page.wait_for_url("**/gallery.html")
    page.get_by_role("link", name="Demo", exact=True).click()
    page.wait_for_url("**/gallery/demo.html")
    assert "fool them all" in page.locator("h1").inner_text()
    assert trouble == []
    page.close()
