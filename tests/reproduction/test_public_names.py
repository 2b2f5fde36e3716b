"""The paper is onsphere's first user: it imports only what every user can import."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import reproduction

ROOT = Path(reproduction.__file__).parent
# The modules with a page in docs/reference.
PUBLIC = {
    "onsphere",
    "onsphere.baselines",
    "onsphere.calibration",
    "onsphere.decision",
    "onsphere.drift",
    "onsphere.errors",
    "onsphere.export",
    "onsphere.metrics",
    "onsphere.models",
    "onsphere.plots",
    "onsphere.report",
    "onsphere.sphere",
    "onsphere.sphere.geometry",
    "onsphere.sphere.scores",
    "onsphere.table",
    "onsphere.torch",
}


def find_private_imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] == "onsphere" and name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onsphere":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_listed = node.module in PUBLIC and alias.name in import_module(node.module).__all__
                if name not in PUBLIC and not is_listed:
                    yield name


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_paper_imports_only_public_names(path):
    assert list(find_private_imports(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "line",
    [
        "from onsphere._internal.validation import check_number",
        "from onsphere import _internal",
        "from onsphere.torch.regressor import TorchRegressor",
        "from onsphere.baselines import check_table",
        "import onsphere.models.backbone",
        "def f():\n    from onsphere.torch import training",
    ],
)
def test_a_private_import_would_be_found(line):
    assert len(list(find_private_imports(ast.parse(line)))) == 1


def test_public_imports_are_not_reported():
    lines = "import onsphere\nfrom onsphere import HCMRegressor, metrics\nfrom onsphere.sphere import scores, Lift\n"
    assert list(find_private_imports(ast.parse(lines))) == []
