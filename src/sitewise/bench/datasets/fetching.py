"""Downloads of data collections on request, checked by their hashes."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.request import urlopen

from sitewise.bench.datasets.mnist import MNIST_MD5

MNIST_SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT = 30  # seconds without an answer after which a download fails
CHUNK = 1 << 20  # bytes that are read at a time
NOT_FETCHED = "{url} could not be downloaded ({error}): try again, or download it by hand and put it into {folder}"
WRONG_HASH = "{url} has the wrong content: expected MD5 {expected}, got {digest}; it was deleted"


def fetch_mnist(folder: str | os.PathLike[str]) -> list[Path]:
    """Download the four files of MNIST into a folder and return their paths; existing correct files are kept."""
    return fetch_files(MNIST_SOURCE, MNIST_MD5, Path(folder))


def fetch_files(source: str, md5: Mapping[str, str], folder: Path) -> list[Path]:
    """Download files by name from a source and return their paths; a file is kept only if its hash is correct."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, expected in md5.items():
        file = folder / name
        if not (file.is_file() and _md5_of(file) == expected):
            _fetch(source + name, file, expected)
        paths.append(file)
    return paths


def _fetch(url: str, file: Path, expected: str) -> None:
    part = file.with_name(f".part.{file.name}")
    try:
        try:
            with urlopen(url, timeout=TIMEOUT) as answer, open(part, "wb") as kept:
                while chunk := answer.read(CHUNK):
                    kept.write(chunk)
        except OSError as error:  # the errors of urllib are subclasses of OSError
            raise ConnectionError(NOT_FETCHED.format(url=url, error=error, folder=file.parent)) from error
        digest = _md5_of(part)
        if digest != expected:
            raise ConnectionError(WRONG_HASH.format(url=url, expected=expected, digest=digest))
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _md5_of(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
