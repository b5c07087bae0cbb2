"""The record of a campaign: its counts and times by family, in JSON, and the table of docs/reliability.md.

PYTHONPATH=tests python -m campaign.record campaign      # from the results of a run: the record, and the page's table
PYTHONPATH=tests python -m campaign.record               # the table of the record that is there
"""

import json
import platform
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
RECORD, PAGE = HERE / "last_run.json", HERE.parents[1] / "docs" / "reliability.md"
START, END = "<!-- table of tests/campaign/last_run.json: start -->\n", "<!-- end -->\n"
ENDINGS = 6  # named in a row; the rest are counted together


def note_start(out: Path) -> None:
    """Add when, and with which code, a run was started or went on, to its folder."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "starts.json"
    starts = json.loads(path.read_text()) if path.exists() else []
    started = {"at": time.strftime("%Y-%m-%d %H:%M"), "commit": git("rev-parse", "--short", "HEAD")}
    changed = bool(git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests"))
    path.write_text(json.dumps([*starts, started | ({"changed": True} if changed else {})], indent=1))


def git(*words: str) -> str:
    """What git says about the code here; nothing where there is no repository."""
    return subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()


def summarize(out: Path) -> dict[str, Any]:
    """The record of the results in a folder."""
    lines = [line for path in sorted(out.glob("attacks*.jsonl")) for line in path.read_text().splitlines() if line]
    results = [json.loads(line) for line in lines]
    families: dict[str, Any] = {}
    for name in sorted({result["family"] for result in results}):
        own = [result for result in results if result["family"] == name]
        seconds = [result["seconds"] for result in own]
        families[name] = {
            "attacks": len(own),
            "failed": [result["seed"] for result in own if result["failure"]],
            "endings": dict(Counter(result["ending"] for result in own).most_common()),
            "seconds": round(sum(seconds), 1),
            "longest": round(max(seconds), 2),
        }
    starts = json.loads((out / "starts.json").read_text())
    return {"starts": starts, "python": platform.python_version(), "torch": torch.__version__, "families": families}


def table(record: dict[str, Any]) -> str:
    """The record as a table of Markdown, below a sentence with its totals."""
    families = record["families"]
    total, failed = (
        sum(entry["attacks"] for entry in families.values()),
        sum(len(entry["failed"]) for entry in families.values()),
    )
    starts = record["starts"]
    commits = " and ".join(dict.fromkeys(f"{s['commit']}{' with changes' if 'changed' in s else ''}" for s in starts))
    lines = [
        f"**{total:,} attacks** of {len(families)} families, {failed or 'none'} of which failed; "
        f"begun {starts[0]['at']}, code of commit {commits}, Python {record['python']}, torch {record['torch']}.",
        "",
        "| family | attacks | failed | seconds each | how they ended |",
        "|---|---|---|---|---|",
    ]
    for name, entry in families.items():
        endings = sorted(entry["endings"].items(), key=lambda pair: (-pair[1], pair[0]))
        words = [f"{count:,} {ending}" for ending, count in endings[:ENDINGS]]
        rest = sum(count for _, count in endings[ENDINGS:])
        each = entry["seconds"] / entry["attacks"]
        shown = ", ".join([*words, f"{rest:,} others"] if rest else words)
        lines.append(f"| `{name}` | {entry['attacks']:,} | {len(entry['failed'])} | {each:.3f} | {shown} |")
    return "\n".join(lines) + "\n"


def put_into(page: str, shown: str) -> str:
    """The page with this table."""
    before, rest = page.split(START)
    return before + START + shown + END + rest.split(END, 1)[1]


def main() -> None:
    """Write the record of a folder and the page's table, or print the table that there is."""
    if len(sys.argv) > 1:
        record = summarize(Path(sys.argv[1]))
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8"), table(record)), encoding="utf-8")
    print(table(json.loads(RECORD.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
