"""Write the tables of guide pages from the results of benchmarks: `python docs/tables.py` after a new run.

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->`, where NAME is that of the results.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

__all__ = ["PAGES", "fill_tables"]

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGES = ("guide/coverage.md", "guide/distribution.md", "guide/scale.md", "guide/service.md")
_SECONDS_OF_A_DAY = 86_400
PLACE = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", flags=re.DOTALL)


def fill_tables(page: str) -> str:
    """Return the text of a page with its tables as the results say."""
    return PLACE.sub(lambda found: make_place(found[1]), (DOCS / page).read_text())


def make_place(name: str) -> str:
    path = RESULTS / f"{name}.json"
    table = f"\n{TABLES[name](json.loads(path.read_text()))}\n\n" if path.is_file() else ""
    return f"<!-- {name} -->\n{table}<!-- end of {name} -->"


def make_online_table(result: dict[str, Any]) -> str:
    streams = list(dict.fromkeys(row["stream"] for row in result["rows"]))
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    figures = {(row["stream"], row["method"]): row for row in result["rows"]}
    shown = {
        key: f"{row['worst rolling']:.2f} / {row['Winkler']:.2f} / {row['infinite']:.1%}"
        for key, row in figures.items()
    }
    body = [[method, *(shown[stream, method] for stream in streams)] for method in methods]
    return join_rows(["worst 500 / Winkler / infinite", *streams], body)


def make_distribution_table(result: dict[str, Any]) -> str:
    methods = [
        name.removesuffix(" crps") for name in result["rows"][0] if name.endswith(" crps") and "ratio" not in name
    ]
    body = [
        [row["set"], *(f"{row[f'{method} crps']:.3f} / {row[f'{method} winkler']:.2f}" for method in methods)]
        for row in result["rows"]
    ]
    means = [result[f"geometric_mean_of_{figure}_ratios"] for figure in ("crps", "winkler")]
    rivals = [result[f"best_rival_by_{figure}"] for figure in ("crps", "winkler")]
    wins = [result[f"best_or_within_one_standard_error_by_{figure}"] for figure in ("crps", "winkler")]
    nearly = ", or within one standard error of the best," if result["n_splits"] > 1 else ""
    return (
        f"## Against others\n\nTen sets, random splits: {result['n_splits']}, and three settings for each method to "
        "choose from on its training rows; see\n[the benchmark](../benchmarks/distribution.md).\n\n"
        f"{join_rows(['CRPS / Winkler', *methods], body)}\n\n"
        f"Against the best single rival over all sets, HCM's CRPS is {means[0]:.2f} times as large ({rivals[0]}) and "
        f"its Winkler score\n{means[1]:.2f} times ({rivals[1]}), as geometric means. It is best{nearly} on {wins[0]} "
        f"and {wins[1]} of {len(body)} sets."
    )


def make_scale_table(result: dict[str, Any]) -> str:
    """Show the speed of each backbone, and the cores that rows of a day keep busy with the faster of its two files."""
    body = []
    for row in result["backbones"]:
        speeds = [row["rows/s .onsphere"], row.get("rows/s .onnx")]
        fastest = max(filter(None, speeds))
        cores = [math.ceil(n_rows / _SECONDS_OF_A_DAY / fastest) for n_rows in (10**9, 10**10, 10**12)]
        body.append([row["backbone"], *(f"{speed:,}" if speed else "" for speed in speeds), *map("{:,}".format, cores)])
    head = ["backbone", "rows/s of .onsphere", "rows/s of .onnx", *(f"cores for {n}" for n in ("10⁹", "10¹⁰", "10¹²"))]
    runs = {row["run"]: row for row in result["rows"]}
    killed = [runs["node killed"], runs["driver killed"]]
    is_same = all(row["same"] and row["answers"] == row["rows"] for row in killed)
    peaks = [row["peak MB"] for row in result["memory"]]
    sizes = [row["rows"] // 10**6 for row in result["memory"]]
    models = list(dict.fromkeys(row["model"] for row in result["overhead"]))
    ratios = {name: [row["ratio"] for row in result["overhead"] if row["model"] == name] for name in models}
    overhead = [
        f"- One process with the {name} model took {beside[0]:.2f} times the processor time of a bare loop that reads, "
        f"calls `assess` and\n  writes, and {beside[1]:.2f} times that of one that calls `predict` of the backbone "
        "alone."
        for name, beside in ratios.items()
    ]
    return (
        f"{join_rows(head, body)}\n\nFour columns, all frames; see [the benchmark](../benchmarks/scale.md). With "
        f"{runs['local']['rows'] // 10**6} million rows of a small model on two cores:\n\n"
        f"- Two processes were {result['two_processes_over_one']:.2f} times as fast as one. Ray on one node, with its "
        f"start, took {result['ray_over_local']:.2f} times as long as the local pool.\n"
        f"- With a node killed half-way, and with the driver killed and the call repeated, the answers were "
        f"{'the same, byte by byte' if is_same else '**not the same**'}.\n"
        f"- One process had a peak of {min(peaks):.0f} to {max(peaks):.0f} MB for {sizes[0]} to {sizes[-1]} million "
        "rows.\n" + "\n".join(overhead)
    )


def make_service_table(result: dict[str, Any]) -> str:
    """Show the speed of versions and rivals side by side, and single rows under attack."""
    shown = {"now": "this version", "before": "the version before"}
    speeds = {(row["version"], row["request"], row["connections"]): row for row in result["side_by_side"]}
    kinds = [("one row", 8), ("one row", 32), ("1,000 rows", 4)]
    body = []
    for version in dict.fromkeys(version for version, _, _ in speeds):
        found = [speeds.get((version, *kind)) for kind in kinds]
        slowest = "" if found[1] is None else f"{found[1]['p99 ms']:.0f} ms"
        rates = [f"{row['requests/s']:,.{row['requests/s'] < 100:d}f}" if row else "" for row in found]
        body.append([shown.get(version, version), *rates[:2], slowest, rates[2]])
    head = [
        "requests per second",
        "8 connections",
        "32 connections",
        "99 % of these within",
        "1,000 rows each, 4 connections",
    ]
    native = [
        [row["file"], str(row["connections"]), f"{row['requests/s']:.0f}", f"{row['p99 ms']:.0f} ms"]
        for row in result["rows"]
    ]
    parts = [
        join_rows(head, body),
        "With one more client that compared each of its answers with the model's, "
        f"{sum(row['wrong'] for row in result['rows'])} of which were wrong:",
        join_rows(["file", "connections", "requests per second", "99 % within"], native),
    ]
    if "attacks" in result:
        attacks = {(row["version"], row["attack"]): row for row in result["attacks"]}
        versions = [name for name in shown if (name, "none") in attacks]
        besieged = [
            [attack, *(f"{attacks[name, attack]['p99 ms']:,.0f} ms" for name in versions)]
            for attack in dict.fromkeys(attack for _, attack in attacks)
        ]
        worst, calm = result["largest p99 under attack, times calm"], attacks["now", "none"]["p99 ms"]
        parts += [
            "Single rows of one client, 99 % of which were answered within the time shown, while another one does the "
            "same again and\nagain:",
            join_rows(["meanwhile", *(shown[name] for name in versions)], besieged),
            f"The largest is {worst:.1f} times that of calm ({calm:.0f} ms).",
        ]
    if "memory_growth" in result:
        parts.append(
            f"After {result['memory_requests']:,} requests the memory was {result['memory_growth']:+.1%} against that "
            "after the first tenth."
        )
    if "lost_by_kill_9" in result:
        lost, n_acknowledged = result["lost_by_kill_9"], result["acknowledged_before_kill_9"]
        parts.append(f"`kill -9` under load lost {lost} of {n_acknowledged:,} acknowledged answers.")
    return "\n\n".join(parts)


def join_rows(head: list[str], body: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [head, *body]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


TABLES = {
    "online": make_online_table,
    "distribution": make_distribution_table,
    "scale": make_scale_table,
    "service_load": make_service_table,
}

if __name__ == "__main__":
    for page in PAGES:
        (DOCS / page).write_text(fill_tables(page))
