"""The numbers of docs/architecture.md: the amount of code, and the number of files that take part in a call.

    python benchmarks/structure.py

Code lines are lines without blank lines, comments and docstrings. Complexity counts branches, loops, conditions and
comprehensions, as in radon. McCabe's complexity, which `make check` limits, does not count conditions within an
expression and comprehensions. Files of a call are the files of the package whose functions run in the call, on 600
training rows of two sites with continuous and categorical z.
"""

import ast
import io
import sys
import tokenize
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

import sitewise as sw

ROOT = Path(sw.__file__).parent
SUITE = ROOT / "bench"
IMPORT_HOOK = ROOT / "moved.py"  # its functions run at every import, also of other packages
COMPLEX = 10
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(path):
    """Return the number of lines of a file that have code."""
    text = path.read_text(encoding="utf-8")
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def name_of(path):
    """Return the full module name of a file."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path, modules):
    """Return the modules of the package that a file imports at its top level, without those for type checking."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sitewise"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return found


def complexities(path):
    """Return the complexity of every function of a file: 1 + branches + loops + conditions + comprehensions."""
    functions = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.FunctionDef)]
    return [1 + sum(map(branches, ast.walk(function))) for function in functions]


def branches(node):
    """Return the number that a node of the syntax tree adds to the complexity."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.Assert))


def foreign_private(path):
    """Return the lines that read a private attribute of a variable named like a model or a site."""
    names = ("model", "here", "site", "adapted", "trained", "classifier")
    found = (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Attribute))
    private = (n for n in found if n.attr.startswith("_") and not n.attr.startswith("__"))
    return sorted({n.lineno for n in private if getattr(n.value, "id", getattr(n.value, "attr", None)) in names})


def family_checks(path):
    """Return the lines with an `isinstance` of a family of g, or of a fitted g of one family."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            kinds = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            found += [node.lineno] * any(k.endswith(("Prevalence", "Family")) and k != "Prevalence" for k in kinds)
    return found


def files_of(call):
    """Return the files of the package whose functions run in a call, and the value of the call."""
    files = set()

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)) and file != str(IMPORT_HOOK):
            files.add(file)

    sys.setprofile(note)
    try:
        value = call()
    finally:
        sys.setprofile(None)
    return files, value


def walks():
    """Return the numbers of files for calls of a network model and of an adjuster of a classifier.

    "the whole walk" counts the different files of `fit`, `adapt`, `predict_proba`, `diagnose` and `report`.
    """
    family = sw.SimulatedFamily(seed=1)
    north, south, new = (family.site(300, prevalence=[1 - p, p], seed=s) for p, s in ((0.5, 1), (0.3, 2), (0.1, 3)))
    X, y = np.concatenate([north.X, south.X]), np.concatenate([north.y, south.y])
    Z, site = pd.concat([north.Z, south.Z], ignore_index=True), np.repeat(["north", "south"], 300)
    X_new, Z_new, log_ratio = new.X, new.Z, new.log_ratio
    model = sw.GPAClassifier(epochs=2, device="cpu", random_state=0, verbose=False)
    calls = {}
    calls["fit"], _ = files_of(lambda: model.fit(X, y, sample_domain=site, sample_confounder=Z))
    calls["adapt"], here = files_of(lambda: model.adapt(X_new, sample_confounder=Z_new))
    calls["predict_proba"], _ = files_of(lambda: here.predict_proba(X_new, sample_confounder=Z_new))
    calls["diagnose"], _ = files_of(here.diagnose)
    with TemporaryDirectory() as folder:
        calls["report"], _ = files_of(lambda: here.report(Path(folder) / "site.html"))
    calls["the whole walk"] = set().union(*calls.values())
    calls["estimate_prevalence"], _ = files_of(lambda: sw.estimate_prevalence(log_ratio, Z_new))
    adjuster = sw.PrevalenceAdjuster(LogisticRegression().fit(X, y), random_state=0)
    calls["fit of the adjuster"], _ = files_of(lambda: adjuster.fit(X, y, sample_domain=site, sample_confounder=Z))
    calls["adapt of the adjuster"], _ = files_of(lambda: adjuster.adapt(X_new, sample_confounder=Z_new))
    return {call: len(files) for call, files in calls.items()}


def count():
    """Return the numbers of the source tree, for the method alone and with the suite."""
    paths = sorted(ROOT.rglob("*.py"))
    modules = {name_of(path) for path in paths}
    method = [path for path in paths if SUITE not in path.parents]
    figures = {}
    for part, chosen in (("method", method), ("all", paths)):
        numbers = [number for path in chosen for number in complexities(path)]
        figures[part] = {
            "modules": len(chosen),
            "code lines": sum(map(code_lines, chosen)),
            "imports of the package a module": round(np.mean([len(imports(path, modules)) for path in chosen]), 1),
            f"functions of complexity above {COMPLEX}": sum(number > COMPLEX for number in numbers),
            "highest complexity": max(numbers),
            "private attributes of a model read from outside": sum(len(foreign_private(path)) for path in chosen),
            "isinstance on a family of g": sum(len(family_checks(path)) for path in chosen),
        }
    return figures


def main():
    warnings.simplefilter("ignore")
    for part, figures in count().items():
        for name, figure in figures.items():
            print(f"{part}, {name}: {figure}")
    for call, n_files in walks().items():
        print(f"files of {call}: {n_files}")


if __name__ == "__main__":
    main()
