"""Save and load: a model in one file, without pickle.

The file is a zip of two parts. `manifest.json` describes the model in plain JSON, with the versions and the checksum of
the other part; anything can read it. `model.skops` holds the model: skops lists every type in it before any object is
created, so that only trusted types are, and the weights of networks are stored in it as safetensors.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import io
import json
import re
import sys
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.manifests import CALIBRATED_BY, find_wrong_parts
from onsphere._internal.packed_trees import pack_trees, unpack_trees
from onsphere._internal.saved_models import add_settings, check_trees, mark_unsigned, rename_settings, rename_types
from onsphere._internal.validation import missing_extra_error
from onsphere.calibration import Calibration
from onsphere.errors import InvalidInputError, InvalidTypeError, OnsphereWarning

__all__ = [
    "CALIBRATED_BY",
    "FORMAT",
    "get_calibration_method",
    "list_frames",
    "load",
    "load_with_manifest",
    "make_manifest",
    "read_manifest",
    "save",
    "to_json",
]

FORMAT = 5

_MODEL, _MANIFEST = "model.skops", "manifest.json"
_LIBRARIES = ("numpy", "scipy", "scikit-learn", "skops", "torch")
_ALWAYS_THERE = {"numpy", "onsphere", "scipy", "sklearn", "skops"}
# Libraries of boosters, whose models hold nothing but parameters and trees.
_BOOSTERS = ("lightgbm", "xgboost", "catboost")
_BOOSTER_CLASSES = re.compile(r"(Booster|(LGBM|XGB|XGBRF|CatBoost)(Regressor|Classifier|Model)?)$")

# What fitted models of scikit-learn and networks hold beside estimators; trees are checked once they are loaded.
_PARTS = {
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "builtins.bytes",
    "numpy.dtype",
    "sklearn.utils.validation.check_array",  # of HistGradientBoosting with categories
    "functools.partial",
    "collections.OrderedDict",
    "collections.defaultdict",
    "torch.optim.adam.Adam",
    "torch.optim.adamw.AdamW",
    "torch.optim.sgd.SGD",
}

# What searches, stackings and Gaussian processes hold beside estimators: splitters, scorers, kernels and a dict.
_HELPERS = re.compile(
    r"sklearn\.(utils\._bunch\.Bunch|gaussian_process\.kernels\.[A-Z]\w*"
    r"|model_selection\._split\.((Repeated|Stratified|Group)*(KFold|ShuffleSplit)|TimeSeriesSplit|PredefinedSplit)"
    r"|metrics\._scorer\._(Passthrough|Multimetric)?Scorer"
    r"|metrics\._(regression|classification|ranking)\.[a-z]\w*_(error|loss|score|deviance))"
)

# How the description of a skops file names the type of an object.
_TYPE = re.compile(r'"__class__": "([^"]+)",\s+"__module__": "([^"]+)"')

_LARGEST_MANIFEST = 2**24
# How far a part may unpack: forests shrink to a third or less, and nothing that shrinks much further is a model.
_LARGEST_RATIO = 100


def save(model: Any, path: str | Path, *, summary: dict[str, Any] | None = None) -> Path:
    """Write a fitted model to one file; see `CalibratedModel.save`, which calls this."""
    skops = _import_skops("save")
    path = Path(path)
    try:
        content = skops.dumps(pack_trees(model))
    except Exception as error:  # skops lets through any error of a user's own objects
        raise InvalidTypeError(
            f"Expected a model of parts that can be saved without pickle. Got {type(error).__name__}: "
            f"{' '.join(str(error).split()).rstrip('.')}. Use estimators of scikit-learn (of a "
            "search over distributions, its best_estimator_), and networks that a named function or class makes."
        ) from None
    found = skops.get_untrusted_types(data=content)
    _check_names(found)
    _warn_about_unknown(found)
    parts = {_MODEL: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}
    text = to_json(make_manifest(model, summary) | {"parts": parts, "needs": _find_needs(content)}, indent=1)
    with write_atomically(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr(_MANIFEST, text)
        archive.writestr(_MODEL, content)
    return path


def _check_names(found: Sequence[str]) -> None:
    """Raise InvalidTypeError for functions and classes that a file can name but nobody could find again."""
    lost: list[str] = []
    for name in found:
        module, _, attribute = name.rpartition(".")
        is_lost = module in sys.modules and not hasattr(sys.modules[module], attribute)
        if module == "__main__" or is_lost:
            lost.append(name)
    if lost:
        raise InvalidTypeError(
            f"Expected a model of parts that can be found again by name. Got {', '.join(lost)}. A lambda, or what is "
            "defined inside a function or in the script that is run, is lost when the program ends: define it at the "
            "top of a module that is imported, and fit again."
        )


def load(path: str | Path, *, trusted: Sequence[str] = ()) -> Any:
    """Load a model that `save` wrote.

    No code in the file is run. Checksums detect a damaged file, not a forged one: as with any model, load files only
    from people you trust.

    Parameters
    ----------
    path : path
    trusted : sequence of str, optional
        Full names of further types that the file may hold, such as "lightgbm.sklearn.LGBMRegressor": estimators of
        other libraries, networks of your own.

    Examples
    --------
    >>> import tempfile
    >>> import onsphere
    >>> model = onsphere.HCMRegressor(random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    >>> path = model.save(tempfile.mkdtemp() + "/model.onsphere")
    >>> bool((onsphere.load(path).predict([[1.5]]) == model.predict([[1.5]])).all())
    True
    """
    return load_with_manifest(path, trusted=trusted)[0]


def load_with_manifest(
    path: str | Path, *, content: bytes | None = None, trusted: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Load a model that `save` wrote, and its manifest; from what was read from the file, if that is given."""
    skops = _import_skops("load")
    manifest, content = _read_parts(Path(path), content)
    _check_unpacked(Path(path), content)
    try:
        if manifest["format"] == 1:
            content = rename_types(content)
        _check_libraries(path, manifest)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions; ours says so in one sentence
            model = unpack_trees(_load_trusted(skops, path, content, trusted))
        check_trees(model)
        if manifest["format"] == 1:
            rename_settings(model)
        if manifest["format"] < 4:
            add_settings(model)
            mark_unsigned(vars(model).get("calibration_"))
    except InvalidInputError:
        raise
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"Expected the module {error.name}, which the model needs. Got {path} on a machine without it. Install the "
            "package that has it, or put the module where Python finds it."
        ) from None
    except Exception as error:
        raise _make_damage_error(path, f"its model cannot be loaded ({type(error).__name__}: {error})") from None
    if not hasattr(model, "calibration_"):
        raise _make_damage_error(path, f"it holds a {type(model).__name__}, which is not a model of onsphere")
    has_frames = type(vars(model).get("_frames")).__name__ in ("NoneType", "Frames")
    if not (isinstance(model.calibration_, Calibration | None) and has_frames) or model.estimator_ is None:
        raise _make_damage_error(path, "its model was not fitted by onsphere")
    other = [name for name, value in _identify(model).items() if manifest[name] != value]
    if other:
        raise _make_damage_error(path, f"its manifest is about another model, by its {', '.join(other)}")
    _warn_about_versions(manifest)
    return model, manifest


