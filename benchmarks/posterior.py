"""The default answer at a new site beside the model as trained.

    python benchmarks/posterior.py run simulated classes arrays --out benchmarks/posterior.jsonl
    python benchmarks/posterior.py run ham halves tables --data-dir DIR --out benchmarks/posterior.jsonl
    python benchmarks/posterior.py table benchmarks/posterior.jsonl.gz

simulated: three normal features, the first shifted by y; logistic regression on source sites of 1,000 rows, then
`PrevalenceAdjuster` with its defaults ("trial": the posterior of the level alone). classes: the same with four classes,
each with a feature of its own. arrays: `estimate_prevalence` without a prior, true f, g of age and sex. ham: centres of
HAM10000 left out in turn, NY3 and BCN2, from the log f that networks of other centres gave (`ham_rehearsal`). halves:
two random halves of one population (`employment_ma`), of 6,000 of its rows and of all 68,785. tables: heart disease and
GUSTO, also drawn again by outcome.
"""

import argparse
import itertools
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from real_tables import CLASSIFIERS, LOADERS, preparation
from records import provenance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline

import sitewise as sw
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.estimator.source.rehearsal import Unit, learn_numbers
from sitewise.prevalence import SitePrior
from sitewise.prevalence.base import ConstantPrevalence

SIGNALS = {2.3: 0.95, 1.2: 0.80, 0.7: 0.69}  # the shift of x, and the AUROC it gives
SHIFTS = {
    2.3: ((0.3, 0.05), (0.4, 0.4)),
    1.2: ((0.3, 0.05), (0.5, 0.1), (0.3, 0.7), (0.4, 0.4)),
    0.7: ((0.3, 0.05), (0.4, 0.4)),
}
SIZES = (30, 100, 300, 1000)
DRAWN = (0.03, 0.1, 0.5, 0.75)
TABLE_CLASSIFIERS = {
    **{name: make for name, make in CLASSIFIERS.items() if make is not None},
    "network": lambda seed: MLPClassifier((32,), alpha=1e-2, early_stopping=True, random_state=seed),
}
INFORMATIVE = 0.75  # AUROC from which a classifier counts where rows are drawn by outcome
CENTRES = ("HAM_rosendahl", "HAM_vidir_modern", "HAM_vidir_molemax", "HAM_vienna_dias")


def nll(y, probability):
    return float(-np.log(np.clip(probability[np.arange(len(y)), y], 1e-12, None)).mean())


def told(log_probability, y):
    """The log loss where the level is the one that the labels ask for."""
    nothing = torch.zeros(len(y), 2, dtype=torch.float64)
    unit = Unit("", torch.tensor(log_probability), nothing, torch.tensor(y), torch.ones(len(y)).double(), 1.0)
    return unit.labeled_level[2]


def score(here, model, inputs, y, Z=None):
    """Log losses as trained, adapted (with the checks and without) and told P(y); P(y) with its interval."""
    as_trained = model.predict_proba(inputs, sample_confounder=Z)
    low, high = here.prevalence_interval()
    return {
        "nll": {
            "as trained": nll(y, as_trained),
            "adapted": nll(y, here.predict_proba(inputs, Z)),
            "unchecked": nll(y, here.unchecked().predict_proba(inputs, Z)),
            "told": told(np.log(as_trained), y),
        },
        "prevalence": float(np.mean(y)),
        "estimate": float(here.prevalence()[1]),
        "interval": [float(low[1]), float(high[1])],
        "verdict": here.diagnose().verdict,
    }


def simulated_site(rng, n, share, signal):
    y = (rng.random(n) < share).astype(int)
    X = rng.normal(size=(n, 3))
    X[:, 0] += signal * y
    return X, y


def simulated(case):
    signal, share, new_share, n_sites, seed = (
        case["signal"],
        case["share"],
        case["new_share"],
        case["sites"],
        case["seed"],
    )
    rng = np.random.default_rng(seed)
    apart = 0.1 if n_sites == 2 else 0.0
    sites = [simulated_site(rng, 1000, share + apart * side, signal) for side in np.linspace(-1, 1, n_sites)]
    X, y = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    classifier = LogisticRegression()
    proba = cross_val_predict(classifier, X, y, method="predict_proba")
    classifier.fit(X, y)
    adjuster = sw.PrevalenceAdjuster().fit(proba, y, np.repeat(np.arange(n_sites), 1000).astype(str))
    found = []
    for n, _ in itertools.product(SIZES, range(case["draws"])):
        X_new, y_new = simulated_site(rng, n, new_share, signal)
        p = classifier.predict_proba(X_new)
        log_ratio = adjuster.log_ratio(p)
        trial = sw.estimate_prevalence(
            log_ratio, prior=SitePrior(adjuster.pooled_prevalence_, n_source=1000.0 * n_sites, missing=0.6)
        )
        here = adjuster.adapt(p)
        low, high = here.prevalence_interval()
        losses = {
            "as trained": nll(y_new, p),
            "trial": nll(y_new, trial.predict_proba(log_ratio)),
            "adapted": nll(y_new, here.predict_proba(p)),
            "unchecked": nll(y_new, here.unchecked().predict_proba(p)),
        }
        found.append({"n": n, "nll": losses, "held": bool(low[1] <= new_share <= high[1])})
    return {"sites": found, "numbers": vars(adjuster.rehearsal_.numbers)}


