"""Settings of every test."""

import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on the machine and is no property of the code. CI tries the same examples each time;
# make test-long tries many more.
settings.register_profile(
    "onsphere",
    deadline=None,
    max_examples=300 if "ONSPHERE_LONG" in os.environ else 60,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("onsphere")


@pytest.fixture(scope="module")
def browser():
    """A real Chromium, which asks for nothing by itself; until it is closed its driver holds the event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    quiet = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"]
    quiet += ["disable-background-networking", "disable-component-update"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=[f"--{option}" for option in quiet])
        yield browser
        browser.close()
