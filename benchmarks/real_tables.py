"""Real tables with each site in turn as the new site: classifiers unadjusted, adjusted, and with true prevalences.

    python benchmarks/real_tables.py run --data-dir DIR
    python benchmarks/real_tables.py table benchmarks/real_tables.jsonl
    python benchmarks/real_tables.py figure benchmarks/real_tables.jsonl

Heart disease has four hospitals, and GUSTO-I has 16 regions. All other sites are used for training; for GUSTO at most
`--at-most` patients of each region, so that a run takes minutes. Models are adapted on all patients of the new site,
and scored on the same patients.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from records import provenance
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sitewise as sw
from sitewise.bench.datasets.real_tables import load_gusto, load_heart
from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.evaluation import evaluate
from sitewise.report.style import ACCENT, GREY, INK, in_house_style

LOADERS = {"heart": load_heart, "gusto": load_gusto}
CLASSIFIERS = {
    "logistic regression": lambda seed: LogisticRegression(max_iter=1000),
    "gradient boosting": lambda seed: HistGradientBoostingClassifier(max_depth=3, random_state=seed),
    "MLP": None,  # the network of `GPAClassifier`
}
ARMS = {
    "unadjusted": "unadjusted",
    "label_shift": "label-shift EM",
    "gpa": "GPA",
    "gpa_prior": "GPA, sites' prior",
    "true_prevalence": "true P(y)",
    "true_g": "true g(z)",
}
FOLDS = 5
RESAMPLES = 200


def preparation(data, columns):
    """Return a scikit-learn transformer of these columns, for missing values, categories and scales."""
    levels = [name for name in columns if name in data.categorical or data.table[name].dtype.kind not in "if"]
    amounts = [name for name in columns if name not in levels]
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), amounts),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")), levels),
        sparse_threshold=0,
    )


def around_classifier(data, source, new, classifier, seed):
    """Return two adjusters of a classifier, without and with z, their inputs at the new site, and its predictions."""
    pipeline = make_pipeline(preparation(data, [*data.features, *data.confounders]), classifier)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    known = cross_val_predict(pipeline, source, source["y"], cv=folds, method="predict_proba")
    proba = pipeline.fit(source, source["y"]).predict_proba(new)
    plain = sw.PrevalenceAdjuster(random_state=seed).fit(known, source["y"])
    Z = source[list(data.confounders)]
    gpa = sw.PrevalenceAdjuster(random_state=seed).fit(known, source["y"], source["site"], Z)
    return plain, proba, gpa, proba, proba


def networks(data, source, new, seed):
    """Return an MLP of x and z without sites (ERM), GPA, their inputs at the new site, and predictions of the MLP."""
    wide, narrow = (preparation(data, columns) for columns in ([*data.features, *data.confounders], data.features))
    X, X_new = wide.fit_transform(source).astype(np.float32), wide.transform(new).astype(np.float32)
    x, x_new = narrow.fit_transform(source).astype(np.float32), narrow.transform(new).astype(np.float32)
    plain = sw.GPAClassifier(random_state=seed, verbose=False).fit(X, source["y"])
    Z = source[list(data.confounders)]
    gpa = sw.GPAClassifier(random_state=seed, verbose=False, missing="knockout")
    gpa.fit(x, source["y"], sample_domain=source["site"], sample_confounder=Z)
    return plain, X_new, gpa, x_new, plain.predict_proba(X_new)


def at_site(data, site, name, seed, at_most):
    """Return the record of one new site and one classifier, without its id."""
    start = time.perf_counter()
    source, new = data.split(site)
    if at_most is not None:
        source = source.groupby("site", sort=False).sample(frac=1, random_state=seed).groupby("site").head(at_most)
        source = source.reset_index(drop=True)
    make = CLASSIFIERS[name]
    fitted = around_classifier(data, source, new, make(seed), seed) if make else networks(data, source, new, seed)
    plain, plain_X, gpa, gpa_X, unadjusted = fitted
    Z, y = new[list(data.confounders)], new["y"].to_numpy()
    shifted, adapted = plain.adapt(plain_X), gpa.adapt(gpa_X, sample_confounder=Z)
    log_ratio = gpa.log_ratio(gpa_X, sample_confounder=Z)
    schema = gpa.confounders_
    prior = sw.pool_prevalence(source["y"], source[list(data.confounders)], source["site"], confounders=schema)
    with_prior = sw.estimate_prevalence(log_ratio, Z, prior=prior, confounders=schema, random_state=seed)
    truth = np.log([1 - y.mean(), y.mean()])
    probabilities = {
        "unadjusted": unadjusted,
        "label_shift": shifted.unchecked().predict_proba(plain_X),
        "gpa": adapted.unchecked().predict_proba(gpa_X, Z),
        "gpa_prior": sw.adjust(log_ratio, with_prior.log_prevalence(Z)),
        "true_prevalence": sw.adjust(plain.log_ratio(plain_X), truth),
        "true_g": told_the_labels(gpa, log_ratio, Z, y, seed),
    }
    by_arm = {arm: scores(y, proba, unadjusted, seed) for arm, proba in probabilities.items()}
    for arm, here in (("label_shift", shifted), ("gpa", adapted)):
        diagnosis, here = here.diagnose(), here.unchecked()
        by_arm[arm] |= prevalence_of(here.prevalence(), here.prevalence_interval())
        marked = {f.name: f.severity for f in diagnosis.findings if f.severity in ("care", "stop")}
        by_arm[arm] |= {"verdict": diagnosis.verdict, "marked": marked, "model": here.estimate.model}
        expected = here.expected_performance()
        by_arm[arm]["expected"] = {m: list(expected[m]) for m in ("accuracy", "positive_f1", "auroc")}
    by_arm["gpa_prior"] |= prevalence_of(with_prior.marginal, with_prior.interval()) | {"model": with_prior.model}
    return {
        "data": data.name,
        "site": site,
        "classifier": name,
        "seed": seed,
        "at_most": at_most,
        "n": len(new),
        "n_source": len(source),
        "prevalence": y.mean(),
        "source_prevalence": source["y"].mean(),
        "sees": getattr(gpa, "classifier_sees_", None),
        "arms": by_arm,
        "seconds": time.perf_counter() - start,
    }


def told_the_labels(gpa, log_ratio, Z, y, seed):
    """Predict with GPA's f and a g(z) fitted to labels of the new site, cross-fitted over `FOLDS` folds."""
    probability = np.empty_like(log_ratio)
    for fitted, held in StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(Z, y):
        labeled = gpa.adapt_log_ratio(log_ratio[fitted], Z.iloc[fitted], y=y[fitted])
        probability[held] = labeled.adjust(log_ratio[held], Z.iloc[held])
    return probability