FOUR = {
    "as at the source": (0.4, 0.3, 0.2, 0.1),
    "reversed": (0.1, 0.2, 0.3, 0.4),
    "one class": (0.85, 0.05, 0.05, 0.05),
}


def four_classes(rng, n, shares, signal):
    y = rng.choice(4, size=n, p=np.asarray(shares) / np.sum(shares))
    X = rng.normal(size=(n, 4))
    X[np.arange(n), y] += signal
    return X, y


def classes(case):
    rng, signal = np.random.default_rng(case["seed"]), case["signal"]
    base = np.array(FOUR["as at the source"])
    tilt = np.array([0.1, 0.05, -0.1, -0.05]) if case["sites"] == 2 else np.zeros(4)
    sites = [four_classes(rng, 1000, base + tilt * side, signal) for side in np.linspace(-1, 1, case["sites"])]
    X, y = (np.concatenate(parts) for parts in zip(*sites, strict=True))
    classifier = LogisticRegression()
    proba = cross_val_predict(classifier, X, y, method="predict_proba")
    classifier.fit(X, y)
    adjuster = sw.PrevalenceAdjuster().fit(proba, y, np.repeat(np.arange(case["sites"]), 1000).astype(str))
    found = []
    for n, _ in itertools.product(SIZES, range(case["draws"])):
        X_new, y_new = four_classes(rng, n, FOUR[case["new"]], signal)
        p = classifier.predict_proba(X_new)
        here = adjuster.adapt(p)
        low, high = here.prevalence_interval()
        held = np.mean([low[k] <= share <= high[k] for k, share in enumerate(FOUR[case["new"]])])
        losses = {
            "as trained": nll(y_new, p),
            "adapted": nll(y_new, here.predict_proba(p)),
            "unchecked": nll(y_new, here.unchecked().predict_proba(p)),
        }
        found.append({"n": n, "nll": losses, "held": float(held)})
    return {"sites": found, "numbers": vars(adjuster.rehearsal_.numbers)}


def arrays(case):
    """The mean KL from the true g(z) to the one estimated at fresh z, beside that of a constant g."""
    rng, found = np.random.default_rng(case["seed"]), []

    def draw(n):
        Z = pd.DataFrame({"age": rng.normal(size=n), "sex": rng.choice(["f", "m"], n)})
        odds = -0.5 + case["relation"] * (Z["age"] + 0.8 * (Z["sex"] == "f") - 0.4)
        return Z, 1 / (1 + np.exp(-odds.to_numpy()))

    fresh, truth = draw(2000)
    for n in (100, 200, 500, 1000):
        Z, g = draw(n)
        y = rng.random(n) < g
        x = rng.normal(size=n) + 1.5 * y
        log_ratio = np.column_stack([-0.5 * x**2, -0.5 * (x - 1.5) ** 2])
        line = {"n": n}
        for model in ("auto", "constant"):
            log_g = sw.estimate_prevalence(log_ratio, Z, model=model).log_prevalence(fresh)
            p = np.clip(np.exp(log_g[:, 1]), 1e-12, 1 - 1e-12)
            line[model] = float(np.mean(truth * np.log(truth / p) + (1 - truth) * np.log((1 - truth) / (1 - p))))
        found.append(line)
    return {"sites": found}


def read_ham(folder, centres, seed):
    with np.load(folder / "ham_rehearsal" / f"{'+'.join(sorted(centres))}_{seed}.npz") as file:
        names = sorted({key.split("|")[0] for key in file.files})
        return {name: tuple(file[f"{name}|{part}"] for part in ("log_ratio", "log_prevalence", "y")) for name in names}


