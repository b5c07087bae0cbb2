"""The short run: the first attacks of every family."""

import json

import numpy as np
import pytest

from campaign import registry
from campaign.registry import FAMILIES, Family, make_attack
from campaign.run import counts, load_families, read, run

load_families()


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_first_attacks_of_a_family_find_nothing(name: str) -> None:
    results = [make_attack(FAMILIES[name], seed) for seed in range(FAMILIES[name].short)]
    failed = [f"seed {result.seed}: {result.failure}" for result in results if result.failed]
    assert not failed, f"{len(failed)} of {len(results)} failed\n" + "\n".join(failed[:3])


def odd_seeds_fail(rng: np.random.Generator) -> str:
    assert rng.integers(1 << 30) % 2 == 0
    return "answered"


def never_ends(rng: np.random.Generator) -> str:
    while True:
        pass


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "odd", Family("odd", odd_seeds_fail, 1, 10.0))
    whole = run(tmp_path / "whole", 12, ["odd"])
    run(tmp_path / "parts", 5, ["odd"])
    record = tmp_path / "parts" / "attacks.jsonl"
    record.write_text(record.read_text()[:-10])  # killed while it wrote
    parts = run(tmp_path / "parts", 12, ["odd"])
    assert {(r.seed, r.ending) for r in parts} == {(r.seed, r.ending) for r in whole}
    assert len(read(record)) == 12
    assert {r.ending for r in whole} == {"answered", "FAILED"}
    assert "all" in counts(whole)
    assert json.loads(record.read_text().splitlines()[0])["family"] == "odd"


def test_workers_share_the_seeds(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "odd", Family("odd", odd_seeds_fail, 1, 10.0, every=2))
    shares = [run(tmp_path, 4, ["odd"], worker=worker, workers=3) for worker in range(3)]
    seeds = [[result.seed for result in share] for share in shares]
    assert seeds == [[0, 6, 12, 18], [1, 7, 13, 19], [2, 8, 14, 20]]  # every second turn
    assert run(tmp_path, 9, ["odd"], worker=1, workers=3, minutes=0.0) == shares[1]  # no time for another one


def test_an_attack_that_hangs_is_a_failure() -> None:
    result = make_attack(Family("endless", never_ends, 1, 0.2), 0)
    assert result.failed
    assert registry.HangError.__name__ in result.failure
