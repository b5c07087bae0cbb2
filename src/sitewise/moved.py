"""Import paths that have moved: importing an old path raises an error that names the new one."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "sitewise.methods": "sitewise.bench.methods",
    "sitewise.benchmark": "sitewise.bench.experiments",
    "sitewise.demo": "sitewise.bench.demo",
    "sitewise.cli.curves": "sitewise.bench.cli.bench",
    "sitewise.datasets.images": "sitewise.tables.images",
    "sitewise.datasets.manifest": "sitewise.tables.manifest",
    **{
        f"sitewise.{package}.{module}": f"sitewise.bench.{package}.{module}"
        for package, modules in {
            "cli": "bench data demo methods printing",
            "datasets": (
                "catalogue cxr digits examples fetching isic isic_tables known_densities mixed_densities mnist "
                "paper_sites real_tables small_images tables"
            ),
            "report": "comparison examples figures grids summary tables",
        }.items()
        for module in modules.split()
    },
}


class MovedFinder(MetaPathFinder):
    """Finder that rejects old import paths.

    Python calls it before all other finders, because a folder left over from an earlier version can still be imported.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ImportError for an old path; return None for all others."""
        if fullname in MOVED:
            raise ImportError(f"{fullname} has moved: import {MOVED[fullname]} instead", name=fullname)
        return None


def install() -> None:
    """Register the finder with Python, once for each process."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
