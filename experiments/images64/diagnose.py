"""Record the diagnosis at every test site of an experiment with real sites, with the scores of the predictions.

`python experiments/images64/diagnose.py experiments/images64/isic64.yaml --data-dir DIR --out diagnosis/` trains GPA as
in the experiment, for each of its seeds, and writes `NAME.jsonl` with a line for each seed and site.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

from sitewise.artifacts.folders import versions
from sitewise.bench.experiments import read_experiment
from sitewise.bench.experiments.fingerprint import script_fingerprint
from sitewise.bench.experiments.plan import final_runs, make_method
from sitewise.bench.experiments.provenance import commit
from sitewise.bench.experiments.scoring import device_name
from sitewise.bench.experiments.sites import source_name, world_of
from sitewise.evaluation import evaluate


def diagnose_sites(run, data_dir, device):
    """Train GPA as in the run, and yield a dict for each test site."""
    world = world_of(run, data_dir)
    rows = world.training_rows(run)
    choice = next(choice for choice in run.methods if choice.method == "gpa")
    method = make_method(choice, run.recipe, run.network, run.seed, device=device).fit(
        rows.X,
        rows.y,
        sample_domain=rows.sample_domain,
        sample_confounder=rows.sample_confounder,
        groups=rows.groups,
    )
    for spec in run.tests:
        site = world.test_rows(spec, run.draws[0])[1]
        here = method.model_.adapt(site.X, sample_confounder=site.Z, groups=site.groups)
        low, high = here.prevalence_interval()
        yield {
            "experiment": run.experiment,
            "seed": run.seed,
            "site": spec.name,
            "rows": len(site),
            "positives": int(np.sum(site.y)),
            "prevalence": [float(here.prevalence()[1]), float(low[1]), float(high[1])],
            "training_prevalence": float(np.mean(method.model_.predict_proba(site.X, sample_confounder=site.Z)[:, 1])),
            "expected": {name: list(map(float, here.expected_performance()[name])) for name in ("accuracy", "f1")},
            "adapted": _scores(site.y, here.predict_proba(site.X, sample_confounder=site.Z)),
            "as_trained": _scores(site.y, method.model_.predict_proba(site.X, sample_confounder=site.Z)),
            "diagnosis": here.diagnose().to_dict(),
            "versions": versions(),
            "commit": commit(),
            "fingerprint": diagnosis_fingerprint(run),
            "device": device_name(device),
        }


def diagnosis_fingerprint(run):
    """Return a digest of the code of this script and all it imports, and the id of the run with its settings."""
    return f"{script_fingerprint(__file__)}-{run.id}"


def _scores(y, probability):
    metrics = evaluate(y, probability, n_resamples=0)
    return {name: metrics[name].value for name in ("accuracy", "positive_f1", "auroc", "nll")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, help="fewer than the experiment has")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    experiment = read_experiment(args.experiment, quick=args.quick)
    runs = [
        run
        for run in final_runs(experiment, {}, source_name(experiment.data, args.data_dir))
        if any(choice.method == "gpa" for choice in run.methods) and run.seed < (args.seeds or experiment.seeds)
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / f"{experiment.name}.jsonl").open("w", encoding="utf-8") as file:
        for run in runs:
            for line in diagnose_sites(run, args.data_dir, args.device):
                file.write(json.dumps(line) + "\n")
                file.flush()
                print(line["seed"], line["site"], line["diagnosis"]["verdict"], line["prevalence"])
