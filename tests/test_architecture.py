"""Who may import whom, and what the package shows."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import onsphere

SOURCE = Path(onsphere.__file__).parent

# Each row may import from the rows above it and from its own.
LAYERS = [
    {"errors", "_internal"},
    {"sphere", "metrics"},
    {"calibration", "assessment"},
    {"decision", "drift"},
    {"persistence"},
    {"models"},
    {"torch", "plots", "evaluation"},
    {"baselines"},
    {"comparison"},
    {"table"},
    {"report", "export"},
    {"service"},
    {"demo", "cli"},
]
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
}


def room_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def layer_of(room):
    return next((index for index, layer in enumerate(LAYERS) if room in layer), None)


def imports_of(tree):
    """Module names a file imports, with whether the import is at the top of the file."""
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole path"
            for alias in node.names:
                yield (f"onsphere.{alias.name}" if node.module == "onsphere" else node.module), node in top


def wrong_arrows(room, tree):
    for name, _ in imports_of(tree):
        parts = name.split(".")
        if parts[0] != "onsphere":
            continue
        # A name of the package itself may come from any room.
        layer = layer_of(parts[1]) if len(parts) > 1 else None
        if (len(LAYERS) - 1 if layer is None else layer) > layer_of(room):
            yield f"{room} imports {parts[1]}"


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    assert layer_of(room_of(path)) is not None, "a new room must be given its layer"
    assert list(wrong_arrows(room_of(path), ast.parse(path.read_text()))) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_libraries_are_imported_inside(path):
    for name, at_top in imports_of(ast.parse(path.read_text())):
        library = name.split(".")[0]
        assert not (at_top and room_of(path) not in HEAVY.get(library, {room_of(path)})), f"{library} at the top"


def test_the_walk_would_see_a_wrong_arrow():
    assert list(wrong_arrows("sphere", ast.parse("from onsphere.models import HCMRegressor"))) != []
    assert list(wrong_arrows("sphere", ast.parse("def f():\n    import onsphere.cli"))) != []
    assert list(wrong_arrows("sphere", ast.parse("from onsphere import models"))) != []
    assert list(wrong_arrows("sphere", ast.parse("from onsphere import HCMRegressor"))) != []
    with pytest.raises(AssertionError, match="whole path"):
        list(wrong_arrows("sphere", ast.parse("from .models import HCMRegressor")))
    assert list(wrong_arrows("models", ast.parse("from onsphere import sphere"))) == []


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
        "MissingExtraError",
        "NotCalibratedError",
        "NotFittedError",
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
        "write_report",
    ]
    assert all(hasattr(onsphere, name) for name in onsphere.__all__)
    with pytest.raises(AttributeError, match="no attribute 'HCMTransformer'"):
        _ = onsphere.HCMTransformer


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