def _load_trusted(skops: Any, path: str | Path, content: bytes, trusted: Sequence[str]) -> Any:
    """Return what skops holds, which checks before it creates any object that all types are trusted."""
    named = {f"{module}.{name}" for name, module in _TYPE.findall(_read_schema(content))}
    known = sorted(_PARTS.union(trusted, named.difference(_list_unknown(named))))
    try:
        return skops.loads(content, trusted=known)
    except skops.exceptions.UntrustedTypesFoundException:
        unknown = sorted(set(skops.get_untrusted_types(data=content)).difference(known))
    raise InvalidInputError(
        f"Expected a model of types that onsphere trusts. Got {', '.join(unknown)} in {path}. If you trust who made "
        f"the file, load(path, trusted={unknown!r})."
    )


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest without loading the model; the file is checked for damage."""
    return _read_parts(Path(path))[0]


def _read_parts(path: Path, file: bytes | None = None) -> tuple[dict[str, Any], bytes]:
    """Read the manifest and the model, and check that they are not damaged."""
    if file is None and not path.is_file():
        raise InvalidInputError(f"Expected a file written by save. Got {path}, which {_describe_missing(path)}.")
    try:
        file = path.read_bytes() if file is None else file
        with zipfile.ZipFile(io.BytesIO(file)) as archive:
            manifest = _read_manifest(path, archive, _LARGEST_RATIO * len(file))
            content = _read_part(path, archive, _MODEL, _LARGEST_RATIO * len(file))
    except InvalidInputError:
        raise
    except Exception as error:  # each way of packing has its own
        raise InvalidInputError(
            f"Expected a file written by save. Got {path}, which cannot be read as one: {error}. Check that it is the "
            "right file and was copied whole."
        ) from None
    expected = manifest["parts"][_MODEL]
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise _make_damage_error(path, f"the checksum of {_MODEL} is not the one in its manifest")
    return manifest, content


def _describe_missing(path: Path) -> str:
    return "is a folder" if path.is_dir() else "does not exist"


def _read_part(path: Path, archive: zipfile.ZipFile, name: str, largest: int) -> bytes:
    if name not in archive.namelist():
        raise _make_damage_error(path, f"it has no part {name}")
    size = archive.getinfo(name).file_size
    if size > largest:
        raise _make_damage_error(path, f"its part {name} would unpack to {size:,} bytes, far more than a model does")
    with archive.open(name) as part:
        return part.read(size)  # and no more, whatever the part would unpack to


def _read_manifest(path: Path, archive: zipfile.ZipFile, largest: int) -> dict[str, Any]:
    text = _read_part(path, archive, _MANIFEST, min(_LARGEST_MANIFEST, largest))
    manifest: Any = json.loads(text)
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int or manifest["format"] < 1:
        raise _make_damage_error(path, "its manifest does not say which format it has")
    if manifest["format"] > FORMAT:
        raise InvalidInputError(
            f"Expected a model file of format {FORMAT} or older. Got {path} of format {manifest['format']}, made by "
            f"onsphere {manifest.get('onsphere')}. Install that version or a newer one."
        )
    wrong = find_wrong_parts(manifest)
    if wrong:
        raise _make_damage_error(path, f"its manifest does not say what it should about: {', '.join(wrong)}")
    parts = manifest.get("parts")
    expected = parts.get(_MODEL) if isinstance(parts, dict) else None
    if not isinstance(expected, dict) or not isinstance(expected.get("sha256"), str):
        raise _make_damage_error(path, f"its manifest has no checksum of {_MODEL}")
    return manifest


def _check_unpacked(path: Path, content: bytes) -> None:
    """Check the size of the arrays: skops stores them unpacked, and packed ones could grow without limit.

    Only sparse arrays are packed, each in an archive of its own.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            total = sum(part.file_size for part in archive.infolist())
            packed = [archive.read(part) for part in archive.infolist() if total <= len(content) and _is_packed(part)]
        for part in packed:
            with zipfile.ZipFile(io.BytesIO(part)) as archive:
                inner = sum(each.file_size for each in archive.infolist())
                total = max(total, len(content) + inner if inner > _LARGEST_RATIO * len(part) else 0)
    except Exception as error:  # each way of packing has its own
        raise _make_damage_error(path, str(error)) from None
    if total > len(content):
        raise _make_damage_error(path, f"its model would unpack to {total:,} bytes from {len(content):,}")


