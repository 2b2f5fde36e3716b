"""The live page in a real Chromium: drawn, alive, readable, and usable by keyboard and screen reader."""

import json
import os
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from onsphere.service import hash_key, make_key

PICTURES = os.environ.get("ONSPHERE_PICTURES")  # a folder to keep screenshots in, to be looked at


@pytest.fixture
def show(browser):
    """Open the page of a service; what the browser says and asks for is kept."""
    opened = []

    def show(service, *, path="/", scheme="light", width=1280):
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        opened.append(page)
        page.messages, page.requested = [], []
        page.on("console", lambda message: page.messages.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: page.messages.append(str(error)))
        page.on("request", lambda request: page.requested.append(request.url))
        page.goto(service.url + path)
        return page

    yield show
    for page in opened:
        page.close()


def keep(page, name):
    if PICTURES:
        page.screenshot(path=f"{PICTURES}/{name}.png", full_page=True)


def send_requests(service, helpers, n_far=5):
    for index in range(40):
        service.assess({**helpers.row, "size": index / 20 - 1.0})
    for _ in range(n_far):
        service.assess({**helpers.far, "id": 7})


def test_it_shows_requests_as_they_come(running, show, helpers):
    service = running()
    send_requests(service, helpers)
    page = show(service)
    page.get_by_text("no sign of drift").or_(page.get_by_text("Drift alarm")).first.wait_for()
    assert page.messages == []
    assert all(address.startswith(service.url) for address in page.requested)
    assert "price by HCMRegressor (kernel)" in page.locator("#model").inner_text()
    labels = page.get_by_role("img").evaluate_all("all => all.map(one => one.ariaLabel)")
    assert len(labels) == 4
    assert "5 above the threshold" in labels[1]
    assert labels[2].startswith("Shortfall of the last 45 requests")
    assert page.locator("#novelty circle").count() == 45
    assert page.locator("#novelty .band").count() == 1
    assert page.locator("#uncertainty circle").count() == 45
    assert page.locator("#uncertainty circle.bad").count() == 5
    assert page.locator("#rejected tr").count() == 5
    assert "9" in page.locator("#rejected tr").first.inner_text()
    assert page.locator("#accepted").inner_text() == "88.9 %"
    before = page.locator("#uncertainty circle").count()
    service.assess(helpers.row)
    page.locator("#uncertainty circle").nth(before).wait_for()
    keep(page, "page-light")


def test_one_row_is_tried_by_keyboard_alone(running, show, helpers):
    service = running()
    page = show(service)
    page.get_by_label("size").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the form"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    for text in ("0.5", "3", "a"):
        page.keyboard.type(text)
        page.keyboard.press("Tab")
    page.keyboard.press("t")
    page.keyboard.press("Tab")
    page.keyboard.type("2024-03-01")
    page.keyboard.press("Enter")
    answer = page.get_by_role("region", name="Answer")
    answer.get_by_text("Accepted").wait_for()
    assert "between" in answer.get_by_role("img").get_attribute("aria-label")
    assert answer.locator(".interval").count() == 1
    page.get_by_label("size").fill("9")
    page.get_by_label("size").press("Enter")
    answer.get_by_text("Rejected", exact=False).wait_for()
    answer.get_by_text("above the threshold").wait_for()
    assert "Novelty: 1 " in answer.inner_text()
    assert "Noise: " in answer.inner_text()
    assert page.messages == []
    keep(page, "page-answer")
    service.service._live = (0.0, {})
    live = service.http.get("/v1/live").json()
    assert (live["drift"]["rows_seen"], live["rejected"]) == (0, [])  # nobody raises the alarm by trying rows


