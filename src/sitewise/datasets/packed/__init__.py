"""Packed images: decoded and resized once, then read from memory-mapped uint8 shards.

A pack is a folder. `index.json` holds the size, channels and rows of the images, `shard-00000.npy` pixels
(rows, C, H, W). `shard-00000.json` holds their ids, the size, time and SHA-256 of every source file, and the SHA-256 of
the shard. The JSON of a shard is written last, and all files are written under a temporary name first. So an
interrupted packing continues at the first shard without a JSON file.
"""

from sitewise.datasets.packed.images import PackedImages

__all__ = ["PackedImages"]