def ham(case):
    """Units as `rehearse` makes them; the tempering is that of 1,500 held-out rows."""
    folder, centres, seed = Path(case["folder"]), case["centres"], case["seed"]
    prior = SitePrior(ConstantPrevalence(torch.zeros(2, dtype=torch.float64)), n_source=1500.0, missing=0.6)

    def unit(name, rows):
        log_ratio, log_g, y = (torch.tensor(part) for part in rows)
        return Unit.of(
            name, log_ratio.double(), log_g.double(), y.long(), torch.ones(len(y)).double(), prior, shifted=True
        )

    rehearsed = [unit(c, read_ham(folder, [o for o in centres if o != c], seed)[c]) for c in centres]
    numbers = learn_numbers(rehearsed)
    log_ratio, log_g, y = read_ham(folder, centres, seed)[case["site"]]
    y, joint = y.astype(int), log_ratio + log_g
    rows = (torch.tensor(part).double() for part in (log_ratio - np.logaddexp(*log_ratio.T)[:, None], log_g))
    whole = Unit("", *rows, torch.tensor(y), torch.ones(len(y)).double(), prior.tempering(len(y)))
    as_trained = np.exp(joint - np.logaddexp(*joint.T)[:, None])
    told_nll = told(np.log(as_trained), y)
    losses = {"as trained": nll(y, as_trained), "unchecked": whole.loss(numbers), "told": told_nll}
    return {"nll": losses, "prevalence": float(y.mean()), "numbers": vars(numbers)}