def scores(y, probability, unadjusted, seed):
    """Return every metric with its interval, and the mean gain in NLL over the unadjusted with its standard error."""
    metrics = evaluate(y, probability, n_resamples=RESAMPLES, random_state=seed)
    own, other = (-np.log(np.clip(p[np.arange(len(y)), y], 1e-15, 1)) for p in (probability, unadjusted))
    gain = other - own
    return {
        "metrics": {name: [metric.value, metric.low, metric.high] for name, metric in metrics.items()},
        "nll_gain": [float(gain.mean()), float(gain.std(ddof=1) / len(gain) ** 0.5)],
    }


def prevalence_of(marginal, interval):
    """Return P(y=1) with the ends of its interval."""
    return {"prevalence": [float(np.asarray(part)[1]) for part in (marginal, *interval)]}


def run(out, data_dir, names, seeds, at_most, sites, classifiers):
    """Compute the records of all sites of the collections and all classifiers that are not in the file yet."""
    made = provenance(__file__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in names:
        data = LOADERS[name](data_dir)
        limit = at_most if name == "gusto" else None
        for seed in range(seeds if name == "heart" else 1):
            for site in sites or data.sites:
                for classifier in classifiers:
                    id_ = f"{name}-{site}-{classifier.replace(' ', '_')}-{seed}-{limit or 'all'}"
                    if id_ not in done_ids(out, made["fingerprint"]):
                        append_record(out, {"id": id_, **at_site(data, site, classifier, seed, limit), **made})


def frame(records):
    """Return a table with a row for each record and arm; seeds are not averaged."""
    rows = []
    for record in records:
        for arm, entry in record["arms"].items():
            values = {name: metric[0] for name, metric in entry["metrics"].items()}
            low_high = entry.get("prevalence", [None] * 3)
            rows.append(
                {key: record[key] for key in ("data", "site", "classifier", "seed", "at_most", "n", "prevalence")}
                | {"arm": arm, **values, "gain": entry["nll_gain"][0], "gain_error": entry["nll_gain"][1]}
                | dict(zip(("estimate", "low", "high"), low_high, strict=True))
                | {"verdict": entry.get("verdict", ""), "marked": ", ".join(entry.get("marked", {}))}
            )
    table = pd.DataFrame(rows)
    held = (table["low"] <= table["prevalence"]) & (table["prevalence"] <= table["high"])
    return table.assign(holds=held.where(table["estimate"].notna()))


def means_table(table, data):
    """Return a Markdown table of the means of every metric over sites and seeds, for each classifier and arm."""
    lines = ["| classifier | | NLL | Brier | AUROC | calibration error | F1 | error of P(y=1) | interval holds it |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    chosen = table[table["data"] == data]
    for (classifier, arm), rows in chosen.groupby(["classifier", "arm"], sort=False):
        cells = [f"{rows[name].mean():.3f}" for name in ("nll", "brier", "auroc", "ece", "positive_f1")]
        known = rows["estimate"].notna()
        error = f"{(rows['estimate'] - rows['prevalence']).abs().mean():.3f}" if known.any() else ""
        holds = f"{int(rows['holds'].sum())} of {len(rows)}" if known.any() else ""
        lines.append(f"| {classifier} | {ARMS[arm]} | {' | '.join([*cells, error, holds])} |")
    return lines


def short_table(table, data):
    """Return a Markdown table of the mean NLL, with a row for each classifier and a column for each arm."""
    chosen = table[table["data"] == data]
    lines = [f"| mean NLL | sites | {' | '.join(ARMS.values())} |", "|---" * (len(ARMS) + 2) + "|"]
    for classifier, rows in chosen.groupby("classifier", sort=False):
        means = rows.groupby("arm")["nll"].mean()
        cells = [classifier, f"{rows['site'].nunique()}", *(f"{means[arm]:.3f}" for arm in ARMS)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def sites_table(table, data, classifier, seed=0):
    """Return a Markdown table of one classifier with a row for each site: prevalence, estimates, NLL and verdict."""
    arms_shown = ("unadjusted", "label_shift", "gpa", "gpa_prior")
    lines = ["| site | rows | P(y=1) | label-shift EM | GPA | NLL: " + " | ".join(ARMS[arm] for arm in arms_shown)]
    lines[0] += " | verdict on GPA (marked) |"
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    chosen = table[(table["data"] == data) & (table["classifier"] == classifier) & (table["seed"] == seed)]
    for site, rows in chosen.groupby("site", sort=False):
        arms = rows.set_index("arm")
        cells = [f"{site}", f"{arms['n'].iloc[0]:,}", f"{arms['prevalence'].iloc[0]:.3f}"]
        for arm in ("label_shift", "gpa"):
            row = arms.loc[arm]
            cells.append(f"{row['estimate']:.3f} ({row['low']:.3f} to {row['high']:.3f})")
        cells += [f"{arms.loc[arm, 'nll']:.3f}" for arm in arms_shown]
        verdict, marked = arms.loc["gpa", "verdict"], arms.loc["gpa", "marked"]
        cells.append(f"{verdict} ({marked})" if marked else verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@in_house_style
def figure(table, data):
    """Draw estimated and true P(y=1) of each site, and the gain in NLL over the unadjusted classifier."""
    chosen = table[(table["data"] == data) & (table["seed"] == 0)]
    names = list(dict.fromkeys(chosen["classifier"]))
    drawn, axes = plt.subplots(2, len(names), figsize=(3.6 * len(names), 6.4), layout="constrained", sharey="row")
    styles = {"label_shift": ("s", GREY), "gpa": ("o", ACCENT), "gpa_prior": ("^", INK)}
    order = list(chosen.drop_duplicates("site").sort_values("prevalence")["site"])
    for column, name in enumerate(names):
        rows = chosen[chosen["classifier"] == name].set_index(["arm", "site"])
        for number, (arm, (marker, colour)) in enumerate(styles.items()):
            here = rows.loc[arm].reindex(order)
            place = np.arange(len(order)) + 0.22 * (number - 1)
            errors = [here["estimate"] - here["low"], here["high"] - here["estimate"]]
            look = {"fmt": marker, "color": colour, "ms": 4, "lw": 1, "label": ARMS[arm]}
            axes[0, column].errorbar(place, here["estimate"], np.clip(errors, 0, None), **look)
            axes[1, column].errorbar(place, here["gain"], 1.96 * here["gain_error"], **look)
        true = rows.loc["gpa"].reindex(order)["prevalence"]
        axes[0, column].hlines(true, np.arange(len(order)) - 0.4, np.arange(len(order)) + 0.4, color=INK, lw=1.5)
        axes[0, column].set_title(name, fontsize=10)
        axes[1, column].axhline(0, color=GREY, lw=0.8)
        for axis in axes[:, column]:
            axis.set_xticks(range(len(order)), order, rotation=0 if data == "gusto" else 20, fontsize=8)
    axes[1, 0].set_yscale("symlog", linthresh=0.1 if data == "heart" else 0.01)
    axes[0, 0].set_ylabel("P(y=1): estimates, and true (lines)")
    axes[1, 0].set_ylabel("NLL saved against unadjusted\n(above 0: adapting helps)")
    drawn.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run what is not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/real_tables.jsonl"))
    running.add_argument("--data-dir", help="folder of the collections; SITEWISE_DATA otherwise")
    running.add_argument("--data", nargs="*", choices=LOADERS, default=list(LOADERS))
    running.add_argument("--sites", nargs="*", help="these sites only")
    running.add_argument("--classifiers", nargs="*", choices=CLASSIFIERS, default=list(CLASSIFIERS))
    running.add_argument("--seeds", type=int, default=3, help="of heart; GUSTO is run once")
    running.add_argument("--at-most", type=int, default=500, help="training patients of a GUSTO region")
    for name, help_ in (("table", "print the tables"), ("figure", "draw the figures")):
        showing = commands.add_parser(name, help=help_)
        showing.add_argument("file", type=Path)
        if name == "figure":
            showing.add_argument(
                "--out", type=Path, default=Path("docs/images"), help="folder for heart.png, gusto.png"
            )
    arguments = parser.parse_args()
    if arguments.command == "run":
        picked = (arguments.data, arguments.seeds, arguments.at_most, arguments.sites, arguments.classifiers)
        run(arguments.out, arguments.data_dir, *picked)
        return
    table = frame(read_records(arguments.file))
    for name in LOADERS:
        if arguments.command == "figure":
            figure(table, name).savefig(arguments.out / f"{name}.png", dpi=110)
            continue
        sections = [
            short_table(table, name),
            means_table(table, name),
            *(sites_table(table, name, c) for c in CLASSIFIERS),
        ]
        sys.stdout.write("\n\n".join("\n".join(lines) for lines in sections) + "\n\n")


if __name__ == "__main__":
    main()
