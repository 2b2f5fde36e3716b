"""The structure of the package: who imports whom, what is public, and how files, functions and docstrings are named."""

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

import onsphere

SOURCE = Path(onsphere.__file__).parent

# Each row may import from the rows above it and from its own.
LAYERS = [
    {"errors", "_internal"},
    {"sphere", "metrics"},
    {"calibration", "assessment"},
    {"decision", "persistence"},
    {"models"},
    {"drift", "evaluation", "plots", "torch"},
    {"baselines", "mlflow", "scorers"},
    {"comparison"},
    {"table"},
    {"export", "report"},
    {"scale", "service"},
    {"cli", "demo"},
]
# The rooms that may import a large or optional library at the top of a file; others import it when they use it.
HEAVY = {
    "torch": {"torch", "baselines"},
    "pandas": set(),
    "matplotlib": set(),
    "rich": {"demo", "cli"},
    "typer": {"cli"},
    "pyarrow": set(),
    "skops": set(),
    "jinja2": set(),
    "h5py": set(),
    "onnx": set(),
    "onnxruntime": set(),
    "skl2onnx": set(),
    "onnxscript": set(),
    "fastapi": {"service"},
    "ray": set(),
    "mlflow": set(),
    "polars": set(),
    "lightgbm": set(),
    "xgboost": set(),
    "catboost": set(),
}

# The rooms that need torch; others may not import it even when they use it, except where torch itself makes the graph.
TORCH_ROOMS = {"torch", "baselines"}
USES_TORCH = {"export/backbone_graphs.py"}
# The same job for scikit-learn and for torch.
SAME_NAME = {"regressor.py"}
# Quantities, which are named like those of metrics and scores everywhere.
QUANTITIES = {"anchored", "expected_calibration_error", "expected_error", "signed"}
PARTICIPLE = re.compile(r"(ed|told|said|shown|known|kept|drawn|made)$")
NOT_A_PARTICIPLE = re.compile(r"(seed|need|feed|embed|speed|shared|sorted|fixed|named|unchanged)$")
RIDDLE = re.compile(r"(What|That|Of|Which|Whose|Where|How)\b")

MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))