def test_a_wrong_field_is_shown_and_reached(running, show):
    page = show(running())
    page.get_by_label("size").fill("many")
    page.get_by_role("button", name="Assess").click()
    page.get_by_text("Expected a number in the column size").wait_for()
    assert page.get_by_label("size").get_attribute("aria-invalid") == "true"
    assert page.evaluate("document.activeElement.dataset.column") == "size"
    page.get_by_label("size").fill("")
    page.get_by_role("button", name="Assess").click()
    page.locator(".verdict").wait_for()
    assert page.locator("[aria-invalid]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_alarm_names_what_moved_and_can_be_reset(running, show, helpers, scheme):
    service = running()
    send_requests(service, helpers, n_far=0)
    for _ in range(4):
        service.assess(*[{**helpers.far, "shop": "new one"}] * 50)
    page = show(service, scheme=scheme)
    page.get_by_role("status").get_by_text("Drift alarm").wait_for()
    page.get_by_role("status").get_by_text("by the ").wait_for()
    moved = page.locator("#hints li").all_inner_texts()
    assert any(hint.startswith("size: mean +") for hint in moved)
    assert any(hint.startswith("shop: share of '(other)'") for hint in moved)
    assert page.messages == []
    keep(page, f"page-{scheme}-alarm")
    page.get_by_role("button", name="Start the drift monitor again").click()
    page.get_by_text("no sign of drift").wait_for()
    assert not page.locator("#hints").is_visible()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("table", "The model was calibrated by cross-validation, so a false alarm is more likely than 1 %."),
        ("array", "A false alarm has a chance of at most 1 %, however long one looks."),
        (None, "If the model was calibrated on rows kept apart for it, a false alarm has a chance of at most 1 %"),
        ("plain", None),
    ],
)
def test_the_stated_false_alarm_rate_is_true(running, show, model, expected):
    service = running(model or "table")
    if model is None:  # as of a file that does not say
        live = service.service.served.live
        live.facts = replace(live.facts, calibrated_by=None)
    page = show(service)
    page.get_by_text("Everything works").wait_for()
    found = page.locator("#promise").inner_text().replace("\u00a0", " ")
    assert found.startswith(expected) if expected else found == ""


def test_a_store_that_does_not_work_is_shown(running, show, helpers, tmp_path):
    service = running(store=str(tmp_path / "none" / "s.sqlite"))
    page = show(service)
    page.get_by_role("status").get_by_text("answered but not stored").wait_for()
    page.get_by_role("button", name="Assess").click()
    page.locator(".verdict").wait_for()


def test_a_model_that_hangs_is_shown(running, show):
    service = running()
    service.service.served.live.small.trouble = "no memory"
    show(service).get_by_text("The model did not come back from a request, and is loaded again: no memory.").wait_for()


def test_a_service_that_is_gone_is_shown(running, show):
    service = running()
    page = show(service)
    page.get_by_text("no sign of drift").wait_for()
    page.route("**/v1/**", lambda route: route.abort())
    page.get_by_role("status").get_by_text("does not answer").wait_for()


