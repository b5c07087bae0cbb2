"""Plans made from labeled source rows alone, compared with the results at sites of the planned size.

    python benchmarks/plan.py run --out benchmarks/plan.jsonl
    python benchmarks/plan.py table benchmarks/plan.jsonl
    python benchmarks/plan.py figure benchmarks/plan.jsonl

A network of colored digits is trained and calibrated. From its held-out rows, the number of rows is planned for each
interval width and prevalence. Then sites of the planned sizes are drawn from digits that the network has not seen. As
the plan assumes, they have the P(z|y) of the held-out rows. No site is drawn for a width that no number of rows gives.
"""

import argparse
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from digit_sites import Pool, trained_model
from matplotlib import pyplot as plt
from records import provenance

from sitewise.bench.experiments.records import append_record, done_ids, read_records
from sitewise.performance.metrics import Predictions, confusion_metrics
from sitewise.report.style import ACCENT, GREY, INK, in_house_style

WIDTHS = (0.02, 0.04, 0.08)
PREVALENCES = (0.1, 0.3)
SIZES = (200, 1000, 5000)  # numbers of rows for which KL and the loss of F1 are compared
SITES = 20
SIMULATIONS = 20


def held_out_joint(model, prevalence):
    """Return P(y, z) of a site with this prevalence and the P(z|y) of the held-out rows, (2, 2)."""
    held = model.held_out_[0]
    given_y = np.stack([np.bincount(held.codes[held.y == k, 0].long(), minlength=2)[:2] for k in range(2)])
    return np.array([[1 - prevalence], [prevalence]]) * given_y / given_y.sum(axis=1, keepdims=True)


def achieved(model, pool, n, joint, rng):
    """Draw a site of n rows, and return the interval's width, whether it contains P(y=1), KL and the loss of F1."""
    log_ratio, Z, y = pool.site(n, joint, rng)
    here = model.adapt_log_ratio(log_ratio, Z).unchecked()
    low, high = here.prevalence_interval()
    true = np.log(joint / joint.sum(axis=0)).T  # (z, y)
    cells = here.estimate.log_prevalence({"color": ["green", "red"]})
    kl = float(joint.sum(axis=0) @ (np.exp(true) * (true - cells)).sum(axis=1))
    z = (Z["color"] == "red").to_numpy().astype(int)
    scores = [log_ratio + log_g[z] for log_g in (true, cells)]
    truth = np.eye(2)[y].T[None]
    f1 = [
        float(confusion_metrics(Predictions.of(score).confusion(truth, np.ones(n)))["positive_f1"][0])
        for score in scores
    ]
    return {
        "width": float(high[1] - low[1]),
        "holds": bool(low[1] <= joint[1].sum() <= high[1]),
        "kl": kl,
        "f1_loss": f1[0] - f1[1],
    }


def run(out, folder, data_dir, sites):
    """Plan and draw sites; each prevalence and target gives one record."""
    made = provenance(__file__)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    done = done_ids(out, made["fingerprint"])
    model = trained_model(0, folder, data_dir)
    pool = Pool.of(model, 0, data_dir)
    for prevalence in PREVALENCES:
        joint = held_out_joint(model, prevalence)
        targets = [("width", width) for width in WIDTHS] + [("sizes", 0.0)]
        for number, (target, wanted) in enumerate(targets):
            name = f"{target}-{wanted:g}-{prevalence:g}"
            if name in done:
                continue
            settings = {"prevalence": prevalence, "random_state": number}
            if target == "width":
                plan = model.plan(width=wanted, n_simulations=0, **settings)
            else:
                plan = model.plan(kl=1e-3, sizes=SIZES, n_simulations=SIMULATIONS, **settings)
            rng = np.random.default_rng([3, number, int(1000 * prevalence)])
            sizes = [plan.answer] if target == "width" else SIZES
            achieved_by_size = {
                str(n): [achieved(model, pool, n, joint, rng) for _ in range(sites)] for n in sizes if n
            }
            record = {"target": target, "wanted": wanted, "prevalence": prevalence, "plan": plan.to_dict()}
            append_record(out, {"id": name, **record, "sites": achieved_by_size, **made})


