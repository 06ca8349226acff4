"""The explorer's page in a real browser: Chromium, driven by Playwright."""

import csv
import io
import json
import tomllib
from urllib.parse import parse_qs

import pytest

from chromium import MISSING, launch_options
from explorer_serving import running
from explorer_slice import himmelblau, offered
from lossnav.explorer import api
from lossnav.explorer.export import VARIANTS, export
from lossnav.explorer.landscapes import sliced
from lossnav.problem.builtin import problem

pytestmark = pytest.mark.skipif(launch_options() is None, reason=MISSING)

PATIENCE = 30_000  # milliseconds; a busy machine is no fault of the page


@pytest.fixture(scope="module")
def explorer():
    with running(limit=20.0) as found:
        assert found.ask("path", {})[0] == 200
        yield found


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(**launch_options())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def open_page(explorer, chromium):
    """Opens the page in a new window; whatever the page complains of fails the tests."""
    contexts, complaints = [], []

    def open_(link="", address=None, **options):
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        context = chromium.new_context(accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto((address or explorer.address) + link)
        page.wait_for_selector("#tab-paths[aria-selected]")
        return page

    yield open_
    for context in contexts:
        context.close()
    own = "status of 422"  # the browser's own line for a refusal
    assert not [text for text in complaints if own not in text]


@pytest.fixture(scope="module")
def window(open_page):
    return open_page()


@pytest.fixture
def at(window):
    """Goes to a link in the window that is open already."""

    def go(link=""):
        # At once: the page writes its own link a moment after a change.
        window.evaluate(
            """(link) => {
                Explorer.paths.latest.path = Explorer.paths.latest.rules = null;
                history.replaceState(null, '', link);
                window.dispatchEvent(new Event('hashchange'));
            }""",
            link or "#",
        )
        return window

    return go


def until(page, script, wanted=True):
    """Wait for what a script says; the page's policy lets no text be run, so it is asked again and again."""
    for _ in range(PATIENCE // 50):
        found = page.evaluate(script)
        if found == wanted:
            return found
        page.wait_for_timeout(50)
    raise AssertionError(f"{script} is {found!r}, not {wanted!r}")


def settled(page):
    """The path of the settings that the page now has, once it is drawn."""
    until(
        page,
        """(() => { const {path} = Explorer.paths.latest, {x, y} = Explorer.state.values;
        return Boolean(path && Math.abs(path.x[0] - x) < 1e-9 && Math.abs(path.y[0] - y) < 1e-9
            && Explorer.map.path === path && document.querySelector('.overlay path[data-name=optimal]')); })()""",
    )
    return page.evaluate("Explorer.paths.latest.path")


def request(page):
    return page.evaluate("Explorer.state.request('paths')")


def agrees(page):
    """What is drawn is the answer to what the controls say."""
    for _ in range(PATIENCE // 100):
        shown = page.evaluate("Explorer.paths.latest.path")
        expected = api.answer("path", request(page))
        if shown and shown["J"] == pytest.approx(expected["J"], rel=1e-9):
            break
        page.wait_for_timeout(100)
    assert shown["J"] == pytest.approx(expected["J"], rel=1e-9)
    return shown


def test_the_path_is_seen_before_plotly_is_there(chromium, explorer):
    """Held back by the network, the big script is missed by nobody; then it takes over in the same place."""
    page = chromium.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    held = []
    page.route("**/plotly.min.js", lambda route: held.append(route))
    page.goto(explorer.address)
    until(page, "Boolean(window.Explorer && Explorer.first)")
    settled(page)
    assert page.evaluate("typeof Plotly") == "undefined"
    assert page.locator("canvas.sheet").count() == 1
    colours = page.evaluate(
        """(() => { const sheet = document.querySelector('canvas.sheet'), pen = sheet.getContext('2d');
        return new Set(pen.getImageData(0, 0, sheet.width, sheet.height).data.filter((_, i) => i % 4 === 0)).size; })()"""
    )
    assert colours > 10  # contours, not one flat colour
    place = """(() => { const {xaxis, yaxis} = Explorer.handle.axes();
        return [0.3, -0.7].flatMap((v) => [xaxis._offset + xaxis.l2p(v), yaxis._offset + yaxis.l2p(v), xaxis.p2l(xaxis.l2p(v)), yaxis.p2l(yaxis.l2p(v))]); })()"""
    before = page.evaluate(place)
    page.focus("#handle")
    page.keyboard.press("ArrowRight")
    agrees(page)
    for route in held:
        route.continue_()
    until(page, "document.querySelectorAll('canvas.sheet').length", 0)
    until(page, "Boolean(document.getElementById('map')._fullLayout)")
    assert page.evaluate(place) == pytest.approx(before, abs=1.0)
    page.context.close()


def test_the_first_sight(window):
    page = window
    path = settled(page)
    assert path["end"][0] == pytest.approx(1.05745, abs=1e-4)
    until(page, "document.querySelectorAll('#ranking tbody tr').length", 4)
    until(page, "document.querySelectorAll('#equations .formula').length", 2)
    assert "ln.DoubleWell()" in page.inner_text("#python")
    assert "0.9765" in page.inner_text("#summary")
    until(page, "document.querySelectorAll('#summary tbody tr').length", 2)  # two basins compete
    line = page.get_attribute(".overlay path[data-name=optimal]", "d")
    assert line.count("L") > 100
    lengths = "document.getElementById('costs').data?.map((one) => one.y.length).join()"
    until(page, lengths, "161,161")  # drawn after the path
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_start_can_be_dragged(at):
    page = at()
    settled(page)
    box = page.locator("#handle").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for i in range(1, 9):
        page.mouse.move(x + 15 * i, y + 10 * i)
    page.mouse.up()
    path = settled(page)
    assert path["x"][0] > 0.0
    assert path["y"][0] < 0.3
    agrees(page)
    after = page.locator("#handle").bounding_box()
    assert after["x"] == pytest.approx(box["x"] + 120, abs=2)
    assert after["y"] == pytest.approx(box["y"] + 80, abs=2)


def test_each_slider_changes_the_path(at):
    page = at("#metric=anisotropic&drift=decay&horizon=4&landscape=valley&rate=0.1&rules=flow")
    settled(page)
    for name in ("gamma", "eta", "k", "horizon", "ratio", "angle", "speed", "x", "y"):
        before, value = agrees(page)["J"], page.evaluate(f"Explorer.state.values.{name}")
        page.locator(f"#c-{name}").focus()
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        assert page.evaluate(f"Explorer.state.values.{name}") != value, name
        assert agrees(page)["J"] != before, name
    for name in ("dt", "steps", "rate"):
        before = json.dumps(page.evaluate("Explorer.paths.latest.rules"))
        page.locator(f"#c-{name}").press("PageUp")
        until(page, f"JSON.stringify(Explorer.paths.latest.rules) !== {json.dumps(before)}")


def test_lists_and_boxes(at):
    page = at("#rules=flow")
    settled(page)
    page.select_option("#c-landscape", "bowl")
    assert settled(page)["end"] == pytest.approx([0.0, -0.5], abs=1e-9)
    tall, plot = (
        f"document.getElementById('map').{name}" for name in ("clientHeight", "_fullLayout?.height")
    )
    until(page, f"{plot} === {tall}")
    before = page.evaluate(tall)
    page.set_viewport_size({"width": 800, "height": 900})
    until(page, f"{tall} < {before} && {plot} === {tall}")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.select_option("#c-metric", "anisotropic")
    page.select_option("#c-drift", "rotation")
    agrees(page)
    page.check("#c-horizon-check")
    assert request(page)["horizon"] == 5
    agrees(page)
    page.select_option("#c-landscape", "normal")
    assert request(page)["metric"] == "fisher"
    agrees(page)
    for name in ("adam", "newton", "natural"):
        page.check(f"#c-rules-{name}")
    until(page, "document.querySelectorAll('#ranking tbody tr').length", 5)
    assert page.get_attribute(".overlay path[data-name=natural]", "d")
    page.uncheck("#c-rules-newton")
    until(page, "document.querySelectorAll('#ranking tbody tr').length", 4)


def test_field_surface_and_time(at):
    page = at("#rules=flow")
    settled(page)
    page.check("#c-field-check")
    until(page, "document.getElementById('map').data[1].x.length > 20")  # the watershed
    until(page, "document.getElementById('map').data[2].x.length > 500")  # arrows
    page.locator("#clock").fill("300")
    assert page.locator(".dot:visible").count() == 2
    assert "t =" in page.inner_text("#clock-text")
    page.click("#play")
    until(page, "document.getElementById('clock').value > 330")
    page.click("#play")
    assert page.get_attribute("#play", "aria-pressed") == "false"
    page.click("#picture-surface")
    until(page, "document.getElementById('map').data[0].type", "surface")
    until(page, "document.getElementById('map').data.at(-1).z.length > 100")
    assert page.locator("#handle").is_hidden()
    page.click("#picture-contour")
    until(page, "document.getElementById('map').data[0].type", "contour")
    assert page.locator("#handle").is_visible()


def test_views(at):
    page = at("#view=paths")
    page.click("#tab-beliefs")
    until(page, "document.querySelectorAll('#beliefs-table tbody tr').length", 3)
    until(page, "document.getElementById('beliefs-mean').data?.length", 5)
    before = page.inner_text("#beliefs-table")
    page.locator("#c-b\\.beta1").press("PageDown")
    until(page, f"document.getElementById('beliefs-table').innerText !== {json.dumps(before)}")
    page.click("#tab-uncertainty")
    until(page, "document.getElementById('uncertainty-variance').data?.length", 3)
    assert "less sure" in page.inner_text("#uncertainty-summary")
    page.locator("#c-u\\.shift-n").fill("0")
    page.locator("#c-u\\.shift-n").press("Enter")
    until(
        page, "document.getElementById('uncertainty-summary').innerText.includes('without rising')"
    )
    assert "view=uncertainty" in page.evaluate("Explorer.state.link()")


def test_every_state_is_a_link(at, open_page):
    page = at("#landscape=valley&x=1&y=-2&gamma=2&field=true&rules=adam,newton&view=paths")
    settled(page)
    page.locator("#c-eta").press("ArrowRight")
    page.select_option("#c-drift", "decay")
    agrees(page)
    page.click("#copy-link")
    link = "#" + page.url.split("#")[1]
    again = open_page(link)
    settled(again)
    assert request(again) == request(page)
    assert again.evaluate("Explorer.state.values") == page.evaluate("Explorer.state.values")
    assert parse_qs(link[1:])["rules"] == ["adam,newton"]
    again.evaluate("location.hash = '#landscape=bowl&gamma=0'")  # a link followed on the open page
    until(again, "Explorer.state.values.landscape", "bowl")
    assert settled(again)["end"] == pytest.approx([0.0, -0.5], abs=1e-9)


def holding(page, *questions):
    """Hold back the first request for each of these questions; returns them by name."""
    held = {}

    def hold(route):
        name = route.request.url.rpartition("/")[2]
        if name in held:
            route.continue_()
        else:
            held[name] = route

    for question in questions:
        page.route(f"**/api/{question}", hold)
    return held


def test_late_answers_about_another_state_are_not_drawn(open_page):
    """Answers to the old state arrive once the new state's path is drawn."""
    page = open_page()
    held = holding(page, "basins", "field")
    page.evaluate("location.hash = '#landscape=valley&x=1&y=-2&field=true'")
    while len(held) < 2:
        page.wait_for_timeout(50)
    page.evaluate("location.hash = '#landscape=bowl&gamma=0'")
    until(page, "Explorer.state.values.landscape", "bowl")
    settled(page)
    for route in held.values():
        route.continue_()
    page.wait_for_timeout(1000)
    assert settled(page)["end"] == pytest.approx([0.0, -0.5], abs=1e-9)
    assert page.evaluate("Explorer.paths.latest.field ?? null") is None


def saved(page, kind):
    page.click("#export summary")
    with page.expect_download() as download:
        page.click(f"[data-export={kind}]")
    return download.value.path().read_bytes()


def test_exports(at, tmp_path):
    page = at("#rules=flow")
    settled(page)
    until(page, "Boolean(Explorer.paths.latest.rules && Explorer.paths.latest.equations)")
    assert saved(page, "png")[:8] == b"\x89PNG\r\n\x1a\n"
    picture = saved(page, "svg").decode()
    assert picture.startswith("<svg")
    assert picture.count("<path") > 20
    rows = list(csv.DictReader(io.StringIO(saved(page, "csv").decode())))
    path = page.evaluate("Explorer.paths.latest.path")
    optimal = [row for row in rows if row["path"] == "optimal"]
    assert [float(row["theta1"]) for row in optimal] == path["x"]
    assert {row["path"] for row in rows} == {"optimal", "candidate 1", "flow"}
    data = json.loads(saved(page, "json"))
    assert data["path"]["J"] == path["J"]
    assert data["settings"] == request(page)
    file = tmp_path / "problem.toml"
    file.write_bytes(saved(page, "toml"))
    assert tomllib.loads(file.read_text())["gamma"] == 0.6
    assert problem(file).theta0.tolist() == [-0.6, 0.55]


def test_with_the_keyboard_alone(at):
    page = at("#rules=flow")
    settled(page)
    page.evaluate("document.activeElement.blur()")
    page.locator(".skip").focus()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        here = page.evaluate("document.activeElement.id || document.activeElement.tagName")
        if here == "handle":
            break
        seen.add(here)
    assert here == "handle"
    assert {"tab-paths", "copy-link", "theme", "c-landscape", "c-gamma"} <= seen
    before = request(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    after = request(page)
    assert after["x"] > before["x"]
    assert after["y"] < before["y"]
    settled(page)
    assert "," in page.get_attribute("#handle", "aria-valuetext")
    page.locator("#tab-paths").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-beliefs", "aria-selected") == "true"
    page.keyboard.press("ArrowLeft")
    page.locator("#export summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#export-items").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#export-items").is_hidden()


def test_everything_has_a_name_for_screen_readers(at):
    page = at("#metric=anisotropic&drift=decay&horizon=4&rate=0.1&landscape=expression")
    settled(page)
    nameless = page.evaluate(
        """[...document.querySelectorAll('input, select, button, [role=img], pre[tabindex], table')].filter((e) =>
        !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim() || e.title)).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    until(page, "document.getElementById('status').textContent.startsWith('Optimal path: J')")


def test_a_bad_expression_is_explained_and_can_be_mended(at):
    page = at("#landscape=expression&rules=flow")
    settled(page)
    page.fill("#c-expression", "x**2 + z")
    page.keyboard.press("Enter")
    page.wait_for_selector("#error:visible")
    assert "'z' is not a declared variable" in page.inner_text("#error")
    page.fill("#c-expression", "<img src=x onerror=alert(1)>")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('error').textContent.includes('declared')", False)
    assert page.locator("#error img").count() == 0
    page.fill("#c-expression", "(x - 1)**2 + 2*y**2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#error", state="hidden")
    assert agrees(page)["end"] == pytest.approx([1.0, 0.0], abs=1e-6)


SHOWN = """({
    lines: [...document.querySelectorAll('.overlay path')].filter((line) => line.getAttribute('d')
        && line.closest('.overlay').style.display !== 'none').map((line) => line.dataset.name).sort(),
    ground: Boolean(document.querySelector('#map')._fullLayout || Explorer.sheet.axes),
    costs: Boolean(document.querySelector('#costs')._fullLayout),
    legend: document.getElementById('legend').textContent.includes('Optimal path'),
    handle: !document.getElementById('handle').hidden,
    words: ['summary', 'ranking', 'equations', 'rule', 'python', 'status']
        .map((id) => document.getElementById(id).textContent).join(' '),
})"""


def cleared(page, ground):
    """Nothing on the page is about a path any more; contours only if the landscape has an answer."""
    until(page, "['path', 'rules', 'equations'].every((name) => !Explorer.paths.latest[name])")
    until(page, f"({SHOWN}).lines.length === 0 && ({SHOWN}).ground === {json.dumps(ground)}")
    found = page.evaluate(SHOWN)
    assert not found["costs"]
    assert not found["legend"]
    assert found["handle"] is ground
    assert "Converged" not in found["words"]
    assert not any(character.isdigit() for character in found["words"]), found["words"]


def test_an_error_clears_what_it_makes_untrue(at):
    page = at("#landscape=expression&rules=flow&gamma=0.5")
    settled(page)
    until(page, f"({SHOWN}).costs && ({SHOWN}).words.includes('Converged')")
    until(page, "Boolean(Explorer.paths.latest.rules && Explorer.paths.latest.equations)")
    page.fill("#c-expression", "x**2 + z")  # no landscape, no path, no equations
    page.keyboard.press("Enter")
    page.wait_for_selector("#error:visible")
    cleared(page, ground=False)
    page.click("#export summary")
    page.click("[data-export=csv]")
    until(page, "document.getElementById('error').textContent.includes('no answer to export')")
    page.fill("#c-expression", "(x - 1)**2 + 2*y**2")
    page.keyboard.press("Enter")
    page.wait_for_selector("#error", state="hidden")
    assert agrees(page)["end"] == pytest.approx([1.0, 0.0], abs=1e-6)
    until(page, f"({SHOWN}).lines.join()", "flow,optimal")
    until(page, f"({SHOWN}).costs && ({SHOWN}).ground && ({SHOWN}).legend && ({SHOWN}).handle")


def test_a_path_that_is_refused_leaves_the_landscape_alone(at):
    page = at("#landscape=expression&rules=flow&gamma=0.5")
    settled(page)
    page.route("**/api/path", lambda route: route.fulfill(status=422, json={"error": "No path."}))
    page.route("**/api/rules", lambda route: route.fulfill(status=422, json={"error": "No path."}))
    page.route("**/api/equations", lambda route: route.fulfill(status=422, json={"error": "No."}))
    page.evaluate("Explorer.state.set({ expression: 'x**2 + 3*y**2' })")
    page.wait_for_selector("#error:visible")
    cleared(page, ground=True)
    page.unroute_all()
    page.evaluate("Explorer.state.set({ gamma: 0.25 })")
    page.wait_for_selector("#error", state="hidden")
    agrees(page)


def test_the_old_path_does_not_lie_on_a_new_landscape(at):
    """While its path and rules are still being worked out."""
    page = at("#landscape=bowl&rules=flow")
    settled(page)
    until(page, f"({SHOWN}).lines.join()", "flow,optimal")
    held = holding(page, "path", "rules")
    page.evaluate("Explorer.state.set({ landscape: 'valley' })")
    until(page, f"({SHOWN}).lines.join()", "")
    while len(held) < 2:
        page.wait_for_timeout(50)
    for route in held.values():
        route.continue_()
    until(page, f"({SHOWN}).lines.includes('optimal')")
    agrees(page)
    page.unroute_all()


@pytest.mark.parametrize("view", ["beliefs", "uncertainty"])
def test_an_error_clears_the_other_views_too(at, view):
    page = at(f"#view={view}")
    until(page, f"Boolean(Explorer.{view}.latest)")
    numbers = f"/[0-9]/.test([...document.querySelectorAll('#view-{view} .side')].map((e) => e.textContent).join(' '))"
    until(page, numbers)
    page.route(f"**/api/{view}", lambda route: route.fulfill(status=422, json={"error": "No."}))
    page.evaluate(f"Explorer.{view}.all()")
    page.wait_for_selector("#error:visible")
    assert page.evaluate(f"document.querySelectorAll('#view-{view} .main-svg').length") == 0
    assert page.evaluate(numbers) is False
    page.unroute_all()
    page.evaluate(f"Explorer.{view}.all()")
    page.wait_for_selector("#error", state="hidden")
    until(page, numbers)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("landscape=own&gamma=abc", ["landscape=own", "gamma=abc"]),
        ("gamma=", ["gamma="]),
        ("gamma=-1&x=1e9", ["gamma=-1", "x=1e9"]),
        ("steps=1.5", ["steps=1.5"]),
        ("metric=round&rules=flow,best&box=1,2", ["metric=round", "rules=flow,best", "box=1,2"]),
        ("eta=none&view=all&picture=4d&field=yes", ["eta=none", "view=all", "picture=4d", "field=yes"]),
        ("gama=1&b.sigma=wide&u.k=0", ["gama=1", "b.sigma=wide", "u.k=0"]),
    ],
)  # fmt: skip
def test_a_bad_value_in_a_link_becomes_the_default_and_is_said(at, link, said):
    usual = at().evaluate("({...Explorer.state.values})")
    page = at(f"#{link}")
    assert page.evaluate("({...Explorer.state.values})") == usual
    sentence = page.inner_text("#error")
    assert sentence.count(".") - sum(word.count(".") for word in said) == 1
    assert all(word in sentence for word in said)
    assert page.input_value("#c-gamma-n") == str(usual["gamma"])
    agrees(page)
    page.evaluate("Explorer.state.set({ k: 2 })")  # the link is replaced by that of the page
    page.wait_for_selector("#error", state="hidden")


def test_light_dark_and_phone(open_page):
    page = open_page(
        "#rules=flow", color_scheme="dark", viewport={"width": 390, "height": 844}, has_touch=True
    )
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for view in ("beliefs", "uncertainty"):
        page.click(f"#tab-{view}")
        until(page, f"Boolean(Explorer.{view}.latest)")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), view


def test_the_export_works_from_disk_without_a_server(open_page, tmp_path):
    folder = tmp_path / "page"
    export(
        folder,
        landscapes=["bowl", "double-well"],
        gammas=[2.0],
        variants=VARIANTS[:1],
        starts=2,
        stories=["wind", "switch"],
    )
    page = open_page(address=folder.joinpath("index.html").as_uri())
    until(page, "Boolean(Explorer.paths.latest.path && Explorer.paths.latest.rules)")
    until(
        page, "document.getElementById('costs').closest('.card').getAttribute('aria-busy')", "false"
    )
    until(page, "Boolean(Explorer.paths.latest.equations)")
    loaded = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    loaded += page.evaluate("[...document.scripts].map((one) => one.src)")
    files = {
        folder / name.rpartition("/page/")[2].partition("#")[0] for name in (page.url, *loaded)
    }
    assert sum(file.stat().st_size for file in files) < 5e6  # plotly.js is 4.8e6 of them
    assert len([file for file in files if file.parent.name == "data"]) == 3
    assert page.evaluate("Explorer.paths.latest.path.candidates.length") == 1
    page.select_option("#c-landscape", "bowl")
    until(page, "Explorer.paths.latest.path?.candidates.length", 0)
    page.select_option("#c-landscape", "double-well")
    until(page, "Explorer.paths.latest.path?.candidates.length", 1)
    page.locator("#c-gamma-n").fill("1.7")
    page.locator("#c-gamma-n").press("Tab")
    until(page, "Explorer.state.values.gamma", 2)  # the nearest that was worked out
    until(page, "Explorer.paths.latest.path?.end[0] < 0")
    shown = page.evaluate("Explorer.paths.latest.path.J")
    assert shown == pytest.approx(api.answer("path", {"gamma": 2.0})["J"], rel=1e-4)
    assert page.locator("#c-eta").is_disabled()
    page.click("#story-wind")
    until(page, "Explorer.paths.latest.path?.x[0]", 1.5)
    until(page, "Math.abs(Explorer.paths.latest.path.end[1] + 0.4) < 1e-4")
    assert "carried round" in page.inner_text("#story")
    assert page.locator("#story-crossing").count() == 0
    page.select_option("#c-landscape", "double-well")
    until(page, "Explorer.paths.latest.path?.candidates.length", 1)
    assert page.locator("#story").is_hidden()
    page.click("#tab-beliefs")
    until(page, "Boolean(Explorer.beliefs.latest)")


def test_the_box_of_a_typed_formula_can_be_set(at, open_page):
    page = at("#landscape=expression&rules=flow")
    settled(page)
    page.fill("#c-expression", "((x**2+y-11)**2+(x+y**2-7)**2)/20")
    page.press("#c-expression", "Enter")
    agrees(page)
    assert page.locator("#c-box-0").is_hidden()
    page.check("#c-box-check")
    assert [page.input_value(f"#c-box-{i}") for i in range(4)] == ["-2", "2", "-2", "2"]
    for i, value in enumerate((-5, 5, -5, 5)):
        page.fill(f"#c-box-{i}", str(value))
        page.press(f"#c-box-{i}", "Tab")
    until(page, "Explorer.map.land && Explorer.map.land.minima.length", 4)
    path = agrees(page)
    assert min(abs(path["end"][0] - x) for x in (3.0, -2.805, -3.779, 3.584)) < 1e-3
    link = "#" + page.evaluate("Explorer.state.link()").lstrip("#")
    again = open_page(link)
    assert settled(again)["J"] == path["J"]
    assert request(again)["box"] == [-5, 5, -5, 5]
    assert again.is_checked("#c-box-check")
    again.fill("#c-box-1", "-6")
    again.press("#c-box-1", "Enter")
    assert '"x to" must be a number' in again.inner_text("#error")
    assert request(again)["box"] == [-5, 5, -5, 5]
    again.fill("#c-box-1", "-3")  # the start is left of it no more
    again.press("#c-box-1", "Enter")
    assert (request(again)["box"][1], request(again)["x"]) == (-3, -3)
    agrees(again)
    again.uncheck("#c-box-check")
    assert request(again)["box"] is None


def test_stories_are_links_that_tell_what_they_show(at, open_page):
    page = at("#k=0.5")
    assert page.locator("#story").is_hidden()
    page.click("#story-wind")
    until(page, "Explorer.state.values.drift", "rotation")
    assert settled(page)["end"] == pytest.approx([0.0, -0.4], abs=1e-9)
    assert "rests at" in page.inner_text("#story")
    assert page.get_attribute("#story-wind", "aria-current") == "true"
    assert request(page)["k"] == 1  # a story is not mixed with what was there before
    page.evaluate("Explorer.state.set({others: false})")
    assert page.locator("#story").is_visible()
    shared = open_page("#" + page.evaluate("Explorer.state.link()").lstrip("#"))
    assert shared.inner_text("#story") == page.inner_text("#story")
    assert request(shared) == request(page)
    page.locator("#c-gamma").press("ArrowRight")  # now it would not be true
    assert page.locator("#story").is_hidden()
    assert "story" not in page.evaluate("Explorer.state.link()")
    page.evaluate("location.hash = '#story=wind&gamma=3'")
    until(page, "Explorer.state.values.gamma", 3)
    assert page.locator("#story").is_hidden()
    page.click("#story-switch")
    until(page, "Explorer.state.values.view", "uncertainty")
    assert "variance" in page.inner_text("#story")
    page.click("#story-patience")
    until(page, "document.getElementById('map').data?.[1].x.length > 20")  # the watershed
    assert settled(page)["status"] == "NEAR_TIE"


def test_a_panel_that_waits_says_so(open_page):
    page = open_page("#rules=flow")
    settled(page)
    busy = "document.getElementById('{}').closest('.card').getAttribute('aria-busy')"
    says = "getComputedStyle(document.querySelector('#{}').closest('.card').firstElementChild, '::after').content"
    for panel in ("map", "summary", "ranking", "equations", "rule", "python", "costs"):
        until(page, busy.format(panel), "false")
        assert page.evaluate(says.format(panel)) == "none"
    held = holding(page, "basins", "rules", "equations", "field")
    page.check("#c-field-check")
    page.locator("#c-gamma").press("ArrowRight")
    while len(held) < 4:
        page.wait_for_timeout(50)
    for panel in ("map", "summary", "ranking", "equations", "rule", "python"):
        assert page.evaluate(busy.format(panel)) == "true", panel
        assert "computing" in page.evaluate(says.format(panel)), panel
    for route in held.values():
        route.continue_()
    for panel in ("map", "summary", "ranking", "equations", "rule", "python", "costs"):
        until(page, busy.format(panel), "false")
    page.fill("#c-k-n", "1e-9")  # refused by the page: nothing is asked for
    page.locator("#tab-beliefs").click()
    until(page, "document.querySelectorAll('#view-beliefs [aria-busy=false]').length", 5)


def test_equations_are_broken_not_clipped(at):
    page = at("#landscape=normal&drift=rotation&rules=flow")
    until(page, "document.querySelectorAll('#equations mfrac').length > 6")
    hidden = "Math.max(...[...document.querySelectorAll('.maths')].map((one) => one.scrollWidth - one.clientWidth))"
    ends = """[...document.querySelectorAll('#equations .formula:last-of-type > math')]
        .map((one) => one.getBoundingClientRect()).map((box) => [box.top, box.bottom])"""
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(hidden) <= 0
        boxes = page.evaluate(ends)
        assert boxes[-1][0] > boxes[0][1] - 5  # the last piece is below the first
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_slice_of_the_users_own_model_is_what_the_page_opens_on(open_page):
    landscape = sliced(himmelblau(41), "My model", "from mine import loss\n")
    with offered(landscape), running(workers=1, limit=20.0, offered=[landscape]) as own:
        page = open_page(address=own.address)
        path = settled(page)
        assert path["J"] == pytest.approx(api.answer("path", {})["J"], rel=1e-9)
        assert page.inner_text("#c-landscape option:checked") == "My model"
        until(page, "document.getElementById('map')._fullLayout?.xaxis.title.text", "α")
        until(page, "document.querySelectorAll('#equations .formula').length", 2)
        assert "from mine import loss" in page.inner_text("#python")
        page.click("#export summary")
        page.click("[data-export=toml]")
        until(page, "document.getElementById('error').textContent.includes('a slice of a model')")
        page.select_option("#c-landscape", "bowl")
        until(page, "Explorer.paths.latest.path?.end?.[1]", -0.5)
        link = page.evaluate("Explorer.state.link()")
        assert "landscape=bowl" in link
        page.close()  # before the server, whose absence it would complain of