def test_a_key_is_asked_for_and_kept_in_the_tab(running, show):
    key = make_key()
    page = show(running(api_keys=(hash_key(key),)))
    page.get_by_label("Key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("The key is not known").wait_for()
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("no sign of drift").wait_for()
    assert not page.locator("#key-form").is_visible()


def overlap(one, other):
    return (
        min(one["right"], other["right"]) - max(one["left"], other["left"]) > 1
        and min(one["bottom"], other["bottom"]) - max(one["top"], other["top"]) > 1
    )


def test_columns_that_moved_without_an_alarm_are_mentioned(running, show, helpers):
    service = running()
    frame = helpers.table(150, seed=3).assign(rooms=1.0).drop(columns=["id", "site", "price"])
    service.assess(*json.loads(frame.assign(day="2024-03-01").to_json(orient="records")))
    page = show(service)
    page.get_by_role("status").get_by_text("no drift alarm, but columns moved").wait_for()
    assert page.get_by_text("no sign of drift").count() == 0


def label_rows(service, n_rows, off):
    """Assess rows of an array, and label them with values that are off by some standard errors of the noise."""
    X = np.random.default_rng(1).normal(size=(n_rows, 2))
    rows = [{"x0": x0, "x1": x1, "key": index} for index, (x0, x1) in enumerate(X.tolist())]
    values = (X @ [1.0, 2.0] + 0.1 * off * np.random.default_rng(2).normal(size=n_rows)).tolist()
    for start in range(0, n_rows, 100):
        taken = slice(start, start + 100)
        assert service.assess(*rows[taken], params={"key": "key"}).json()["recorded"]
        labels = [{"key": start + index, "value": value} for index, value in enumerate(values[taken])]
        assert service.http.post("/v1/labels", json={"labels": labels}).json()["taken"] == len(labels)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_coverage_is_shown_once_labels_have_come(running, show, helpers, scheme, width):
    service = running("array")
    page = show(service, scheme=scheme, width=width)
    page.get_by_text("no sign of drift").wait_for()
    assert not page.locator("#coverage-figure").is_visible()
    label_rows(service, 700, off=2)
    page.locator("#coverage-figure").wait_for()
    live = service.http.get("/v1/live").json()["labels"]
    drawn, label = (
        page.locator("#coverage svg"),
        f"{100 * live['coverage']:.3g} % of the latest 500 labels were covered",
    )
    helpers.until(
        lambda: drawn.get_attribute("aria-label").replace("\u00a0", " ") == f"{label}, promised 90 %.", seconds=10.0
    )
    assert page.locator("#coverage .path").get_attribute("d").count("L") == len(live["rolling"]) - 1
    assert page.locator("#error").inner_text().startswith("Mean absolute error among them: 0.")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.messages == []
    keep(page, f"page-coverage-{scheme}-{width}")


def test_labels_that_were_not_covered_are_told_at_the_top(running, show):
    service = running("array")
    label_rows(service, 100, off=20)
    page = show(service)
    page.get_by_text("of the latest 100 labels were covered, and 90 % were promised.").wait_for()
    assert not page.get_by_text("no sign of drift").is_visible()


def test_the_error_of_a_model_without_intervals_is_shown(running, show):
    service = running("plain")
    label_rows(service, 3, off=1)
    page = show(service)
    page.get_by_text("The model has no intervals or sets.").wait_for()
    assert page.locator("#error").inner_text().startswith("Mean absolute error among them: 0.")


@pytest.mark.parametrize(("model", "fill"), [("classes", {"a": "1", "b": "1"}), ("several", {"x0": "1", "x1": "1"})])
def test_classes_and_several_outputs_are_drawn(running, show, model, fill):
    page = show(running(model))
    for label, text in fill.items():
        page.get_by_label(label, exact=True).fill(text)
    page.get_by_role("button", name="Assess").click()
    picture = page.get_by_role("region", name="Answer").get_by_role("img")
    picture.wait_for()
    shown = picture.evaluate("one => one.textContent")
    assert ("✓ up" in shown) if model == "classes" else ("north" in shown and "south" in shown)
    facts = page.get_by_role("region", name="Answer").locator(".note").inner_text()
    assert ("Set with coverage 90 %: up" if model == "classes" else "Coverage of the interval: 90 %") in facts
    texts = picture.locator("text").evaluate_all("all => all.map(one => one.getBoundingClientRect().toJSON())")
    assert not [one for one, other in combinations(texts, 2) if overlap(one, other)]
    assert page.messages == []
    keep(page, f"page-{model}")


def test_a_model_without_calibration_has_a_page_too(running, show):
    service = running("plain")
    service.assess([0.5, 0.5])
    page = show(service)
    page.get_by_text("nothing to compare with").wait_for()
    page.get_by_role("status").get_by_text("Drift is not watched").wait_for()
    page.get_by_label("x0").fill("1")
    page.get_by_role("button", name="Assess").click()
    page.get_by_text("the model accepts no missing ones").wait_for()
    page.get_by_label("x1").fill("1")
    page.get_by_role("button", name="Assess").click()
    page.get_by_text("No threshold is set").wait_for()


def luminance(colour):
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(part) / 255 for part in colour[4:-1].split(","))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_it_can_be_read_in_light_and_dark_narrow_and_wide(running, show, helpers, scheme, width):
    service = running()
    send_requests(service, helpers, n_far=1)
    page = show(service, scheme=scheme, width=width)
    page.locator("#rejected td.wide").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    style = "one => [getComputedStyle(one).color, getComputedStyle(one).fill]"
    card = page.locator(".card").nth(1).evaluate("one => getComputedStyle(one).backgroundColor")
    assert (luminance(card) < 0.1) == (scheme == "dark")
    inks = {
        what: page.locator(what).first.evaluate(style)[0] for what in ("h1", ".note", "dt", "dd", "td", "label", "a")
    }
    inks |= {what: page.locator(what).first.evaluate(style)[1] for what in ("svg text", "svg text.limit-text")}
    for what, ink in inks.items():
        bright, dim = sorted((luminance(ink), luminance(card)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, what
    unlabelled = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter(one => !one.labels.length).map(one => one.id)"
    )
    assert unlabelled == []
    keep(page, f"page-{scheme}-{width}")


def test_the_api_is_documented_without_a_network(running, show):
    service = running()
    page = show(service, path="/docs")
    page.get_by_role("heading", name="POST /v1/assess").wait_for()
    page.get_by_text("Request", exact=True).first.click()
    assert "rooms" in page.locator("details[open] pre").inner_text()
    page.get_by_text("200 Successful Response", exact=True).first.click()
    assert "Whether to trust the row" in page.locator("details[open] pre").last.inner_text()
    assert all(address.startswith(service.url) for address in page.requested)
    assert page.messages == []
