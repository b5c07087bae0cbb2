"""Packed images: decoded and resized once, then read from memory-mapped uint8 shards.

A pack is a folder. `index.json` holds the size, channels and number of the images. `shard-00000.npy` holds the pixels
(rows, C, H, W) of the first images. `shard-00000.json` holds their ids, the path, size, time and SHA-256 of every
source file, and the SHA-256 of the shard. All files are first written under a temporary name, and the JSON file of a
shard is written last. Therefore, an interrupted packing continues at the first shard without a JSON file.
"""

from sitewise.datasets.packed.images import PackedImages

__all__ = ["PackedImages"]
