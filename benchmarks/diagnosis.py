"""The reliability of the diagnosis of a site: false alarms, uniformity of p-values, power, and uninformative f.

    python benchmarks/diagnosis.py run --out benchmarks/diagnosis.jsonl --part null --world digits
    python benchmarks/diagnosis.py table benchmarks/diagnosis.jsonl.gz
    python benchmarks/diagnosis.py figure benchmarks/diagnosis.jsonl.gz --out docs/images/diagnosis.png

There are four parts. null: sites at which the assumption holds, simulated ones with known f and colored digits with a
trained network; each site has its own held-out source rows. broken: sites with one change of several sizes, and its
cost: the F1 of adapted predictions that is lost compared with the same rows unchanged. uninformative: log f is noise.
groups: sites at which the assumption holds, and every patient has 4 to 10 rows with the same y and z and similar x; the
tests are done with and without `groups`. Training, held-out rows and sites have different digits.
Every site adds one line to the file of records; a site that is already in the file is not computed again.
"""

import argparse
import gzip
import json
import time
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from records import provenance
from scipy import ndimage
from scipy.stats import kstest
from sklearn.metrics import f1_score

import sitewise as sw
from sitewise.bench.datasets.digits import color, from_table, load_digits
from sitewise.confounders import Confounders
from sitewise.diagnosis.diagnose import diagnose_site
from sitewise.diagnosis.samples import SourceSample, TargetSample, evenly
from sitewise.estimator.scoring.cached import score_keeping_features
from sitewise.ratio import network_inputs

PARTS = ("null", "uninformative", "broken", "groups")
SIZES = (500, 1000, 2000, 5000)
HELD_OUT = {"simulated": (1000, 3000), "digits": (2000, 2000)}
N_NULL, N_BROKEN, N_UNINFORMATIVE = 300, 5, 100
BROKEN_ROWS = (1000, 2500)
PATIENTS, HELD_OUT_PATIENTS, ROWS_OF_ONE = (100, 200, 400), 600, (4, 11)
LIKENESS = (0.3, 0.8)  # the share of the variance of x given y and z that is between patients
N_PATIENT_SITES = 60
TESTED = ("by groups", "by rows")
CHANGES = {
    "feature": (0.2, 0.4, 0.7, 1.0, 1.5),  # shift of one feature of a simulated site in standard deviations
    "noise": (10, 20, 40, 60, 90),  # standard deviation of Gaussian noise; pixels are 0 to 255
    "blur": (0.5, 0.8, 1.1, 1.4, 1.8),  # standard deviation of a Gaussian blur in pixels
    "inverted": (0.1, 0.25, 0.5, 0.75, 1.0),  # share of images whose colours are inverted
    "bolder": (0.2, 0.4, 0.6, 0.8, 1.0),  # share of digits written with a thicker pen
    "slant": (0.15, 0.3, 0.45, 0.6, 0.8),  # shear of all digits
}
TRAINING_TABLES = ([[0.40, 0.10], [0.10, 0.40]], [[0.45, 0.15], [0.12, 0.28]])
TRAINING_DIGITS, POOL, CHANGED_POOL, MODELS = 8_000, 16_000, 8_000, 2
FEATURE_ROWS = 2000
COST = 0.05  # loss of F1 from which a change should be detected


@dataclass(frozen=True)
class Case:
    """One site; these values identify its line in the records."""

    part: str
    world: str  # simulated or digits
    n: int
    seed: int
    change: str = "none"
    size: float = 0.0


def plan(parts):
    cases = []
    if "null" in parts:
        cases += [Case("null", w, SIZES[s % 4], s) for w, s in product(HELD_OUT, range(N_NULL))]
    if "broken" in parts:
        for change, n, seed in product(CHANGES, BROKEN_ROWS, range(N_BROKEN)):
            world = "simulated" if change == "feature" else "digits"
            cases += [Case("broken", world, n, seed, change, size) for size in CHANGES[change]]
    if "uninformative" in parts:
        cases += [Case("uninformative", "simulated", SIZES[s % 4], s) for s in range(N_UNINFORMATIVE)]
    if "groups" in parts:
        for seed, likeness, tested in product(range(N_PATIENT_SITES), LIKENESS, TESTED):
            cases.append(Case("groups", "simulated", PATIENTS[seed % 3], seed, tested, likeness))
    return cases


