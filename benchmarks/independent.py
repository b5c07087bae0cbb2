"""The default answer at real sites on which no rule of the package was chosen.

    python benchmarks/independent.py run --data-dir DIR --out benchmarks/independent.jsonl
    python benchmarks/independent.py table benchmarks/independent.jsonl.gz

Each site in turn is the new one; all others train a logistic regression or gradient boosting. chest: X-rays, a site is
a source and a projection, x are 50 principal components of the pixels, no z. skin: lesions, x are 50 principal
components of the pixels, z is age and sex. questionnaire: lesions without images, x is age and place on the body, z is
sex. A site becomes the new one if it has at least 100 rows and 10 of each class.
"""

import argparse
import itertools
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from posterior import nll, score
from records import provenance
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import sitewise as sw
from sitewise.bench.datasets.small_images import load_cxr64, load_isic64
from sitewise.bench.experiments.records import append_record, done_ids, read_records

CLASSIFIERS = {
    "logistic regression": lambda: LogisticRegression(max_iter=2000),
    "gradient boosting": lambda: HistGradientBoostingClassifier(max_depth=3, random_state=0),
}
MOST = 2000  # rows of a site; from more rows, so many are drawn
FEWEST, FEWEST_OF_A_CLASS = 100, 10
COMPONENTS = 50


def drawn(table):
    """Return at most MOST rows of each site."""
    return table.groupby("site").sample(frac=1, random_state=0).groupby("site").head(MOST).reset_index(drop=True)


def with_pixels(data, table):
    """Add the pixels, averaged over squares of two by two, as columns p0, p1, ..."""
    packs = {name: data.site(name).X for name in data.sites}
    place = data.table.groupby("site").cumcount()
    images = [packs[site][place[row]] for site, row in zip(table["source"], table["index"], strict=True)]
    pixels = np.stack(images).astype(np.float32).reshape(len(table), -1, 32, 2, 32, 2).mean((3, 5))
    pixels = pixels.reshape(len(table), -1) / 255.0
    return pd.concat([table, pd.DataFrame(pixels, columns=[f"p{i}" for i in range(pixels.shape[1])])], axis=1)


def chest(folder):
    """Return the table of rows, the columns of x, and those of z."""
    data = load_cxr64(folder)
    table = data.table.reset_index().rename(columns={"site": "source"})
    table["site"] = table["source"] + " " + table["projection"].astype(str)
    table = with_pixels(data, drawn(table))
    return table, [name for name in table if name.startswith("p") and name[1:].isdigit()], []


def skin(folder):
    """Return the table of rows, the columns of x, and those of z."""
    data = load_isic64(folder)
    table = data.table.reset_index()
    table["source"] = table["site"]
    table = with_pixels(data, drawn(table))
    return table, [name for name in table if name.startswith("p") and name[1:].isdigit()], ["age", "sex"]


def questionnaire(folder):
    """Return the table of rows, the columns of x, and those of z."""
    table = pd.read_csv(folder / "isic_meta" / "isic_meta.csv.gz", low_memory=False).dropna(subset=["site", "y"])
    table["group"] = table["lesion_id"].fillna(table["patient_id"]).fillna(table["isic_id"])
    table["y"] = table["y"].astype(int)
    return drawn(table), ["age_approx", "anatom_site_general"], ["sex"]


COLLECTIONS = {"chest": chest, "skin": skin, "questionnaire": questionnaire}


def preparation(x, z, table):
    """Return a transformer: principal components of pixels, scaled numbers, and categories."""
    pixels = [name for name in x if name[1:].isdigit()]
    others = [name for name in (*x, *z) if name not in pixels]
    amounts = [name for name in others if table[name].dtype.kind in "if"]
    levels = [name for name in others if name not in amounts]
    return make_column_transformer(
        (make_pipeline(PCA(COMPONENTS, random_state=0), StandardScaler()), pixels),
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), amounts),
        (OneHotEncoder(handle_unknown="ignore"), levels),
        sparse_threshold=0,
    )