def halves(case):
    table = pd.read_parquet(Path(case["folder"]) / "employment_ma" / "employment_2015.parquet")
    table = table.sample(case.get("rows") or len(table), random_state=case["seed"])
    source, new = table.iloc[: len(table) // 2], table.iloc[len(table) // 2 :]
    z = case["z"]

    def parts(rows):
        p = rows["predicted_probability"].to_numpy()
        return np.column_stack([1 - p, p]), rows["employed"].to_numpy().astype(int), rows[z]

    proba, y, Z = parts(source)
    adjuster = sw.PrevalenceAdjuster(random_state=case["seed"]).fit(proba, y, sample_confounder=Z)
    proba, y, Z = parts(new)
    return score(adjuster.adapt(proba, sample_confounder=Z), adjuster, proba, y, Z)


def tables(case):
    """A hospital or region left out, as it is and drawn again by outcome; also with a wide prior."""
    data = LOADERS[case["data"]](Path(case["folder"]))
    source, new = data.split(case["site"])
    if case["data"] == "gusto":
        source = (
            source.groupby("site", sort=False)
            .sample(frac=1, random_state=0)
            .groupby("site")
            .head(500)
            .reset_index(drop=True)
        )
    made = TABLE_CLASSIFIERS[case["classifier"]]
    pipeline = make_pipeline(preparation(data, [*data.features, *data.confounders]), made(0))
    z = list(data.confounders)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    known = cross_val_predict(pipeline, source, source["y"], cv=folds, method="predict_proba")
    pipeline.fit(source, source["y"])
    adjuster = sw.PrevalenceAdjuster().fit(known, source["y"], source["site"], source[z])
    found = {"numbers": vars(adjuster.rehearsal_.numbers), "drawn": []}
    rng = np.random.default_rng(0)
    for share in (None, *DRAWN):
        rows = new
        if share is not None:  # as many as the rarer of what is needed allows
            classes = [new[new["y"] == k] for k in (0, 1)]
            n = int(min(len(classes[0]) / (1 - share), len(classes[1]) / share, 1000))
            counts = n - round(n * share), round(n * share)
            if min(counts) < 3:
                continue
            rows = pd.concat(
                [part.iloc[rng.permutation(len(part))[:count]] for part, count in zip(classes, counts, strict=True)]
            )
        p, y = pipeline.predict_proba(rows), rows["y"].to_numpy()
        own = score(adjuster.adapt(p, sample_confounder=rows[z]), adjuster, p, y, rows[z])
        own["nll"]["unadjusted"] = nll(y, p)
        own["auroc"] = float(roc_auc_score(y, p[:, 1]))
        wide = adjuster.adapt(p, sample_confounder=rows[z], level_scale=3.0)
        own["nll"]["wide prior"] = nll(y, wide.predict_proba(p, rows[z]))
        own["nll"]["wide, unchecked"] = nll(y, wide.unchecked().predict_proba(p, rows[z]))
        if share is None:
            found |= own
        else:
            found["drawn"].append({"share": share, **own})
    return found


PARTS = {
    "simulated": simulated,
    "classes": classes,
    "arrays": arrays,
    "ham": ham,
    "halves": halves,
    "tables": tables,
}


def cases(part, folder, seeds):
    if part == "simulated":
        for signal, shifts in SHIFTS.items():
            for (share, new_share), seed in itertools.product(shifts, range(seeds)):
                for n_sites in (2, 4) if share == new_share else (2,):
                    yield {
                        "signal": signal,
                        "share": share,
                        "new_share": new_share,
                        "sites": n_sites,
                        "seed": seed,
                        "draws": 5,
                    }
    elif part == "classes":
        for signal, new, seed in itertools.product((2.0, 1.2), FOUR, range(seeds)):
            for n_sites in (2, 4) if new == "as at the source" else (2,):
                yield {"signal": signal, "new": new, "sites": n_sites, "seed": seed, "draws": 5}
    elif part == "arrays":
        for relation, seed in itertools.product((1.0, 0.0), range(10 * seeds)):
            yield {"relation": relation, "seed": seed}
    elif part == "ham":
        for seed, centres in itertools.product((0, 1), [CENTRES, *itertools.combinations(CENTRES, 3)]):
            for site in read_ham(folder, centres, seed):
                yield {"seed": seed, "centres": list(centres), "site": site, "folder": str(folder)}
    elif part == "halves":
        for rows, z, seed in itertools.product((6000, None), (["AGEP"], ["AGEP", "SEX"]), range(10)):
            yield {"rows": rows, "z": z, "seed": seed, "folder": str(folder)}
    else:
        for name in ("heart", "gusto"):
            for site, classifier in itertools.product(LOADERS[name](folder).table["site"].unique(), TABLE_CLASSIFIERS):
                yield {"data": name, "site": str(site), "classifier": classifier, "folder": str(folder)}


def do(job):
    part, case = job
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PARTS[part](case)


def run(options):
    folder = None if options.data_dir is None else Path(options.data_dir)
    made = provenance(__file__)
    done = done_ids(options.out, made["fingerprint"])
    jobs = []
    for part in options.parts:
        for case in cases(part, folder, options.seeds):
            name = " ".join(str(value) for key, value in case.items() if key != "folder")
            if f"{part} {name}" not in done:
                jobs.append((f"{part} {name}", part, case))
    with ProcessPoolExecutor(options.jobs) as pool:
        found = pool.map(do, [(part, case) for _, part, case in jobs])
        for (name, part, case), result in zip(jobs, found, strict=True):
            plain = {key: value for key, value in case.items() if key != "folder"}
            result["numbers"] = {k: (v if np.isfinite(v) else None) for k, v in result.get("numbers", {}).items()}
            append_record(options.out, {"id": name, "part": part, "case": plain, **result, **made})
            print(name, file=sys.stderr)


def table(options):
    records = read_records(Path(str(options.file).removesuffix(".gz")))
    for part in PARTS:
        lines = [line for record in records if record["part"] == part for line in TABLES[part](record)]
        if lines:
            frame = pd.DataFrame(lines)
            keys = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
            print(f"\n{part}\n", frame.groupby(keys, sort=False).mean(numeric_only=True).round(3).to_string())


def simulated_lines(record):
    case = record["case"]
    name = f"AUROC {SIGNALS[case['signal']]:.2f}, {case['share']} to {case['new_share']}, {case['sites']} sites"
    for site in record["sites"]:
        yield {"sites": name, "n": str(site["n"]), **site["nll"], "interval holds": float(site["held"])}


def ham_lines(record):
    yield {
        "site": "all",
        **record["nll"],
        "unchecked less as trained": record["nll"]["unchecked"] - record["nll"]["as trained"],
    }
    yield {"site": record["case"]["site"], **record["nll"]}


def halves_lines(record):
    low, high = record["interval"]
    held = float(low <= record["prevalence"] <= high)
    rows = record["case"].get("rows", 6000)  # earlier records do not say
    of = "all rows" if rows is None else f"{rows:,} rows"
    yield {"halves of": of, "z": "+".join(record["case"]["z"]), **record["nll"], "interval holds": held}


def tables_lines(record):
    name = f"{record['case']['data']}, {record['case']['classifier']}"
    yield {"data": name, "drawn": "as it is", **record["nll"]}
    for drawn in record["drawn"]:
        if record["auroc"] >= INFORMATIVE:
            yield {"data": name, "drawn": "by outcome", **drawn["nll"]}


def classes_lines(record):
    case = record["case"]
    name = f"signal {case['signal']}, {case['new']}, {case['sites']} sites"
    for site in record["sites"]:
        yield {"sites": name, "n": str(site["n"]), **site["nll"], "interval holds": site["held"]}


def arrays_lines(record):
    g = "of age and sex" if record["case"]["relation"] else "flat"
    for site in record["sites"]:
        yield {"g": g, "n": str(site["n"]), "estimated": site["auto"], "constant": site["constant"]}


TABLES = {
    "simulated": simulated_lines,
    "classes": classes_lines,
    "arrays": arrays_lines,
    "ham": ham_lines,
    "halves": halves_lines,
    "tables": tables_lines,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("parts", nargs="+", choices=PARTS)
    running.add_argument("--data-dir")
    running.add_argument("--seeds", type=int, default=12)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--out", type=Path, default=Path("results/posterior.jsonl"))
    running.set_defaults(function=run)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
