"""The short run: the first attacks of every family."""

import json

import numpy as np
import pytest

from campaign import registry
from campaign.record import END, PAGE, RECORD, START, note_start, put_into, summarize, table
from campaign.registry import FAMILIES, Family, make_attack
from campaign.run import counts, load_families, note_death, read, record_of, run

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


def test_an_attack_that_ends_its_process_is_a_failure_and_not_made_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "odd", Family("odd", odd_seeds_fail, 1, 10.0))
    run(tmp_path, 2, ["odd"], worker=1, workers=2)
    (tmp_path / "begun_1.json").write_text(json.dumps(["odd", 5]))
    note_death(tmp_path, 1, 2, -9)
    results = run(tmp_path, 4, ["odd"], worker=1, workers=2)
    assert [result.seed for result in results] == [1, 3, 5, 7]
    assert results[2].failure == "the process ended with exit code -9"
    assert read(record_of(tmp_path, 1, 2)) == results


def test_the_record_counts_what_a_run_did(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(FAMILIES, "odd", Family("odd", odd_seeds_fail, 1, 10.0))
    note_start(tmp_path)
    shares = [run(tmp_path, 5, ["odd"], worker=worker, workers=2) for worker in range(2)]
    record = summarize(tmp_path)
    results = [result for share in shares for result in share]
    entry = record["families"]["odd"]
    assert entry["attacks"] == 10
    assert sorted(entry["failed"]) == sorted(result.seed for result in results if result.failed)
    assert sum(entry["endings"].values()) == 10
    assert "| `odd` | 10 |" in table(record)
    assert put_into(f"a\n{START}old\n{END}b\n", "new\n") == f"a\n{START}new\n{END}b\n"


def test_the_page_shows_the_record() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert f"{START}{table(record)}{END}" in PAGE.read_text(encoding="utf-8")
    assert set(record["families"]) <= set(FAMILIES)
