"""Several trainings at the same time on one GPU, if its memory suffices."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from sitewise.training.devices import torchrun_processes
from sitewise.training.progress import progress_bar

CONTEXT = 2**29  # bytes that every process needs on a GPU in addition to its tensors

Result = TypeVar("Result")


def count_parallel(n_tasks: int, device: str, devices: int | str = 1, nodes: int = 1) -> int:
    """Return how many trainings like the last one fit on the GPU at the same time; 1 without a GPU.

    It is 1 in the worker process of a pool too, because its processes share the GPU already.
    """
    on_gpu = device in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    alone = devices == 1 and nodes == 1 and torchrun_processes() is None and multiprocessing.parent_process() is None
    if not (on_gpu and alone):
        return 1
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(n_tasks, os.cpu_count() or 1, free // (torch.cuda.max_memory_reserved() + CONTEXT)))


def run_side_by_side(
    function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], n_parallel: int, label: str, verbose: bool | None
) -> Iterator[Result]:
    """Yield function(*task) of every task in order, computed in `n_parallel` processes, or in this one if it is 1."""
    if n_parallel == 1:
        yield from (function(*task) for task in tasks)
        return
    from joblib import Parallel, delayed

    with progress_bar(label, len(tasks), verbose) as advance:
        for result in Parallel(n_parallel, return_as="generator")(delayed(function)(*task) for task in tasks):
            advance({})
            yield result
