"""A cache of log f in a folder, looked up by content, so that the same rows are not scored twice.

The key is a hash of the network (its layers and all weights) and of the rows (the bytes of an array, or the checksums
of packed images; z in the form that the network reads). The values are log f before calibration, so they can be used
with any calibration.
"""

import hashlib
import os
import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sitewise.estimator.source.reading import evenly
from sitewise.inputs import Inputs, StoredImages, fingerprint, take_inputs
from sitewise.ratio import RatioNetwork, Scorer

FORMAT = "sitewise log f 1"
DAMAGED = "{path} is damaged ({reason}): log f is computed again"
NOT_WRITTEN = "log f could not be saved in {folder}: {error}"
FEATURE_ROWS = 2000  # rows whose features are kept, for the check of the representation
RAW, FEATURES, FEATURE_ROW_NUMBERS = "raw_log_ratio", "features", "feature_rows"


@dataclass(frozen=True)
class ScoreFolder:
    """A folder with one file of tensors for each key; files are written completely or not at all, and checked."""

    path: Path

    def load(self, key: str) -> dict[str, Tensor] | None:
        """Return the tensors of a key; None if there is no file, or with a warning if the file is damaged."""
        file = self._file(key)
        if not file.exists():
            return None
        try:
            with safe_open(file, "pt") as content:
                about = content.metadata() or {}
                tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        except Exception as error:  # a truncated file can raise any error
            warnings.warn(DAMAGED.format(path=file, reason=error), stacklevel=2)
            return None
        if (about.get("key"), about.get("sha256")) != (key, hash_tensors(tensors)):
            warnings.warn(DAMAGED.format(path=file, reason="its checksum differs"), stacklevel=2)
            return None
        return tensors

    def save(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors of a key; give a warning, and no error, if they cannot be written."""
        part = self.path / f".part.{uuid.uuid4().hex}"
        whole = {name: value.contiguous() for name, value in tensors.items()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            save_file(whole, part, {"format": FORMAT, "key": key, "sha256": hash_tensors(whole)})
            os.replace(part, self._file(key))
        except Exception as error:  # the library has its own error for a full disk
            warnings.warn(NOT_WRITTEN.format(folder=self.path, error=error), stacklevel=2)
        finally:
            part.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / f"{key}.safetensors"


def cached_log_ratio(folder: str | os.PathLike[str] | None, scorer: Scorer, X: Inputs, z: Tensor) -> Tensor:
    """Return raw log f of all rows (n, K): read it from the folder, or compute it and save it there."""
    if folder is None:
        return scorer(X, z)
    kept, key = ScoreFolder(Path(folder)), score_key(scorer.module, X, z)
    tensors = kept.load(key)
    if tensors is None:
        tensors = {RAW: scorer(X, z)}
        kept.save(key, tensors)
    return tensors[RAW]


def cached_score(
    folder: str | os.PathLike[str] | None, scorer: Scorer, X: Inputs, z: Tensor, n_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result of `score_keeping_features`; parts that the folder contains are read and not computed."""
    if folder is None:
        return score_keeping_features(scorer, X, z, n_classes)
    kept, key = ScoreFolder(Path(folder)), score_key(scorer.module, X, z)
    tensors = kept.load(key)
    if tensors is None or FEATURES not in tensors:
        if tensors is None:
            raw, features, rows = score_keeping_features(scorer, X, z, n_classes)
        else:
            raw, rows = tensors[RAW], evenly(len(X), FEATURE_ROWS)
            features = score_keeping_features(scorer, take_inputs(X, rows), z[rows], n_classes)[1]
        tensors = {RAW: raw, FEATURES: features, FEATURE_ROW_NUMBERS: rows}
        kept.save(key, tensors)
    return tensors[RAW], tensors[FEATURES], tensors[FEATURE_ROW_NUMBERS]


def score_key(module: nn.Module, X: Inputs, z: Tensor) -> str:
    """Return the key of a network and rows: a hash as text."""
    content = fingerprint(X)
    rows = content if isinstance(content, str) else hash_tensors({"X": content})
    kind = "stored" if isinstance(X, StoredImages) else "array"
    parts = (FORMAT, repr(module), hash_tensors(module.state_dict()), kind, rows, hash_tensors({"z": z}))
    return hash_texts(parts)[:40]


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, shapes, types and all bytes of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype};".encode())
        digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_texts(texts: Iterable[str]) -> str:
    """Return a hash of a sequence of texts, each preceded by its length."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()


class ScoreAndFeatures(nn.Module):
    """A module that returns log f in K columns, followed by the D features that the last layer reads."""

    def __init__(self, network: RatioNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log f and features, (n, K + D)."""
        features = self.network.features(x, z)
        return torch.cat([self.network.fusion[-1](features), features], dim=1)


def score_keeping_features(scorer: Scorer, X: Inputs, z: Tensor, n_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return raw log f of all rows (n, K), and features (m, D) of at most FEATURE_ROWS rows with their numbers (m,).

    Each row passes through the network once.
    """
    chosen = evenly(len(X), FEATURE_ROWS)
    assert isinstance(scorer.module, RatioNetwork)
    both = Scorer(ScoreAndFeatures(scorer.module), scorer.device)(take_inputs(X, chosen), z[chosen])
    raw_log_ratio = both.new_empty(len(X), n_classes)
    raw_log_ratio[chosen] = both[:, :n_classes]
    rest = torch.ones(len(X), dtype=torch.bool)
    rest[chosen] = False
    others = rest.nonzero().flatten()
    if len(others):
        raw_log_ratio[others] = scorer(take_inputs(X, others), z[others])
    return raw_log_ratio, both[:, n_classes:].float(), chosen
