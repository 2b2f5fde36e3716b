"""Which versions and extras are installed."""

from importlib.metadata import version

import pytest

from onsphere.cli import info as module
from onsphere.cli.info import find_installation, split_requirements


def test_versions_and_extras_are_those_of_this_environment():
    found = find_installation()
    assert found.versions["numpy"] == version("numpy")
    assert found.versions["onsphere"] == version("onsphere")
    assert found.extras["torch"]["torch"] == version("torch")
    assert {"torch", "report", "cli", "export", "serve", "mlflow", "scale", "telemetry", "docs", "reproduction"} == set(
        found.extras
    )


@pytest.mark.parametrize("requirements", [None, [], ["no-such-package>=1; extra == 'cli'"]])
def test_a_missing_package_has_no_version(monkeypatch, requirements):
    monkeypatch.setattr(module, "requires", lambda name: requirements)
    assert find_installation().extras == ({"cli": {"no-such-package": None}} if requirements else {})


@pytest.mark.parametrize(
    ("requirement", "always", "extras"),
    [
        ("scikit-learn>=1.6", ["scikit-learn"], {}),
        ("numpy", ["numpy"], {}),
        ("torch>=2.5; extra == 'torch'", [], {"torch": ["torch"]}),
        ('ray[data]>=2.9 ; (python_version < "4") and extra == "scale"', [], {"scale": ["ray"]}),
        ("prometheus-client>=0.20; extra == 'serve'", [], {"serve": ["prometheus-client"]}),
        ("onsphere[cli]; extra == 'all'", [], {}),
        ("pytest; extra == 'dev'", [], {}),
    ],
)
def test_requirements_are_split_into_extras(requirement, always, extras):
    assert split_requirements([requirement]) == (always, extras)
