"""Write the results of a benchmark as JSON and Markdown, with the machine and the versions."""

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def describe_machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
    packages = ("onsphere", "numpy", "scipy", "scikit-learn")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def record(name: str, *, about: str, rows: list[dict], **more) -> None:
    """Write results/NAME.json and results/NAME.md, and print the table."""
    RESULTS.mkdir(exist_ok=True)
    command = f"python benchmarks/{Path(sys.argv[0]).name}"
    result = {"name": name, "about": about, "command": command, **more, "rows": rows, "machine": describe_machine()}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    tables = {
        key: value for key, value in more.items() if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    lines = [
        f"# {name}",
        "",
        about,
        "",
        *_list_table(rows),
        *(line for key, table in tables.items() for line in (f"## {key.replace('_', ' ')}", "", *_list_table(table))),
        *(f"- {key.replace('_', ' ')}: {_format_cell(value)}" for key, value in more.items() if key not in tables),
        "",
        f"`{command}` on {result['machine']['cpu']}, {result['machine']['cores']} cores, Python "
        f"{result['machine']['python']}, "
        + ", ".join(f"{key} {value}" for key, value in result["machine"]["versions"].items())
        + ".",
        "",
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(lines))
    print("\n".join(lines))


def _list_table(rows: list[dict]) -> list[str]:
    head = list(rows[0])
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(_format_cell(row.get(column)) for column in head) + " |" for row in rows),
        "",
    ]


def _format_cell(value) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}"
