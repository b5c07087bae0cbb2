"""Packed images: decoded and resized once, then read from memory-mapped uint8 shards as fast as they can be copied.

A pack is a folder: `index.json` says what the images are (size, channels, rows), `shard-00000.npy` holds pixels
(rows, C, H, W), and `shard-00000.json` their ids, the size, time and SHA-256 of every source file, and the SHA-256 of
the shard. A shard's JSON is written last and every file is renamed into its place, so a packing that was killed goes on
at the first shard without one.
"""

from sitewise.datasets.packed.images import PackedImages
from sitewise.datasets.packed.index import Change, PackIndex, ShardRecord, Source
from sitewise.datasets.packed.writing import pack

__all__ = ["Change", "PackIndex", "PackedImages", "ShardRecord", "Source", "pack"]
