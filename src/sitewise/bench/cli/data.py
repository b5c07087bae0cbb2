"""`sitewise data list`, `get`, `check`, `show` and `pack`: list, download, check, show and pack data."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from sitewise.bench.datasets.catalogue import Collection
    from sitewise.tables.manifest import Manifest

app = typer.Typer(help="Check data and make it ready.", no_args_is_help=True)


@app.command()
def pack(
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="CSV or Parquet, a row for each image.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the packed images.", show_default=False)],
    size: Annotated[
        int, typer.Option(min=1, help="Pixels of a side; the shorter side is scaled, the centre is cut.")
    ] = 224,
    channels: Annotated[int, typer.Option(help="3 for RGB, 1 for gray.")] = 3,
    root: Annotated[
        Path | None, typer.Option(help="Folder that the paths start from; by default that of the manifest.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Images at a time; by default one for each core.")] = None,
    image: Annotated[str, typer.Option(help="Column of the path.")] = "path",
    site: Annotated[str, typer.Option(help="Column of the site.")] = "site",
    target: Annotated[str, typer.Option(help="Column of the target, 0 or 1.")] = "y",
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="There is no target.")] = False,
    label: Annotated[list[str] | None, typer.Option(help="A class, if they are not 0 and 1; repeated.")] = None,
    id: Annotated[str | None, typer.Option(help="Column of the id; by default `id`, or the path.")] = None,
) -> None:
    """Decode and resize images once, into files that training reads quickly; a repeated call resumes."""
    from sitewise.datasets.packed.writing import pack as pack_images
    from sitewise.tables.manifest import read_manifest

    read = read_manifest(
        manifest, root=root, image=image, site=site, target=None if unlabeled else target, id=id, classes=label
    )
    images = pack_images(read, out, size, channels=channels, jobs=jobs)
    n, *shape = images.shape
    Console().print(
        f"packed {n} image(s) of {len(read.sites)} site(s) as {'x'.join(map(str, shape))} into {out}, "
        f"{images.index.n_shards} shard(s), {math.prod(images.shape) / 1e6:.1f} MB",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command("list")
def list_collections() -> None:
    """List the collections that can be read, with their licences and sources."""
    from sitewise.bench.datasets.catalogue import COLLECTIONS

    for name, collection in COLLECTIONS.items():
        _say(f"{name:10}{collection.title}")
        _say(f"{'':10}{collection.where}; {collection.licence}")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder to put it into.", show_default=False)],
) -> None:
    """Download a collection that needs no account, and check its hashes."""
    from sitewise.bench.datasets.catalogue import COLLECTIONS
    from sitewise.bench.datasets.fetching import fetch_mnist

    _check_name(name)
    if name != "mnist":
        where, licence = COLLECTIONS[name].where, COLLECTIONS[name].licence
        raise ValueError(f"{name} has to be downloaded by hand: {where}; {licence}")
    try:
        files = fetch_mnist(out)
    except ConnectionError as error:
        typer.echo(f"sitewise: {error}", err=True)
        raise typer.Exit(1) from error
    _say(f"{len(files)} files in {out}, each with the hash it should have")


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of `sitewise data list`.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the collection.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the manifest to this file, CSV or Parquet.")] = None,
    images: Annotated[bool, typer.Option("--images", help="Also open every image.")] = False,
) -> None:
    """Read a collection's tables, print its sites next to those of the paper, and show which rows agree."""
    from sitewise.bench.datasets.catalogue import COLLECTIONS
    from sitewise.tables.manifest.checking import check as check_manifest
    from sitewise.tables.manifest.reading import write_manifest

    _check_name(name)
    collection = COLLECTIONS[name]
    if collection.build is None:
        if out is not None or images:
            raise ValueError(f"{name} has no image files, so there is no manifest of it: leave --out and --images out")
        assert collection.table is not None
        _show_sites(name, collection, collection.table(folder))
        return
    manifest = collection.build(folder)
    if images:
        check_manifest(manifest, images=True, allow_one_class=True)
    _show_sites(name, collection, manifest.site_table())
    _say(_images_found(manifest, images))
    if out is not None:
        _say(f"wrote {write_manifest(manifest, out)}; its paths start from {manifest.root}")