def do(case):
    torch.set_num_threads(1)
    table, x, z = COLLECTIONS[case["collection"]](Path(case["folder"]))
    is_new = table["site"] == case["site"]
    source, new = table[~is_new], table[is_new]
    source = source[~source["group"].isin(new["group"])].reset_index(drop=True)
    pipeline = make_pipeline(preparation(x, z, table), CLASSIFIERS[case["classifier"]]())
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    y, groups = source["y"].to_numpy().astype(int), source["group"]
    known = cross_val_predict(pipeline, source, y, cv=folds, groups=groups, method="predict_proba")
    pipeline.fit(source, y)
    adjuster = sw.PrevalenceAdjuster().fit(known, y, source["site"], source[z] if z else None, groups=groups)
    proba, y_new, Z_new = pipeline.predict_proba(new), new["y"].to_numpy().astype(int), new[z] if z else None
    here = adjuster.adapt(proba, sample_confounder=Z_new, groups=new["group"])
    found = score(here, adjuster, proba, y_new, Z_new)
    found["nll"]["unadjusted"] = nll(y_new, proba)
    rows = adjuster.adapt(proba, sample_confounder=Z_new, groups=new["group"], policy="rows")
    found["nll"]["rows alone"] = nll(y_new, rows.predict_proba(proba, Z_new))
    numbers = {name: value if np.isfinite(value) else None for name, value in vars(adjuster.rehearsal_.numbers).items()}
    auroc = float(roc_auc_score(y_new, proba[:, 1]))
    return found | {"outcome": str(here.outcome), "auroc": auroc, "rows": len(new), "numbers": numbers}


def cases(folder):
    for collection, read in COLLECTIONS.items():
        by_site = read(folder)[0].groupby("site")["y"].agg(["size", "sum"])
        rarer = np.minimum(by_site["sum"], by_site["size"] - by_site["sum"])
        for site in by_site.index[(by_site["size"] >= FEWEST) & (rarer >= FEWEST_OF_A_CLASS)]:
            for classifier in CLASSIFIERS:
                yield {"collection": collection, "site": site, "classifier": classifier, "folder": str(folder)}


def run(options):
    made = provenance(__file__)
    done = done_ids(options.out, made["fingerprint"])
    named = {" ".join([case["collection"], case["site"], case["classifier"]]): case for case in cases(options.data_dir)}
    left = {name: case for name, case in named.items() if name not in done}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, result in zip(left, pool.map(do, left.values()), strict=True):
            case = {key: value for key, value in left[name].items() if key != "folder"}
            append_record(options.out, {"id": name, "case": case, **result, **made})
            print(name, file=sys.stderr)


COLUMNS = ("as trained", "adapted", "unchecked", "rows alone", "told")


def table(options):
    records = read_records(Path(str(options.file).removesuffix(".gz")))
    lines = [
        {**record["case"], "rows": record["rows"], "P(y)": record["prevalence"], "AUROC": record["auroc"]}
        | {name: record["nll"][name] for name in COLUMNS}
        | {"outcome": record["outcome"]}
        for record in records
    ]
    frame = pd.DataFrame(lines)
    for (collection, classifier), part in frame.groupby(["collection", "classifier"], sort=False):
        print(f"\n{collection}, {classifier}")
        print(part.drop(columns=["collection", "classifier"]).round(3).to_string(index=False))
    print("\nmean, and the largest increase against as trained")
    for collection, part in itertools.chain(frame.groupby("collection", sort=False), [("all", frame)]):
        more = {name: (part[name] - part["as trained"]).max() for name in COLUMNS[1:4]}
        means = {name: part[name].mean() for name in COLUMNS}
        shown = ", ".join(
            f"{name} {mean:.3f}" + (f" ({more[name]:+.3f})" if name in more else "") for name, mean in means.items()
        )
        print(f"{collection} ({len(part)}): {shown}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("--data-dir", type=Path, required=True)
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--out", type=Path, default=Path("results/independent.jsonl"))
    running.set_defaults(function=run)
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