def setting(case):
    """Return a random generator, the simulated family, and the settings of the site."""
    number = case.seed % 12
    family = sw.SimulatedFamily(seed=number, signal=(1.5, 2.0, 3.0)[number % 3])
    kinds = [(0.5, 1.0, 0.0), (0.2, -0.5, 0.7), (0.1, 0.3, -0.7), (0.35, 1.3, 0.5)]
    positive, dependence, z_shift = kinds[case.seed // 3 % 4]
    settings = {"prevalence": [1 - positive, positive], "dependence": dependence, "z_shift": z_shift}
    return np.random.default_rng([case.seed, case.n]), family, settings


def with_patients(case):
    """Return the schema, the held-out rows, the rows of a site, and for both the patient of each row."""
    rng, family, settings = setting(case)
    held_out = {"prevalence": [0.6, 0.4], "dependence": 0.7}
    parts, groups, schema = [], [], None
    for n, kind in ((HELD_OUT_PATIENTS, held_out), (case.n, settings)):
        site = family.site(n, **kind, seed=int(rng.integers(2**31)))
        schema = schema or Confounders.learn(site.Z)
        whose = np.arange(n).repeat(rng.integers(*ROWS_OF_ONE, n))
        means = family.means(site.Z)[np.arange(n), site.y]
        X = means[whose] + case.size**0.5 * (site.X - means)[whose]
        X = X + (1 - case.size) ** 0.5 * rng.normal(size=X.shape)
        raw = 1.4 * family.log_ratio(X, site.Z.iloc[whose])
        raw = raw + np.array([0.3, -0.3])
        codes = schema.encode(site.Z, quiet=True)[0][whose]
        log_prevalence = torch.tensor(site.log_prevalence[whose])
        parts.append((torch.tensor(raw), log_prevalence, site.y[whose], codes, torch.tensor(X).float()))
        groups.append(torch.tensor(whose))
    return schema, *parts, groups


def simulated(case):
    """Return the schema, and (raw log f, log g, y, codes, features) of source rows, changed and unchanged site rows."""
    rng, family, settings = setting(case)
    m = HELD_OUT["simulated"][case.seed // 2 % 2]
    source = family.site(m, prevalence=[0.6, 0.4], dependence=0.7, seed=int(rng.integers(2**31)))
    target = family.site(case.n, **settings, seed=int(rng.integers(2**31)))
    schema = Confounders.learn(source.Z)
    changed = target.X.copy()
    changed[:, 0] += case.size
    parts = []
    for site, X in ((source, source.X), (target, changed), (target, target.X)):
        codes = schema.encode(site.Z, quiet=True)[0]
        raw = 1.4 * family.log_ratio(X, site.Z) + np.array([0.3, -0.3])
        if case.part == "uninformative":
            raw = rng.normal(size=raw.shape)
        parts.append((torch.tensor(raw), torch.tensor(site.log_prevalence), site.y, codes, torch.tensor(X).float()))
    return schema, *parts


@lru_cache(maxsize=MODELS)
def network(number):
    """Return a trained model of colored digits, and images and labels of digits that it has not seen."""
    rng = np.random.default_rng(number)
    digits = load_digits()
    order = rng.permutation(len(digits.labels))[: TRAINING_DIGITS + POOL]
    images, labels = digits.images[order], (digits.labels[order] >= 5).astype(np.int64)
    sites = []
    for table in TRAINING_TABLES:
        y, z = from_table(TRAINING_DIGITS // 2, table, rng)
        sites.append((draw(labels[:TRAINING_DIGITS], y, rng, replace=True), y, z))
    rows, y, z = (np.concatenate(part) for part in zip(*sites, strict=True))
    names = np.repeat(["north", "south"], TRAINING_DIGITS // 2)
    model = sw.GPAClassifier(epochs=5, device="cpu", random_state=number, verbose=False)
    model.fit(color(images[rows], z), y, sample_domain=names, sample_confounder=colour_names(z))
    return model, images[TRAINING_DIGITS:], labels[TRAINING_DIGITS:]


def colour_names(z):
    return pd.DataFrame({"color": np.where(z == 1, "red", "green").astype(object)})


def draw(labels, y, rng, *, replace=False):
    """Draw the number of a digit for each label in `y`, with or without replacement."""
    rows = np.empty(len(y), dtype=np.int64)
    for label in range(2):
        rows[y == label] = rng.choice(np.flatnonzero(labels == label), (y == label).sum(), replace=replace)
    return rows


@lru_cache(maxsize=2)
def scores(number, change, size):
    """Return raw log f and features of the pool's digits in both colours.

    If there is a change, it is applied to the first `CHANGED_POOL` digits, and only these are returned.
    """
    model, images, _ = network(number)
    images = images if change == "none" else images[:CHANGED_POOL]
    rng = np.random.default_rng([number, int(100 * size)])
    batches = []
    for z in (0, 1):
        X = color(changed_digits(images, change, size, rng), np.full(len(images), z))
        X = changed_colours(X, change, size, rng)
        codes = model.codes_of(colour_names(np.full(len(images), z)), len(images))
        inputs = torch.tensor(X)
        features = []
        raw = []
        for start in range(0, len(X), FEATURE_ROWS):  # in parts, so that the features of all rows are kept
            place = slice(start, start + FEATURE_ROWS)
            one, some, _ = score_keeping_features(
                model.scorer_, inputs[place], network_inputs(model.confounders_, codes[place]), 2
            )
            raw.append(one)
            features.append(some)
        batches.append((torch.cat(raw), torch.cat(features)))
    return tuple(torch.stack(part) for part in zip(*batches, strict=True))


def changed_digits(images, change, size, rng):
    """Change the style of gray digits: thicker strokes for a share of the digits, or a slant for all."""
    if change == "bolder":
        some = rng.random(len(images)) < size
        bold = images.copy()
        bold[some] = ndimage.grey_dilation(images[some], size=(1, 2, 2))
        return bold
    if change == "slant":
        matrix = np.array([[1.0, 0.0], [size, 1.0]])
        offset = np.array([14.0, 14.0]) - matrix @ np.array([14.0, 14.0])
        return np.stack([ndimage.affine_transform(image, matrix, offset, order=1) for image in images])
    return images


def changed_colours(X, change, size, rng):
    """Change colored images (n, 3, H, W): noise or blur for all, or inverted colours for a share of them."""
    if change == "noise":
        return np.clip(X + rng.normal(0, size, X.shape), 0, 255).astype(np.uint8)
    if change == "blur":
        return ndimage.gaussian_filter(X.astype(np.float32), (0, 0, size, size)).astype(np.uint8)
    if change == "inverted":
        some = rng.random(len(X)) < size
        return np.where(some[:, None, None, None], 255 - X, X)
    return X


def model_of(case):
    """Return the number of the network. Changed images are scored by one network only, to save time."""
    return case.seed % MODELS if case.part == "null" else 0


def colored(case):
    """Return what `simulated` returns, for a site of colored digits."""
    number = model_of(case)
    model, _, labels = network(number)
    rng = np.random.default_rng([case.seed, case.n, number])
    m = HELD_OUT["digits"][0]
    table = np.mean(TRAINING_TABLES, axis=0)
    positive = rng.uniform(0.1, 0.6)
    red = rng.uniform(0.2, 0.8, 2)
    joint = np.array([[1 - positive], [positive]]) * np.stack([1 - red, red], axis=1)
    order = rng.permutation(len(labels))
    own, others = order[: len(order) * 2 // 5], order[len(order) * 2 // 5 :]
    if case.part == "broken":
        own, others = order[order >= CHANGED_POOL], order[order < CHANGED_POOL]
    parts = []
    for rows, n, mix, which in ((own, m, table, 0), (others, case.n, joint, 1)):
        y, z = from_table(n, mix, rng)
        chosen = rows[draw(labels[rows], y, rng)]
        log_prevalence = torch.tensor(np.log(mix / mix.sum(0)).T[z])
        codes = model.codes_of(colour_names(z), n)
        for change, size in [(case.change, case.size), ("none", 0.0)] if which else [("none", 0.0)]:
            raw, features = scores(number, change, size)
            parts.append((raw[z, chosen], log_prevalence, y, codes, features[z, chosen]))
    return model.confounders_, *parts


def run_case(case):
    torch.set_num_threads(1)
    own_groups = site_groups = unchanged = None
    if case.part == "groups":
        schema, source, target, groups = with_patients(case)
        own_groups, site_groups = groups if case.change == "by groups" else (None, None)
    else:
        schema, source, target, unchanged = (simulated if case.world == "simulated" else colored)(case)
    raw, log_prevalence, y, codes, features = source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the diagnosis reports problems of a site
        calibration = sw.calibrate_log_ratio(raw, y, log_prevalence, method="vector")
        held = SourceSample(
            raw_log_ratio=raw,
            calibration=calibration,
            log_prevalence=log_prevalence,
            y=torch.tensor(y),
            codes=codes,
            weight=torch.ones(len(y)).double(),
            features=features,
            feature_rows=torch.arange(len(y)),
            groups=own_groups,
        )
        f1 = {}
        sites = {"here": target} if case.part != "broken" else {"unchanged": unchanged, "here": target}
        for name, (site_raw, _, labels, site_codes, _) in sites.items():
            log_ratio = calibration(site_raw)
            estimate = sw.estimate_prevalence(
                log_ratio, schema.decode(site_codes), confounders=schema, groups=site_groups
            )
            probability = sw.adjust(log_ratio, estimate.prevalence.log_prob(site_codes))
            f1[name] = float(f1_score(labels, np.asarray(probability).argmax(1), zero_division=0.0))
        everything = torch.ones(len(log_ratio), dtype=torch.bool)
        rows = torch.arange(min(case.n, FEATURE_ROWS))
        if case.part == "groups":
            rows = evenly(torch.arange(len(log_ratio)), FEATURE_ROWS)
        here = TargetSample(
            log_ratio=log_ratio,
            codes=target[3],
            weight=everything.double(),
            tested=everything,
            supported=everything,
            features=target[4][rows],
            feature_rows=rows,
            groups=site_groups,
        )
        start = time.process_time()
        diagnosis = diagnose_site(held, here, estimate, random_state=case.seed)
    return asdict(case) | {
        "verdict": diagnosis.verdict,
        "severities": {finding.name: finding.severity for finding in diagnosis.findings},
        "stability": short(diagnosis["stability"].p_value),
        "gap": short(diagnosis["stability"].details.get("gap")),
        "representation": short(diagnosis["representation"].p_value),
        "mixture": short(diagnosis["mixture"].p_value),
        "auc": short(diagnosis["representation"].details.get("auc")),
        "width": short(diagnosis["identification"].value),
        "cost": short(f1.get("unchanged", f1["here"]) - f1["here"]),
        "f1": short(f1["here"]),
        "held_out": len(y),
        "seconds": round(time.process_time() - start, 3),
    }


def short(value):
    return None if value is None else float(f"{value:.4g}")


def run(path, parts, worlds):
    made_by = provenance(__file__)
    known = read(path) if path.exists() else []
    done = {case_of(record) for record in known if record.get("fingerprint") == made_by["fingerprint"]}
    cases = [case for case in plan(parts) if case not in done and case.world in worlds]
    # Cases with the same network and the same changed images are done one after another.
    for case in sorted(cases, key=lambda case: (PARTS.index(case.part), model_of(case), case.change, case.size)):
        record = run_case(case) | made_by
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def case_of(record):
    return Case(*(record[name] for name in Case.__dataclass_fields__))


def read(path):
    lines = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode().splitlines()
    return list({case_of(record): record for record in map(json.loads, lines)}.values())  # the last of each case


def frame_of(path):
    return pd.DataFrame(read(path))


def tables(frame):
    """Return tables of docs/results/checks.md, as lines."""
    heads = ["sites", "do not adapt", "care"]
    heads += [f"{test} {what}" for test in ("stability", "representation") for what in ("p < 0.05", "(KS test)")]
    lines = [f"| where the assumption holds | {' | '.join(heads)} |", "|---" * 8 + "|"]
    null = frame[frame.part == "null"]
    for world, sites in null.groupby("world"):
        stops, cares = ((sites.verdict == verdict).mean() for verdict in ("do not adapt", "care"))
        cells = [f"{world} | {len(sites)} | {stops:.1%} | {cares:.1%}"]
        for test in ("stability", "representation"):
            p = sites[test].dropna()
            cells.append(f"{(p < 0.05).mean():.1%} | p = {kstest(p, 'uniform').pvalue:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    rows = " / ".join(map(str, BROKEN_ROWS))
    lines += [
        "",
        f"| change | size | F1 lost | stability stops, {rows} rows | representation | do not adapt |",
        "|---" * 6 + "|",
    ]
    broken = frame[frame.part == "broken"]
    for (change, size), sites in broken.groupby(["change", "size"]):
        alarms = sites.assign(verdict=sites.verdict == "do not adapt")
        for name in ("stability", "representation"):
            alarms[name] = sites.severities.map(lambda s, name=name: s[name] == "stop")
        rates = alarms.groupby("n")[["stability", "representation", "verdict"]].mean()
        shown = " | ".join(" / ".join(f"{rate:.2f}" for rate in rates[name]) for name in rates)
        lines.append(f"| {change} | {size:g} | {sites.cost.mean():.3f} | {shown} |")
    lines += ["", *patients_table(frame[frame.part == "groups"])]
    silent = frame[frame.part == "uninformative"]
    said = silent.severities.map(lambda s: s["identification"] == "stop")
    lines += ["", f"Uninformative f: identification says so at {said.mean():.1%} of {len(silent)} sites."]
    return lines


def patients_table(frame):
    """Return a table of false alarms for patients with several rows, with tests by groups and by rows."""
    tests = ("stability", "representation", "mixture")
    heads = ["sites", "do not adapt", "care", *(f"{test} p < 0.05" for test in tests)]
    lines = [f"| tested | alike | {' | '.join(heads)} |", "|---" * 8 + "|"]
    for (likeness, tested), sites in frame.groupby(["size", "change"]):
        stops, cares = ((sites.verdict == verdict).mean() for verdict in ("do not adapt", "care"))
        rates = []
        for test in tests:
            p = sites[test].dropna()
            rates.append(f"{(p < 0.05).mean():.1%} of {len(p)}")
        lines.append(f"| {tested} | {likeness:g} | {len(sites)} | {stops:.1%} | {cares:.1%} | {' | '.join(rates)} |")
    return lines


def figure(frame):
    """Draw the distribution of p-values if the assumption holds, and the power against the F1 lost by a change."""
    import matplotlib.pyplot as plt

    from sitewise.report.style import ACCENT, GREY, GRID, INK, in_house_style

    @in_house_style
    def drawn():
        canvas, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        null = frame[frame.part == "null"]
        for (world, test), style in zip(
            product(("simulated", "digits"), ("stability", "representation")), ("-", ":", "--", "-."), strict=True
        ):
            p = np.sort(null.loc[null.world == world, test].dropna())
            axes[0].step(
                p,
                np.arange(1, len(p) + 1) / len(p),
                style,
                color=ACCENT if test == "stability" else INK,
                label=f"{test}, {world}",
            )
        n = int((null.world == "digits").sum())
        band = 1.63 / np.sqrt(max(n, 1))
        line = np.linspace(0, 1, 50)
        axes[0].fill_between(line, (line - band).clip(0), (line + band).clip(max=1), color=GRID, label="99% band")
        axes[0].set(xlabel="p-value", ylabel="share of sites at or below", title="Where the assumption holds")
        axes[0].legend(fontsize=7, frameon=False)
        broken = frame[(frame.part == "broken") & (frame.n == max(BROKEN_ROWS))]
        for number, (change, sites) in enumerate(broken.groupby("change", sort=False)):
            by_size = sites.groupby("size").agg(
                cost=("cost", "mean"), stop=("verdict", lambda v: (v == "do not adapt").mean())
            )
            axes[1].plot(
                by_size.cost,
                by_size.stop,
                marker="osv^Dx"[number],
                color=INK if number % 2 else ACCENT,
                lw=1,
                ms=4,
                label=change,
            )
        axes[1].set_xlim(-0.01, 0.35)
        axes[1].axvline(COST, color=GREY, lw=1)
        axes[1].axhline(0.8, color=GREY, lw=1)
        axes[1].set(
            xlabel="F1 that the change costs",
            ylabel="share “do not adapt”",
            title=f"Where it is broken ({max(BROKEN_ROWS)} rows)",
        )
        axes[1].legend(fontsize=7, frameon=False)
        return canvas

    return drawn()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--part", nargs="*", default=list(PARTS))
    runs.add_argument("--world", nargs="*", default=list(HELD_OUT))
    for name in ("table", "figure"):
        shown = commands.add_parser(name)
        shown.add_argument("records", type=Path)
        shown.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options.out, options.part, options.world)
    elif options.command == "table":
        print("\n".join(tables(frame_of(options.records))))
    else:
        figure(frame_of(options.records)).savefig(options.out, dpi=150)


if __name__ == "__main__":
    main()