def _is_packed(part: zipfile.ZipInfo) -> bool:
    return part.filename.endswith(".npz")


def _make_damage_error(path: str | Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Expected an undamaged file written by save. Got {path}: {why}. Copy it again from where it was made, or save "
        "the model again."
    )


def _is_own_class(name: str) -> bool:
    """Return whether a type is an estimator, a dataclass or a network of onsphere: all they do is hold values."""
    module, _, attribute = name.rpartition(".")
    if module.split(".")[0] != "onsphere":
        return False
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return False
    return isinstance(found, type) and (issubclass(found, BaseEstimator) or is_dataclass(found) or _is_network(found))


def _is_booster(name: str) -> bool:
    """Return whether a type is a model of a library of boosters."""
    module, _, attribute = name.rpartition(".")
    return module.partition(".")[0] in _BOOSTERS and _BOOSTER_CLASSES.match(attribute) is not None


def _is_trusted(name: str) -> bool:
    is_part = name in _PARTS or _HELPERS.fullmatch(name) is not None
    return is_part or _is_own_class(name) or _is_booster(name)


def _list_unknown(found: Iterable[str]) -> list[str]:
    """Return the types that `load` does not trust by itself."""
    return sorted(name for name in found if not _is_trusted(name))


def _warn_about_unknown(found: Iterable[str]) -> None:
    unknown = _list_unknown(found)
    if unknown:
        warnings.warn(
            f"The model holds types that load does not trust by itself. Load it with load(path, trusted={unknown!r}), "
            "where the same modules are installed.",
            OnsphereWarning,
            stacklevel=4,
        )


def _find_needs(content: bytes) -> dict[str, str]:
    """Return the libraries that a model needs beside those that onsphere always has, with their versions."""
    schema = _read_schema(content)
    modules = {name.partition(".")[0] for name in re.findall(r'"__module__": "([^"]+)"', schema)}
    if '"__class__": "OnnxModel"' in schema:
        modules.add("onnxruntime")
    needed = sorted(modules - _ALWAYS_THERE - sys.stdlib_module_names)
    found = packages_distributions() if needed else {}
    # What comes after "+" says how a package was built, and no index has it.
    return {library: version(found[library][0]).partition("+")[0] for library in needed if library in found}