def get_room(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def find_layer(room):
    return next((index for index, layer in enumerate(LAYERS) if room in layer), None)


def list_imports(tree):
    """Yield the names of imported modules, each with whether the import is at the top of the file."""
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            for alias in node.names:
                yield (f"onsphere.{alias.name}" if node.module == "onsphere" else node.module), node in top


def find_wrong_arrows(room, tree):
    for name, _ in list_imports(tree):
        parts = name.split(".")
        if parts[0] != "onsphere":
            continue
        # A name of the package itself may come from any room.
        layer = find_layer(parts[1]) if len(parts) > 1 else None
        if (len(LAYERS) - 1 if layer is None else layer) > find_layer(room):
            yield f"{room} imports {parts[1]}"


def find_heavy_imports(room, tree):
    for name, at_top in list_imports(tree):
        library = name.split(".")[0]
        if at_top and room not in HEAVY.get(library, {room}):
            yield library


def find_participles(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in QUANTITIES:
            decorators = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
            first = node.name.strip("_").split("_")[0]
            is_participle = PARTICIPLE.search(first) and not NOT_A_PARTICIPLE.search(first)
            if is_participle and not decorators & {"property", "cached_property"}:
                yield node.name


def find_riddles(tree):
    """Yield the docstrings of functions, classes and modules that start with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if RIDDLE.match(first):
                yield first


def find_repeated_names(paths):
    counts = Counter(path.name for path in paths)
    return sorted(name for name, n in counts.items() if n > 1 and name not in {"__init__.py", "__main__.py"})


def sort_names(names):
    """Sort as ruff does: constants, then classes, then the rest."""
    return sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def find_wrong_exports(names, module):
    """Yield the names in `__all__` that do not exist, and those out of order."""
    yield from (f"{name} does not exist" for name in names if not hasattr(module, name))
    yield from (f"{name} is out of order" for name, due in zip(names, sort_names(names), strict=True) if name != due)


# --- imports ---


@every_module
def test_imports_point_one_way(path):
    assert find_layer(get_room(path)) is not None, "a new room must be given its layer"
    assert list(find_wrong_arrows(get_room(path), ast.parse(path.read_text()))) == []


def test_the_check_finds_an_import_that_points_up():
    for line in (
        "from onsphere.models import HCMRegressor",
        "def f():\n    import onsphere.cli",
        "from onsphere import models",
        "from onsphere import HCMRegressor",
    ):
        assert list(find_wrong_arrows("sphere", ast.parse(line))) != []
    with pytest.raises(AssertionError, match="whole path"):
        list(find_wrong_arrows("sphere", ast.parse("from .models import HCMRegressor")))
    assert list(find_wrong_arrows("models", ast.parse("from onsphere import sphere"))) == []


@every_module
def test_heavy_libraries_are_imported_where_they_are_used(path):
    assert list(find_heavy_imports(get_room(path), ast.parse(path.read_text()))) == []


def imports_torch(tree):
    return any(name.split(".")[0] == "torch" for name, _ in list_imports(tree))


@every_module
def test_torch_is_imported_only_under_torch_and_baselines(path):
    allowed = get_room(path) in TORCH_ROOMS or str(path.relative_to(SOURCE)) in USES_TORCH
    assert allowed or not imports_torch(ast.parse(path.read_text()))


def test_the_checks_find_heavy_imports():
    assert list(find_heavy_imports("models", ast.parse("import torch.nn as nn"))) == ["torch"]
    assert list(find_heavy_imports("models", ast.parse("def f():\n    import pandas"))) == []
    assert list(find_heavy_imports("cli", ast.parse("import typer"))) == []
    for line in ("import torch", "from torch import nn", "def f():\n    import torch.nn"):
        assert imports_torch(ast.parse(line))
    assert not imports_torch(ast.parse("import onsphere.torch, torchmetrics"))


def test_the_package_imports_with_no_extra_installed():
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(HEAVY)}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocker())
import onsphere
print(len(onsphere.__all__))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == len(onsphere.__all__)


# --- public names ---


def test_the_public_names_are_these():
    assert sorted(onsphere.__all__) == [
        "AcceptShare",
        "Assessment",
        "Calibration",
        "Comparison",
        "DriftMonitor",
        "Duplicate",
        "FalseAlarm",
        "FrozenHead",
        "HCMClassifier",
        "HCMRegressor",
        "InvalidInputError",
        "InvalidTypeError",
        "Lift",
        "MaxErrorRate",
        "MaxMeanError",
        "MissingExtraError",
        "NotCalibratedError",
        "NotFittedError",
        "Novelty",
        "OneHot",
        "OnsphereError",
        "OnsphereWarning",
        "Polar",
        "SphericalOutput",
        "Tolerance",
        "Torus",
        "__version__",
        "compare",
        "export_onnx",
        "load",
        "select",
        "write_report",
    ]
    assert all(hasattr(onsphere, name) for name in onsphere.__all__)
    with pytest.raises(AttributeError, match="no attribute 'HCMTransformer'"):
        _ = onsphere.HCMTransformer


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_exported_names_exist_and_are_sorted(path):
    name = ".".join(path.parent.relative_to(SOURCE.parent).parts)
    module = import_module(name)
    assert list(find_wrong_exports(getattr(module, "__all__", []), module)) == []


def test_the_check_finds_exports_that_are_missing_or_out_of_order():
    assert list(find_wrong_exports(["Lift", "load"], onsphere)) == []
    assert list(find_wrong_exports(["Lift", "lift"], onsphere)) == ["lift does not exist"]
    assert list(find_wrong_exports(["load", "Lift"], onsphere)) == ["load is out of order", "Lift is out of order"]


# --- names and docstrings ---


def test_files_have_different_names():
    assert set(find_repeated_names(MODULES)) <= SAME_NAME
    assert find_repeated_names([Path("table/columns.py"), Path("drift/columns.py")]) == ["columns.py"]
    assert find_repeated_names([Path("table/__init__.py"), Path("drift/__init__.py")]) == []


@every_module
def test_functions_are_named_by_verbs(path):
    assert list(find_participles(ast.parse(path.read_text()))) == []


def test_the_check_finds_participles():
    for name in ("measured", "_told", "_checked_x", "drawn_rows", "made"):
        for kind in ("def", "async def"):
            assert list(find_participles(ast.parse(f"class A:\n    {kind} {name}(self): ..."))) == [name]
        assert list(find_participles(ast.parse(f"@property\ndef {name}(self): ..."))) == []
    for name in ("measure", "seed_rows", "embed", "expected_error"):
        assert list(find_participles(ast.parse(f"def {name}(): ..."))) == []


@every_module
def test_docstrings_start_with_a_verb_or_a_noun(path):
    assert list(find_riddles(ast.parse(path.read_text()))) == []


def test_the_check_finds_docstrings_that_start_with_a_question_word():
    for word in ("What", "That", "Of", "Which", "Whose", "Where", "How"):
        line = f"{word} a row holds."
        for code in (f'"""{line}"""', f'class A:\n    """{line}"""', f'def f():\n    """{line}\n\n    More."""'):
            assert list(find_riddles(ast.parse(code))) == [line]
    assert list(find_riddles(ast.parse('def f():\n    """Return what a row holds."""'))) == []
