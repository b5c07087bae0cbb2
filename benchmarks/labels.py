"""The gain from a few labels, or from a known prevalence, at a real site that was not used for training.

    python benchmarks/labels.py run tables ham --data-dir DIR --out benchmarks/labels.jsonl
    python benchmarks/labels.py table benchmarks/labels.jsonl.gz

tables: each hospital of the heart-disease collection and each region of GUSTO-I is left out in turn. ham: the new sites
are centres of HAM10000, which are left out in turn, NY3 and BCN2; log f and log g were computed by networks that were
trained at other centres (`ham_rehearsal`). The rows to label are drawn at random; log losses are computed from the rows
that were not labeled.
"""

import argparse
import itertools
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from posterior import CENTRES, nll, read_ham
from real_tables import CLASSIFIERS, LOADERS, preparation
from records import provenance
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.confounders import Confounders
from sitewise.estimator.source.rehearsal import Unit, learn_numbers
from sitewise.prevalence import SitePrior

LABELS = (25, 50, 100, 200)
LEFT = 25  # least number of rows that remain for scoring
AT_MOST = 200  # largest number of training patients of a GUSTO region
SOURCE_ROWS = 1500.0  # number of rows by which the networks of HAM were calibrated


def losses(y, as_trained, adapt, draws, seed):
    """Return the log losses of the unlabeled rows, a dict for each number of labels and draw.

    `adapt` maps labels, which are NaN for unlabeled rows, to probabilities of all rows.
    """
    unlabeled = adapt(None)
    lines = []
    for m, draw in itertools.product((m for m in LABELS if m <= len(y) - LEFT), range(draws)):
        chosen = np.random.default_rng([seed, m, draw]).permutation(len(y))[:m]
        partial = np.full(len(y), np.nan)
        partial[chosen] = y[chosen]
        rest = np.isnan(partial)
        arms = {"as trained": as_trained, "no labels": unlabeled, "labels": adapt(partial)}
        lines.append({"labels": m, "nll": {name: nll(y[rest], p[rest]) for name, p in arms.items()}})
    return lines


def tables(case):
    data = LOADERS[case["data"]](Path(case["folder"]))
    source, new = data.split(case["site"])
    if case["data"] == "gusto":
        shuffled = source.groupby("site", sort=False).sample(frac=1, random_state=0)
        source = shuffled.groupby("site").head(AT_MOST).reset_index(drop=True)
    z = list(data.confounders)
    pipeline = make_pipeline(preparation(data, [*data.features, *z]), CLASSIFIERS[case["classifier"]](0))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    proba = cross_val_predict(pipeline, source, source["y"], cv=folds, method="predict_proba")
    pipeline.fit(source, source["y"])
    adjuster = sw.PrevalenceAdjuster().fit(proba, source["y"], source["site"], source[z])
    p, y = pipeline.predict_proba(new), new["y"].to_numpy()
    as_trained = adjuster.predict_proba(p, sample_confounder=new[z])

    def adapt(partial):
        return adjuster.adapt(p, new[z], y=partial).predict_proba(p, new[z])

    known = adjuster.adapt(p, new[z], known_prevalence=float(y.mean())).predict_proba(p, new[z])
    numbers = vars(adjuster.rehearsal_.numbers)
    whole = {"as trained": nll(y, as_trained), "no labels": nll(y, adapt(None)), "known": nll(y, known)}
    record = {"nll": whole, "prevalence": float(y.mean()), "numbers": numbers, "rows": len(y)}
    return record | {"drawn": losses(y, as_trained, adapt, case["draws"], 0)}


@dataclass(frozen=True)
class TrainedOdds:
    """The g of the trained networks, as a function of z; here z is the log-odds of this g."""

    schema: Confounders
    name: str = "additive"

    def log_prob(self, codes):
        (odds,) = self.schema.variables
        value = odds.low + (codes[:, 0].clamp(1.0, 2.0) - 1.0) * (odds.high - odds.low)
        return torch.log_softmax(torch.stack([torch.zeros_like(value), value], dim=1), dim=1)