def _read_schema(content: bytes) -> str:
    """Return the description of a skops file, in JSON."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read("schema.json").decode()


def _check_libraries(path: str | Path, manifest: dict[str, Any]) -> None:
    """Check that the libraries are installed that a model needs."""
    for name, number in (manifest.get("needs") or {}).items():
        if importlib.util.find_spec(name) is None:
            raise InvalidInputError(
                f"Expected {name}, with which the model was made. Got {path} on a machine without it. Install it with: "
                f"pip install '{name}=={number}'"
            )


def _is_network(kind: type) -> bool:
    return any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)


def _list_versions() -> dict[str, str]:
    found = {package: _find_version(package) for package in _LIBRARIES}
    return {package: number for package, number in found.items() if number is not None}


@functools.cache  # reading it takes longer than reading a small model
def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _warn_about_versions(manifest: dict[str, Any]) -> None:
    here, there = _list_versions(), manifest["libraries"]
    other = [
        f"{name} {number} (here {here[name]})" for name, number in there.items() if here.get(name, number) != number
    ]
    if other:
        warnings.warn(
            f"The model was made with {', '.join(other)}. Its predictions may differ here; install the "
            "same versions, or compare some predictions.",
            OnsphereWarning,
            stacklevel=4,
        )


def make_manifest(model: Any, summary: dict[str, Any] | None) -> dict[str, Any]:
    """Describe a model in plain values, so that it need not be loaded to be understood."""
    calibration, rule = getattr(model, "calibration_", None), getattr(model, "_rule", None)
    novelty_rule = getattr(model, "_novelty_rule", None)
    spread = getattr(model, "spread_", None)
    return {
        "format": FORMAT,
        "onsphere": _find_version("onsphere"),
        "libraries": _list_versions(),
        **_identify(model),
        "parameters": {name: repr(value) for name, value in model.get_params(deep=False).items()},
        "target_spread": None if spread is None else np.asarray(spread).tolist(),
        "calibration_rows": None if calibration is None else len(calibration),
        "calibrated_by": get_calibration_method(model),
        # A rule that accepts everything has an infinite one, which JSON cannot hold.
        "threshold": model.threshold_ if model.threshold_ is None or np.isfinite(model.threshold_) else "inf",
        "rule": None if rule is None else repr(rule),
        "frames": list_frames(model),
        "novelty_threshold": getattr(model, "novelty_threshold_", None),
        "novelty_rule": None if novelty_rule is None else repr(novelty_rule),
        "groups": None if calibration is None or calibration.groups is None else calibration.groups.describe(),
        "effective_rows": None if calibration is None else calibration.effective_size,
        "labels_taken_in": None if calibration is None or calibration.online is None else calibration.online.n_labels,
        "summary": summary or {},
    }


def _identify(model: Any) -> dict[str, Any]:
    """Return what tells a model from others."""
    names, labels = getattr(model, "feature_names_in_", None), getattr(model, "classes_", None)
    return {
        "model": type(model).__name__,
        "n_features": getattr(model, "n_features_in_", None),
        "columns": None if names is None else [str(name) for name in names],
        "classes": None if labels is None else np.asarray(labels).tolist(),
    }


def list_frames(model: Any) -> list[str] | None:
    """Return the frames that were fitted; None for a model of another method."""
    if "frames" not in model.get_params(deep=False):
        return None
    fitted = getattr(model, "_frames", None)
    has_target = vars(model).get("_layout", {}) is not None
    return [
        *(["target"] if has_target else []),
        *(name for name in ("error", "input") if getattr(fitted, name, None) is not None),
    ]


def get_calibration_method(model: Any) -> str | None:
    """Return one of CALIBRATED_BY, or None if the model is not calibrated."""
    if getattr(model, "calibration_", None) is None:
        return None
    asked = getattr(model, "calibration", None) == "cv"
    return CALIBRATED_BY[getattr(model, "_on_folds", asked) is True]  # models of older files do not have it


def to_json(facts: dict[str, Any], *, indent: int | None = None) -> str:
    """Return a manifest as text, with numbers and arrays of numpy as plain ones."""
    try:
        return json.dumps(facts, ensure_ascii=False, indent=indent, allow_nan=False, default=_convert_numpy)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"Expected a summary of plain JSON values. Got: {error}") from None


def _convert_numpy(value: Any) -> Any:
    """Convert numbers and arrays of numpy for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}")


def _import_skops(what: str) -> Any:
    """Import skops, without PyTorch: skops lists every estimator of scikit-learn, which would import it on the way."""
    on_the_way = "sklearn.externals.array_api_compat.torch"
    is_blocked = on_the_way not in sys.modules
    if is_blocked:
        sys.modules[on_the_way] = None  # type: ignore[reportArgumentType]
    try:
        import skops.io
    except ImportError:
        raise missing_extra_error(what, "skops", "cli") from None
    finally:
        if is_blocked:
            del sys.modules[on_the_way]
    return skops.io
