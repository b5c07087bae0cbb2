"""Save a scikit-learn classifier as bytes with skops, and load it; types are checked before any object is made.

The allowed types of scikit-learn, which only contain numbers, are listed one by one: to allow whole modules would also
allow everything that they import. scikit-learn does not check the node numbers of trees, so they are checked here.
"""

import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.ensemble._forest import BaseForest
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.tree import BaseDecisionTree
from torch import Tensor

KNOWN = (
    "functools.partial",
    "numpy.dtype",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.feature_selection._univariate_selection.chi2",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Matern",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF",
    "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel",
    "sklearn.multiclass._ConstantPredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
    "sklearn.utils.validation.check_array",
)
ODD = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, ImportError, zipfile.BadZipFile)

LEFT_OUT = (
    "save: the classifier ({name}) cannot be written by skops ({error}), so it is not in the folder: sw.load needs it "
    "as estimator="
)
UNKNOWN = (
    "load: the classifier in this folder has types that are not known to be harmless: {names}. If you trust the "
    "folder and these types: sw.load(path, trusted={names!r}); or pass the classifier: sw.load(path, estimator=...)"
)
DAMAGED = (
    "load: the classifier in this folder is damaged, or was written by another version of scikit-learn or skops "
    "({error}): save it again, or pass it, sw.load(path, estimator=...)"
)
WILD_TREE = "a tree of {name} has nodes that point outside of it or use features that do not exist"


def write_classifier(estimator: Any) -> Tensor | None:
    """Return a fitted estimator as bytes, after a test that they can be read; None with a warning if skops fails."""
    from skops import io

    try:
        content = io.dumps(estimator, compression=zipfile.ZIP_DEFLATED)
        io.loads(content, trusted=io.get_untrusted_types(data=content))
    except ODD as error:
        warnings.warn(LEFT_OUT.format(name=type(estimator).__name__, error=error), stacklevel=2)
        return None
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def unknown_types(content: Tensor) -> list[str]:
    """Return the names of the types that `read_classifier` rejects unless they are trusted."""
    from skops import io

    return [name for name in io.get_untrusted_types(data=content.numpy().tobytes()) if name not in KNOWN]


def read_classifier(content: Tensor, trusted: Sequence[str]) -> Any:
    """Return the estimator from its bytes; ValueError if a type is unknown or the content is damaged."""
    from skops import io

    try:
        refused = [name for name in unknown_types(content) if name not in trusted]
        if not refused:
            with warnings.catch_warnings(record=True) as noted:
                warnings.simplefilter("always")
                estimator = io.loads(content.numpy().tobytes(), trusted=[*KNOWN, *trusted])
            _refuse_newer(noted)
            _check_trees(estimator)
    except ODD as error:
        raise ValueError(DAMAGED.format(error=f"{type(error).__name__}: {error}")) from error
    if refused:
        raise ValueError(UNKNOWN.format(names=refused))
    return estimator


def _refuse_newer(noted: Sequence[warnings.WarningMessage]) -> None:
    """Raise ValueError if the estimator was saved with a newer scikit-learn; pass on all other warnings."""
    for note in noted:
        if isinstance(note.message, InconsistentVersionWarning):
            made, here = note.message.original_sklearn_version, note.message.current_sklearn_version
            if _release(made) > _release(here):
                raise ValueError(
                    f"it was made by scikit-learn {made}, but {here} is installed: pip install -U scikit-learn"
                )
        warnings.warn_explicit(note.message, note.category, note.filename, note.lineno)


def _release(version: str) -> list[int]:
    """Return the first two numbers of a version."""
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def _check_trees(estimator: Any) -> None:
    """Check that all trees of an estimator only refer to nodes and features that exist; raise ValueError otherwise."""
    for part in _parts(estimator, set()):
        sound = True
        if isinstance(part, BaseDecisionTree) and hasattr(part, "tree_"):
            tree, width = part.tree_, part.n_features_in_
            split = tree.children_left != -1
            sound = tree.n_features == width and _leads_on(tree.children_left, tree.children_right, split)
            sound = sound and _within(tree.feature[split], width)
        elif isinstance(part, BaseForest | BaseGradientBoosting) and hasattr(part, "estimators_"):
            sound = all(tree.n_features_in_ == part.n_features_in_ for tree in np.ravel(part.estimators_))
        elif isinstance(part, BaseHistGradientBoosting) and hasattr(part, "_predictors"):
            predictors = [one for iteration in part._predictors for one in iteration]
            sound = all(_is_sound_predictor(one, part.n_features_in_) for one in predictors)
        if not sound:
            raise ValueError(WILD_TREE.format(name=type(part).__name__))


def _is_sound_predictor(predictor: Any, width: int) -> bool:
    nodes = predictor.nodes
    split = nodes["is_leaf"] == 0
    by_category = nodes[split & (nodes["is_categorical"] != 0)]
    return (
        _leads_on(nodes["left"].astype(np.int64), nodes["right"].astype(np.int64), split)
        and _within(nodes["feature_idx"][split].astype(np.int64), width)
        and _within(by_category["bitset_idx"].astype(np.int64), len(predictor.raw_left_cat_bitsets))
    )


def _leads_on(left: Any, right: Any, split: Any) -> bool:
    """Return whether both children of each split are later nodes of the tree, so that every path ends."""
    here = np.flatnonzero(split)
    ways = np.stack([left[here], right[here]])
    return bool((ways > here).all() and (ways < len(left)).all())


def _within(places: Any, count: int) -> bool:
    return bool((places >= 0).all() and (places < count).all())


def _parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield an object and all objects that it contains, each once."""
    if id(value) in seen or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    yield value
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple | set) or (isinstance(value, np.ndarray) and value.dtype == object):
        inside = np.ravel(value).tolist() if isinstance(value, np.ndarray) else value
    elif hasattr(value, "__dict__"):
        inside = vars(value).values()
    for part in inside:
        yield from _parts(part, seen)
