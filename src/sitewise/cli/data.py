"""`sitewise data pack`: data made ready for training."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(help="Check data and make it ready.", no_args_is_help=True)


@app.command()
def pack(
    manifest: Annotated[
        Path, typer.Argument(metavar="MANIFEST", help="CSV or Parquet, a row for each image.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="Folder for the packed images.", show_default=False)],
    size: Annotated[
        int, typer.Option(min=1, help="Pixels of a side; the shorter one is scaled, the centre cut.")
    ] = 224,
    channels: Annotated[int, typer.Option(help="3 for RGB, 1 for gray.")] = 3,
    root: Annotated[
        Path | None, typer.Option(help="Folder that the paths start from; the manifest's own otherwise.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Images at a time; as many as there are cores otherwise.")
    ] = None,
    image: Annotated[str, typer.Option(help="Column of the path.")] = "path",
    site: Annotated[str, typer.Option(help="Column of the site.")] = "site",
    target: Annotated[str, typer.Option(help="Column of the target, 0 or 1.")] = "y",
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="There is no target.")] = False,
    label: Annotated[list[str] | None, typer.Option(help="A class, where they are not 0 and 1; repeated.")] = None,
    id: Annotated[str | None, typer.Option(help="Column of the id; id or else the path otherwise.")] = None,
) -> None:
    """Decode and resize images once, into shards that training reads without waiting; run again it resumes."""
    from sitewise.datasets.manifest import read_manifest
    from sitewise.datasets.packed import pack as pack_images

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
