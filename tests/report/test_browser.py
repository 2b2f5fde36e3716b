"""The report in a real Chromium: without errors, in light and dark, narrow and wide, and on paper."""

import csv

import pytest

EVERY = ["regression", "classification", "several"]


@pytest.fixture
def show(browser, request):
    """Open a report, and record the messages and requests of the browser."""
    opened = []

    def show(name, *, scheme="light", width=1280):
        report = request.getfixturevalue(name)
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        opened.append(page)
        page.messages, page.requests = [], []
        page.on("console", lambda message: page.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(report.path.as_uri())
        page.report = report
        return page

    yield show
    for page in opened:
        page.close()


@pytest.mark.parametrize("name", EVERY)
def test_it_opens_without_errors_and_without_a_network(show, name):
    page = show(name)
    page.wait_for_load_state("networkidle")
    assert page.messages == []
    assert [address for address in page.requests if not address.startswith("data:")] == [page.report.path.as_uri()]
    assert page.locator("h1").count() == 1
    assert page.locator("h2").count() >= 7
    shapes = page.locator("figure svg").evaluate_all("all => all.map(svg => svg.getBoundingClientRect().toJSON())")
    assert len(shapes) >= 7
    assert all(shape["width"] > 200 and shape["height"] > 60 for shape in shapes)


def test_the_page_works_with_a_screen_reader_and_the_keyboard(show):
    page = show("regression")
    pictures = page.get_by_role("img")
    assert pictures.count() == page.locator("figure").count()
    assert all(len(label) > 20 for label in pictures.evaluate_all("all => all.map(one => one.ariaLabel)"))
    assert page.locator("table").count() == page.locator("table > caption").count() > 3
    assert page.locator("a").evaluate_all("all => all.every(one => one.tabIndex === 0)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#trust"
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1


def test_no_text_of_a_picture_leaves_its_card(show):
    for name in EVERY:
        for width in (390, 1280):
            beyond = show(name, width=width).evaluate(
                """[...document.querySelectorAll('figure svg text')].filter(text => {
                    const [inner, outer] = [text, text.closest('figure')].map(one => one.getBoundingClientRect());
                    return inner.left < outer.left || inner.right > outer.right;
                }).map(text => text.textContent)"""
            )
            assert beyond == []


def test_no_text_of_a_tile_or_a_step_leaves_its_box(show):
    for name in EVERY:
        for width in (320, 390, 1280):
            page = show(name, width=width)
            # Figures as long as they may get.
            page.locator(".tile .value").first.evaluate("one => one.textContent = '7,144,000,000 to 12,345,678,901'")
            page.locator(".steps code").first.evaluate(
                "one => one.textContent = 'onsphere ' + 'very_long_name'.repeat(20)"
            )
            beyond = page.evaluate(
                """[...document.querySelectorAll('.tile, .steps li, .steps pre, .verdicts li')].filter(
                    box => box.scrollWidth > box.clientWidth + 1
                ).map(box => box.textContent)"""
            )
            assert beyond == []


def test_steps_are_numbered_and_their_commands_selected_whole(show):
    page = show("regression")
    steps = page.locator("#next .steps li")
    assert steps.count() >= 2
    assert page.locator("main > section").last.get_attribute("id") == "next"
    assert steps.locator("pre").first.evaluate("one => getComputedStyle(one).userSelect") == "all"


def luminance(colour):
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(part) / 255 for part in colour[4:-1].split(","))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_light_and_dark_are_both_readable(show, scheme, is_dark):
    page = show("regression", scheme=scheme)
    style = "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor, getComputedStyle(one).fill]"
    _, ground, _ = page.locator("body").evaluate(style)
    _, card, _ = page.locator(".card").first.evaluate(style)
    assert (luminance(ground) < 0.1) == is_dark
    for what in ("h1", ".lead", ".note", "figcaption p", ".caption", ".save", "td", "nav a", ".verdicts p"):
        ink, _, _ = page.locator(what).first.evaluate(style)
        for behind in (ground, card):
            bright, dim = sorted((luminance(ink), luminance(behind)), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, what
    _, _, axis = page.locator("figure svg text").first.evaluate(style)
    assert (luminance(axis) > 0.5) == is_dark


def test_light_and_dark_are_not_the_same_picture(show):
    light, dark = (show("regression", scheme=scheme).screenshot() for scheme in ("light", "dark"))
    assert light != dark


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_wider_than_the_screen(show, name, width):
    page = show(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["regression", "classification"])
def test_every_link_saves_a_readable_file(show, name):
    page = show(name)
    links = page.locator("a[download]")
    assert links.count() == len(page.report.page.downloads)
    for link in links.all():
        page.wait_for_timeout(150)  # Chromium drops more than ten downloads a second
        with page.expect_download() as waiting:
            link.click()
        saved = waiting.value
        with open(saved.path(), newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
        assert lines == page.report.page.downloads[saved.suggested_filename]
        assert len(lines) > 1
        assert {len(line) for line in lines} == {len(lines[0])}
    assert page.messages == []


def test_it_can_be_printed_from_a_dark_screen(show):
    page = show("regression", scheme="dark")
    file = page.pdf(format="A4", print_background=True)
    assert file.startswith(b"%PDF")
    assert 3 <= file.count(b"/Type /Page\n") + file.count(b"/Type /Page ") <= 15
    page.emulate_media(media="print", color_scheme="dark")
    ground = page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor")
    assert luminance(ground) > 0.9
    assert not page.locator("nav").is_visible()
    assert not page.locator(".save").first.is_visible()
    assert page.locator(".card").first.evaluate("one => getComputedStyle(one).breakInside") == "avoid"