def table(records):
    """Return Markdown tables of planned and achieved values."""
    lines = ["| P(y=1) | wanted width | planned rows | achieved width (mean, range) | interval holds P(y=1) |"]
    lines.append("|---|---|---|---|---|")
    for record in (r for r in records if r["target"] == "width"):
        wanted = f"{record['prevalence']:g} | {record['wanted']:g}"
        if record["plan"]["answer"] is None:
            lines.append(f"| {wanted} | no number; 10,000,000 give {record['plan']['floor_width']:.4f} | | |")
            continue
        ((n, sites),) = record["sites"].items()
        widths = np.array([site["width"] for site in sites])
        holds = np.mean([site["holds"] for site in sites])
        spread = f"{widths.mean():.4f} ({widths.min():.4f} to {widths.max():.4f})"
        lines.append(f"| {wanted} | {int(n):,} | {spread} | {holds:.0%} of {len(sites)} |")
    lines += ["", "| P(y=1) | rows | width planned / achieved | KL planned / achieved | F1 lost planned / achieved |"]
    lines.append("|---|---|---|---|---|")
    for record in (r for r in records if r["target"] == "sizes"):
        for point in record["plan"]["points"]:
            sites = record["sites"][str(point["n"])]
            pairs = []
            for planned, error, name, digits in (
                ("simulated_width", "simulated_width_error", "width", 4),
                ("kl", "kl_error", "kl", 4),
                ("f1_loss", "f1_loss_error", "f1_loss", 3),
            ):
                values = np.array([site[name] for site in sites])
                own = values.std(ddof=1) / len(values) ** 0.5
                numbers = (point[planned], point[error], values.mean(), own)
                pairs.append("{} ± {} / {} ± {}".format(*(f"{number:.{digits}f}" for number in numbers)))
            lines.append(f"| {record['prevalence']:g} | {point['n']:,} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


@in_house_style
def figure(records):
    """Draw the interval widths at sites of the planned sizes against the wanted widths."""
    drawn, axis = plt.subplots(figsize=(5, 4), layout="constrained")
    for prevalence, marker, colour in zip(PREVALENCES, ("o", "^"), (ACCENT, INK), strict=True):
        chosen = [r for r in records if r["target"] == "width" and r["prevalence"] == prevalence and r["sites"]]
        for shown, record in enumerate(chosen):
            ((n, sites),) = record["sites"].items()
            widths = [site["width"] for site in sites]
            label = f"P(y=1) = {prevalence:g}" if not shown else None
            left = prevalence == PREVALENCES[0]
            place = [record["wanted"] * (0.97 if left else 1.03)] * len(widths)
            axis.plot(place, widths, marker, color=colour, mfc="none", ms=4, alpha=0.7, label=label)
            beside = {
                "xytext": (-8 if left else 8, 0),
                "textcoords": "offset points",
                "ha": "right" if left else "left",
            }
            axis.annotate(f"{int(n):,}", (place[0], np.mean(widths)), va="center", fontsize=8, color=colour, **beside)
    axis.plot([0.015, 0.1], [0.015, 0.1], color=GREY, lw=1)
    axis.set(
        xscale="log", yscale="log", xlabel="wanted width of the interval of P(y=1)", ylabel="width at a site drawn"
    )
    ticks = [*WIDTHS]
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_title("Sites of the planned size (numbers: planned rows)", fontsize=10)
    axis.legend(frameon=False)
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="plan, draw and compare what is not in the file yet")
    running.add_argument("--out", type=Path, default=Path("benchmarks/plan.jsonl"))
    running.add_argument("--trained", type=Path, default=Path("results/trust"), help="folder of trained models")
    running.add_argument("--data-dir", help="folder with the full MNIST; the 5,000 embedded digits otherwise")
    running.add_argument("--sites", type=int, default=SITES)
    for name, help_ in (("table", "print the tables"), ("figure", "draw the figure")):
        showing = commands.add_parser(name, help=help_)
        showing.add_argument("file", type=Path)
        if name == "figure":
            showing.add_argument("--out", type=Path, default=Path("docs/images/plan.png"))
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.out, arguments.trained, arguments.data_dir, arguments.sites)
    elif arguments.command == "table":
        sys.stdout.write(table(read_records(arguments.file)))
    else:
        figure(read_records(arguments.file)).savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
