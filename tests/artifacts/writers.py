"""Folders that tell which writing they are of, and processes that write them; test processes import this."""

import ctypes
import hashlib
import itertools
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from sitewise.artifacts.folders import Folder, write_folder

VERSIONS = {"sitewise": "0.1.0"}


def make(number):
    """A folder whose parts, and the folder inside, all tell which writing they are of."""
    inner = Folder("Inner", {"number": number}, {"w": torch.full((50,), float(number))}, f"# {number}\n", VERSIONS)
    tensors = {"w": torch.full((50,), float(number))}
    return Folder("Outer", {"number": number}, tensors, f"# {number}\n", VERSIONS, {"model": inner})


def number_of(folder):
    """The one writing that all parts of a folder are of."""
    parts = (folder, *folder.inside.values())
    numbers = {part.content["number"] for part in parts} | {int(part.tensors["w"][7]) for part in parts}
    assert len(numbers) == 1, numbers
    return numbers.pop()


def without_exchange(monkeypatch):
    """Simulate a system that cannot exchange two folders: its C library cannot be opened."""
    load = ctypes.CDLL

    def failing(name, *arguments, **options):
        if name is None:
            raise OSError("there is no C library")
        return load(name, *arguments, **options)

    monkeypatch.setattr(ctypes, "CDLL", failing)


def rewrite(path, change):
    """Change `model.json` as somebody would who also corrects its checksum."""
    document = json.loads(path.read_text())
    change(document)
    document["sha256"] = ""
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(text.replace('"sha256": ""', f'"sha256": "{digest}"', 1))


def save_until(enough, path, numbers):
    """Save one after another until it is enough; a slow reader finds a moment in between."""
    for number in itertools.cycle(numbers):
        write_folder(make(number), path)
        if enough.wait(0.01):
            return


def save_and_be_killed(path, number, owner, name, calls, exchanging):
    """Save, and be killed at a call of something."""
    if not exchanging:
        without_exchange(pytest.MonkeyPatch())
    owner = {"os": os, "Path": Path}[owner]
    original, left = getattr(owner, name), [calls]

    def kill(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    setattr(owner, name, kill)
    write_folder(make(number), path)


def compete(path, number, times, results):
    """Save several times; tell of each what came of it."""
    for _ in range(times):
        try:
            write_folder(make(number), path)
            results.put(None)
        except BlockingIOError as error:
            results.put(str(error))