@app.command()
def show(
    source: Annotated[
        str,
        typer.Argument(
            metavar="NAME|MANIFEST|PACK",
            help="One of `sitewise data list`, colored_digits, a table of images or a folder of packed ones.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The figure to write, PNG or PDF.")] = Path("examples.png"),
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the collection, or the one that a manifest's paths start from.")
    ] = None,
    columns: Annotated[int, typer.Option(min=1, max=20, help="Images of each site.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Which ones.")] = 0,
    packed: Annotated[Path | None, typer.Option(help="Read the images from this pack, not from their files.")] = None,
    image: Annotated[str, typer.Option(help="Column of the path.")] = "path",
    site: Annotated[str, typer.Option(help="Column of the site.")] = "site",
    target: Annotated[str, typer.Option(help="Column of the target, 0 or 1.")] = "y",
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="There is no target.")] = False,
    confounder: Annotated[list[str] | None, typer.Option(help="Column for the captions; repeated.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A class, if they are not 0 and 1; repeated.")] = None,
    id: Annotated[str | None, typer.Option(help="Column of the id; by default `id`, or the path.")] = None,
) -> None:
    """Draw some images of each site with their z as captions; a heavy red border marks y = 1."""
    from sitewise.bench.datasets.examples import load_examples
    from sitewise.bench.report.comparison import save_figure
    from sitewise.bench.report.examples import example_figure

    if out.suffix.lower() not in (".png", ".pdf"):
        raise ValueError(f"--out must end in .png or .pdf, got {out}")
    described = {"image": image, "site": site, "target": None if unlabeled else target, "id": id, "classes": label}
    sites = load_examples(
        source,
        data_dir,
        n=columns,
        seed=seed,
        columns=described | {"confounders": confounder or ()},
        packed=packed,
    )
    title = source if source.isidentifier() else Path(source).name
    _say(f"wrote {save_figure(example_figure(sites, title=title), out)}: {len(sites)} site(s)")


def _check_name(name: str) -> None:
    from sitewise.arrays import did_you_mean
    from sitewise.bench.datasets.catalogue import COLLECTIONS

    if name not in COLLECTIONS:
        raise ValueError(
            f"there is no collection {name!r}{did_you_mean(name, COLLECTIONS)}; `sitewise data list` names all"
        )


def _show_sites(name: str, collection: "Collection", sites: "pd.DataFrame") -> None:
    """Print a table of sites. If the paper has the sites, add its numbers and say which rows agree."""
    from sitewise.bench.datasets.paper_sites import compare

    rows = compare(sites, collection.paper)
    missing = [column for column in rows.columns if column.startswith("missing ")]
    _say(f"{name}: {collection.title}")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("site", no_wrap=True)
    lacking = [f"no\n{column.removeprefix('missing ').replace('_', chr(10))}" for column in missing]
    for heading in ("samples", "P(y=1)", *lacking, *(("paper:\nsamples", "\nP(y=1)") if collection.paper else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    if collection.paper:
        table.add_column("", no_wrap=True)
    for site, row in rows.iterrows():
        beside = [f"{row['paper samples']}", f"{row['paper prevalence']:.3f}", row["verdict"]]
        shares = [_share(row[column]) for column in ("prevalence", *missing)]
        table.add_row(str(site), str(row["samples"] or ""), *shares, *(beside if collection.paper else []))
    Console().print(table)
    if collection.paper:
        _show_agreement(collection, rows["verdict"])


def _show_agreement(collection: "Collection", verdicts: "pd.Series[str]") -> None:
    """Print which sites agree with the paper, and the reasons why others do not."""
    from sitewise.bench.datasets.paper_sites import ABSENT, AGREES

    agree = [str(site) for site in verdicts.index[verdicts == AGREES]]
    _say(
        f"{len(agree)} of {len(collection.paper)} row(s) agree with the paper{': ' if agree else ''}{', '.join(agree)}"
    )
    for site, verdict in verdicts.items():
        reason = (collection.caveats if verdict == AGREES else collection.reasons).get(str(site))
        if reason:
            _say(f"{site} {'is absent' if verdict == ABSENT else verdict}: {reason}")


def _share(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _images_found(manifest: "Manifest", opened: bool) -> str:
    n_files = sum(file.is_file() for file in manifest.files)
    said = f"images: {n_files} of {len(manifest)} found below {manifest.root}"
    if opened:
        return f"{said}, and all could be read"
    first = next(
        (path for path, file in zip(manifest.table["path"], manifest.files, strict=True) if not file.is_file()), ""
    )
    return f"{said}; the first that is missing: {first}" if first else said


def _say(text: str) -> None:
    Console().print(text, highlight=False, markup=False, soft_wrap=True)
