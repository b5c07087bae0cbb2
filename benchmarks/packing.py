"""Images per second of packing, divided by those of decoding with Pillow, on all cores.

There are two baselines, which decode the same JPEG files with as many threads and keep nothing: decoding alone, and
decoding with the same resizing as in packing. Packing also reads the bytes, hashes the source and the shard, and writes
the shard. Packing and baselines are run in turn.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from sitewise.datasets.packed.writing import pack
from sitewise.tables.images import read_image
from sitewise.tables.manifest import Manifest
from sitewise.tables.manifest.checking import available_cores

SHAPES = {"1024 x 1024 (ISIC 2019, NIH)": (1024, 1024), "600 x 450 (HAM10000)": (600, 450)}
SIZE, DISTINCT = 224, 16


def make_images(folder, n, width, height):
    """Write JPEG files of smooth blobs with grain, which have about the detail and the size of photographs."""
    rng = np.random.default_rng(0)
    for row in range(min(n, DISTINCT)):
        blobs = Image.fromarray(rng.integers(0, 256, (height // 64, width // 64, 3), dtype=np.uint8))
        smooth = np.asarray(blobs.resize((width, height), Image.Resampling.BICUBIC)).astype(float)
        grain = rng.normal(0, 6, (height, width, 1))
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(folder / f"{row}.jpg", quality=90)
    for row in range(DISTINCT, n):
        (folder / f"{row}.jpg").write_bytes((folder / f"{row % DISTINCT}.jpg").read_bytes())
    names = [f"{row}.jpg" for row in range(n)]
    return Manifest(pd.DataFrame({"path": names, "site": "s", "y": 0, "id": names}), folder)


def decode(file):
    with Image.open(file) as image:
        image.load()


def rate(n, function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    return n / (time.perf_counter() - start)


def compare(n, repeats, width, height):
    ratios = {"decoding alone": [], "decoding and resizing": []}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(available_cores()) as pool:
        folder = Path(name)
        (folder / "images").mkdir()
        manifest = make_images(folder / "images", n, width, height)
        bytes_each = sum(file.stat().st_size for file in manifest.files) / n
        pack(manifest.take(range(DISTINCT)), folder / "warm", SIZE)
        for repeat in range(repeats):
            alone = rate(n, lambda: list(pool.map(decode, manifest.files)))
            packed = rate(n, pack, manifest, folder / f"packed {repeat}", SIZE)
            resized = rate(n, lambda: list(pool.map(lambda file: read_image(file, SIZE), manifest.files)))
            ratios["decoding alone"].append(packed / alone)
            ratios["decoding and resizing"].append(packed / resized)
            print(f"  images/s: decoding {alone:.0f}, with resizing {resized:.0f}, packing {packed:.0f}", flush=True)
    print(f"  {bytes_each / 1e3:.0f} kB a file, {available_cores()} core(s)")
    for baseline, found in ratios.items():
        print(f"  packing over {baseline}: {np.median(found):.2f} ({min(found):.2f}..{max(found):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    for name, (width, height) in SHAPES.items():
        print(name)
        compare(arguments.images, arguments.repeats, width, height)


if __name__ == "__main__":
    main()
