"""Settings of every test."""

import os
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings

# No deadline: the time of an example depends on the machine. CI tries the same examples each time, and make test-long
# tries many more.
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
    """Start a real Chromium that sends no requests of its own; its driver holds the event loop until it is closed."""
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


# A table as people have them: text, gaps, a date, an id and a constant column.
CITIES = {"Berlin": 3.0, "Paris": 9.0, "Rome, IT": 5.0, "Zürich": 11.0}


def make_houses(n, seed):
    rng = np.random.default_rng(seed)
    size, city = rng.uniform(20, 200, n), rng.choice(list(CITIES), n, p=[0.4, 0.3, 0.2, 0.1])
    sold = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, n), unit="D")
    heated = rng.choice([True, False], n)
    price = size * np.array([CITIES[name] for name in city]) * (1 + 0.1 * heated)
    price += rng.normal(size=n) * (5 + 0.3 * size * (city == "Paris"))
    frame = pd.DataFrame(
        {
            "house_id": [f"H{seed}-{index:06d}" for index in rng.permutation(n)],
            "size": size.round(1),
            "city": city,
            "sold": sold.strftime("%Y-%m-%d"),
            "heating": heated,
            "age": rng.integers(0, 80, n).astype(float),
            "country": "EU",
            "rooms": rng.integers(1, 6, n),
            "price": price.round(2),
        }
    )
    frame.loc[rng.random(n) < 0.1, "age"] = np.nan
    frame.loc[rng.random(n) < 0.05, "city"] = None
    return frame


@pytest.fixture(scope="session")
def houses():
    return make_houses


@pytest.fixture(scope="session")
def house_model(tmp_path_factory):
    """Return a folder with houses.csv, and the model.onsphere that the command line fitted to it."""
    from typer.testing import CliRunner

    from onsphere.cli import app

    folder = tmp_path_factory.mktemp("houses")
    make_houses(260, 0).to_csv(folder / "houses.csv", index=False)
    command = ["fit", f"{folder}/houses.csv", "--target", "price", "--backbone", "kernel", "--quiet"]
    result = CliRunner().invoke(app, [*command, "--save", f"{folder}/model.onsphere"])
    assert (result.exit_code, result.output) == (0, "")
    return folder
