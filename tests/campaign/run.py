"""The long campaign: attacks of all families in turn, with counts. Stopped and started again it goes on.

PYTHONPATH=tests python -m campaign.run --attacks 20000 --jobs 2 --out campaign
PYTHONPATH=tests python -m campaign.run --family few_rows --seed 17        # one attack again, with its traceback
PYTHONPATH=tests python -m campaign.record campaign                        # counts into the page, when it has ended

A family has one attack in each round, or in every n-th (`Family.every`): slow ones have fewer, none has many.
"""

import argparse
import importlib
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from campaign.record import note_start
from campaign.registry import FAMILIES, Result, make_attack

MODULES: tuple[str, ...] = (
    "campaign.containers",
    "campaign.contract_arrays",
    "campaign.contract_commands",
    "campaign.contract_files",
    "campaign.contract_models",
    "campaign.contract_questions",
    "campaign.contract_service",
    "campaign.contract_sites",
    "campaign.estimates",
    "campaign.files",
)  # whose functions are the families
EVERY_S = 60.0  # between two tables of counts


def load_families() -> None:
    """Import the modules that register families."""
    for module in MODULES:
        importlib.import_module(module)


def counts(results: Iterable[Result]) -> str:
    """A table: one line a family, with how its attacks ended, and one for all."""
    endings: dict[str, Counter[str]] = {}
    for result in results:
        endings.setdefault(result.family, Counter())[result.ending] += 1
    total = sum(endings.values(), Counter())
    lines = []
    for name, found in [*sorted(endings.items()), ("all", total)]:
        parts = ", ".join(f"{count:,} {ending}" for ending, count in sorted(found.items()))
        lines.append(f"{name:32} {found.total():>8,}   {parts}")
    return "\n".join(lines)


def read(path: Path) -> list[Result]:
    """The attacks made so far; a line that a kill cut short is made again."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(Result(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return found


def run(
    out: Path, n_attacks: int, names: list[str], *, worker: int = 0, workers: int = 1, minutes: float = math.inf
) -> list[Result]:
    """Make attacks in rounds, one of each family, until there are `n_attacks` in the record of this worker.

    Of several workers each has a record and seeds of its own. After so many minutes no further attack begins.
    """
    out.mkdir(parents=True, exist_ok=True)
    record, begun = record_of(out, worker, workers), out / f"begun_{worker}.json"
    results = read(record)
    done = {(result.family, result.seed) for result in results}
    shown = started = time.perf_counter()
    with record.open("a") as stream:
        if results:
            stream.write("\n")  # ends a line that was cut short
        turn = 0
        while len(results) < n_attacks:
            seed = worker + workers * turn
            for name in names:
                if (name, seed) in done or len(results) >= n_attacks or turn % FAMILIES[name].every:
                    continue
                if time.perf_counter() - started > 60 * minutes:
                    return results
                begun.write_text(json.dumps([name, seed]))
                result = make_attack(FAMILIES[name], seed)
                stream.write(json.dumps(asdict(result)) + "\n")
                stream.flush()
                results.append(result)
                if result.failed:
                    print(f"FAILED {name} seed {seed}: {result.failure.strip().splitlines()[-1]}", flush=True)
            turn += 1
            if workers == 1 and time.perf_counter() - shown > EVERY_S:
                shown = time.perf_counter()
                print(counts(results), flush=True)
    return results


def record_of(out: Path, worker: int, workers: int) -> Path:
    """The file with the results of a worker."""
    return out / ("attacks.jsonl" if workers == 1 else f"attacks_{worker}_of_{workers}.jsonl")


def run_worker(worker: int, workers: int, out: Path, n_attacks: int, names: list[str], end: float) -> None:
    """One worker's share of the attacks, in a process of its own, until a time."""
    torch.set_num_threads(1)
    load_families()
    minutes = max(0.0, (end - time.time()) / 60)
    run(out, math.ceil(n_attacks / workers), names, worker=worker, workers=workers, minutes=minutes)


def run_side_by_side(out: Path, n_attacks: int, names: list[str], workers: int, minutes: float) -> list[Result]:
    """The same by several processes. An attack that ends its process is a failure, and another process goes on."""
    context, end = multiprocessing.get_context("spawn"), time.time() + 60 * minutes
    started: dict[int, Any] = {}

    def start(worker: int) -> None:
        process = context.Process(target=run_worker, args=(worker, workers, out, n_attacks, names, end))
        process.start()
        started[worker] = process

    try:
        for worker in range(workers):
            start(worker)
        while started:
            wait([process.sentinel for process in started.values()], timeout=EVERY_S)
            for worker, process in list(started.items()):
                if process.is_alive():
                    continue
                del started[worker]
                if process.exitcode:
                    note_death(out, worker, workers, process.exitcode)
                    start(worker)
    finally:
        for process in started.values():
            process.terminate()
    return [result for worker in range(workers) for result in read(record_of(out, worker, workers))]


def note_death(out: Path, worker: int, workers: int, code: int) -> None:
    """Record that the attack a worker had begun ended its process."""
    name, seed = json.loads((out / f"begun_{worker}.json").read_text())
    result = Result(name, seed, "FAILED", 0.0, f"the process ended with exit code {code}")
    with record_of(out, worker, workers).open("a") as stream:
        stream.write("\n" + json.dumps(asdict(result)) + "\n")
    print(f"FAILED {name} seed {seed}: {result.failure}", flush=True)


def main() -> int:
    """Parse, run, print; the exit code is 1 where something failed."""
    torch.set_num_threads(1)
    load_families()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", type=int, default=20_000, help="how many in all, those of earlier calls included")
    parser.add_argument("--out", type=Path, default=Path("campaign"), help="folder of the record")
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, help="one attack of one family, made again")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a record of its own")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further attack begins")
    arguments = parser.parse_args()
    names = arguments.family or sorted(FAMILIES)
    if arguments.seed is not None:
        results = [make_attack(FAMILIES[name], arguments.seed) for name in names]
        print("\n".join(f"{result.family}: {result.ending}\n{result.failure}" for result in results))
    else:
        out, attacks, jobs, minutes = arguments.out, arguments.attacks, arguments.jobs, arguments.minutes
        note_start(out)
        if jobs == 1:
            results = run(out, attacks, names, minutes=minutes)
        else:
            results = run_side_by_side(out, attacks, names, jobs, minutes)
        print(counts(results))
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main())