def ham(case):
    """Return the record of one site of HAM10000, with a rehearsal at the other centres; z is the log-odds of g."""
    folder, centres, seed = Path(case["folder"]), case["centres"], case["seed"]

    def prior_of(odds):
        schema = Confounders.learn(pd.DataFrame({"odds": odds}))
        return SitePrior(TrainedOdds(schema), n_source=SOURCE_ROWS, missing=0.6)

    def unit(name, rows):
        log_ratio, log_g, y = (torch.tensor(part) for part in rows)
        weight, prior = torch.ones(len(y)).double(), prior_of((log_g[:, 1] - log_g[:, 0]).double().numpy())
        return Unit.of(name, log_ratio.double(), log_g.double(), y.long(), weight, prior, shifted=True)

    rehearsed = [unit(c, read_ham(folder, [o for o in centres if o != c], seed)[c]) for c in centres]
    numbers = learn_numbers(rehearsed)
    log_ratio, log_g, y = read_ham(folder, centres, seed)[case["site"]]
    y, log_ratio, log_g = y.astype(int), log_ratio.astype(float), log_g.astype(float)
    odds = log_g[:, 1] - log_g[:, 0]
    prior, Z = numbers.put_into(prior_of(odds)), pd.DataFrame({"odds": odds})

    def adapt(partial, **known):
        estimate = sw.estimate_prevalence(
            log_ratio, Z, prior=prior, confounders=prior.prevalence.schema, y=partial, **known
        )
        return estimate.predict_proba(log_ratio, Z)

    as_trained = sw.adjust(log_ratio, log_g)
    known = adapt(None, known_prevalence=float(y.mean()))
    whole = {"as trained": nll(y, as_trained), "no labels": nll(y, adapt(None)), "known": nll(y, known)}
    record = {"nll": whole, "prevalence": float(y.mean()), "numbers": vars(numbers), "rows": len(y)}
    return record | {"drawn": losses(y, as_trained, adapt, case["draws"], seed)}


PARTS = {"tables": tables, "ham": ham}


def cases(part, folder, draws):
    if part == "ham":
        for centres in [CENTRES, *itertools.combinations(CENTRES, 3)]:
            for site in read_ham(folder, centres, 0):
                yield {"seed": 0, "centres": list(centres), "site": site, "folder": str(folder), "draws": draws}
        return
    for name, classifiers in (
        ("heart", ("logistic regression", "gradient boosting")),
        ("gusto", ("logistic regression",)),
    ):
        for site, classifier in itertools.product(LOADERS[name](folder).table["site"].unique(), classifiers):
            case = {"data": name, "site": str(site), "classifier": classifier, "folder": str(folder)}
            yield case | {"draws": 2 * draws if name == "heart" else draws}


def do(job):
    part, case = job
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PARTS[part](case)


def run(options):
    made = provenance(__file__)
    folder, done, jobs = Path(options.data_dir), done_ids(options.out, made["fingerprint"]), []
    for part in options.parts:
        for case in cases(part, folder, options.draws):
            name = " ".join(str(value) for key, value in case.items() if key not in ("folder", "draws"))
            if f"{part} {name}" not in done:
                jobs.append((f"{part} {name}", part, case))
    with ProcessPoolExecutor(options.jobs) as pool:
        results = pool.map(do, [(part, case) for _, part, case in jobs])
        for (name, part, case), result in zip(jobs, results, strict=True):
            plain = {key: value for key, value in case.items() if key != "folder"}
            result["numbers"] = {key: (v if np.isfinite(v) else None) for key, v in result["numbers"].items()}
            append_record(options.out, {"id": name, "part": part, "case": plain, **result, **made})
            print(name, file=sys.stderr)


def lines(records):
    """Yield a dict for each site, number of labels and draw, with the log losses and their change by the labels."""
    for record in records:
        case = record["case"]
        data = f"{case['data']}, {case['classifier']}" if record["part"] == "tables" else "skin lesions, CNN"
        centres = "+".join(name.removeprefix("HAM_") for name in case.get("centres", ()))
        for drawn in record["drawn"]:
            own = drawn["nll"]
            change = own["labels"] - own["no labels"]
            yield {
                "data": data,
                "site": f"{case['site']} {centres}",
                "n": drawn["labels"],
                **own,
                "change": change,
            }


def table(options):
    records = read_records(Path(str(options.file).removesuffix(".gz")))
    frame = pd.DataFrame(list(lines(records)))
    by_site = frame.groupby(["data", "site", "n"], sort=False).mean(numeric_only=True).reset_index()
    means = by_site.groupby(["data", "n"], sort=False).mean(numeric_only=True)
    sites = by_site.groupby(["data", "n"], sort=False)["change"]
    means["sites"], means["not worse"] = sites.size(), sites.apply(lambda change: int((change <= 0.005).sum()))
    means["worst change"] = sites.max()
    print(means.round(4).to_string())
    print(by_site[by_site["change"] > 0.005].round(4).to_string())
    known = [
        {
            "data": record["case"].get("data", "ham"),
            **record["nll"],
            "change": record["nll"]["known"] - record["nll"]["no labels"],
        }
        for record in records
    ]
    print(pd.DataFrame(known).groupby("data", sort=False).agg(["mean", "max"]).round(4).to_string())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("parts", nargs="+", choices=PARTS)
    running.add_argument("--data-dir", required=True)
    running.add_argument("--draws", type=int, default=4, help="draws of the labeled rows; heart has twice as many")
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--out", type=Path, default=Path("results/labels.jsonl"))
    running.set_defaults(function=run)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
