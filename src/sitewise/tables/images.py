"""Read image files: JPEG, PNG or TIFF in, uint8 (C, H, W) out.

The rules are the same for all files:

- 16-bit gray is scaled by the full range of its type, v / 257 rounded (0 is 0, 65535 is 255), not by the range of the
  image. Exposures therefore stay comparable. Images of 12 bits that are stored in 16 bits become dark; scale them
  before.
- 32-bit integers and floats have no known range and raise an error. TIFF files of several pages and DICOM files also
  raise an error.
- A palette becomes its colours, CMYK becomes RGB, one bit becomes 0 and 255. Transparent areas become black.
- Gray is repeated in three channels; colour becomes luma (ITU-R 601) if one channel is wanted.
- EXIF orientation is applied; colour profiles are not.
- `size` is the new length of the shorter side; the centre square is kept. Scaling uses a bilinear filter that averages
  when it shrinks; small images are enlarged. For speed, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if the decoded
  image is still at least 1.5 x `size`; the mean then changes by half a gray level to one.
- A truncated or damaged file raises an error; it never gives a partial image.
"""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sitewise.arrays import Problems

if TYPE_CHECKING:
    from PIL import Image

Array = np.ndarray[Any, Any]

READING = 1  # version of these rules; increase it if a file gives other pixels than before, so that old packs differ
FORMATS = ("JPEG", "PNG", "TIFF")
BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"II*\x00", b"MM\x00*")  # first bytes of files in these formats
SCALED_DECODING = 1.5  # a JPEG that is shrunk while decoding stays at least this many times as large as wanted
DICOM_MAGIC, DICOM_MAGIC_AT = b"DICM", 128
ORIENTATION_TAG, PHOTOMETRIC_TAG, WHITE_IS_ZERO = 0x0112, 262, 0
NO_PILLOW = 'reading images needs Pillow: pip install "sitewise[images]"'
DICOM = (
    "is a DICOM file, which is not supported: its window and its inversion (MONOCHROME1) have to be applied first; "
    "convert it to PNG, with pydicom's apply_voi_lut for example"
)


def read_image(source: str | os.PathLike[str] | bytes, size: int | None = None, channels: int = 3) -> Array:
    """Read an image from a file or from the bytes of a file: uint8 (C, H, W), or (C, size, size) if `size` is given."""
    problems = Problems("read_image")
    if size is not None and size < 1:
        problems.add(f"size must be at least one pixel, or None for the image's own, got {size}")
    if channels not in (1, 3):
        problems.add(f"channels must be 1 (gray) or 3 (RGB), got {channels}")
    problems.raise_if_any()
    if isinstance(source, bytes):
        return decode_image(source, "the image", size, channels)
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"there is no image {path}")
    return decode_image(path.read_bytes(), str(path), size, channels)


def decode_image(data: bytes, name: str, size: int | None, channels: int) -> Array:
    """Decode the bytes of an image file; a ValueError names the file (`name`), the reason, and a remedy."""
    try:
        from PIL import Image, ImageFile, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(NO_PILLOW) from error
    if data[DICOM_MAGIC_AT : DICOM_MAGIC_AT + len(DICOM_MAGIC)] == DICOM_MAGIC:
        raise ValueError(f"{name} {DICOM}")
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, which accepts truncated images: unset it")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            box, shrunk = _crop_box(image, size)
            image.load()
            turn = image.getexif().get(ORIENTATION_TAG, 1)  # after loading, which rotates a TIFF itself
            refusal = _refusal(image)
            plain = None if refusal else _plain(image, channels)
    except UnidentifiedImageError:
        raise ValueError(f"{name} {_strange(data, name)}") from None
    except Image.DecompressionBombError as error:
        raise ValueError(f"{name} is too large ({error}): shrink it first") from error
    except Exception as error:  # a damaged file can raise any error
        raise ValueError(f"{name} is truncated or damaged ({error}): fetch it again") from error
    if plain is None:
        raise ValueError(f"{name} {refusal}")
    if size is not None:
        scaled = tuple(edge * shrunk for edge in box)
        plain = plain.resize((size, size), Image.Resampling.BILINEAR, box=scaled)  # type: ignore[arg-type]
    if turn in TURNS:
        plain = plain.transpose(Image.Transpose[TURNS[turn]])
    pixels = np.asarray(plain)
    if pixels.ndim == 2:
        return np.repeat(pixels[None], channels, axis=0)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


TURNS = {  # EXIF codes
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def _crop_box(image: "Image.Image", size: int | None) -> tuple[tuple[float, float, float, float], float]:
    """Return the centre square of an image that is not loaded yet, and the factor by which decoding shrinks it."""
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) / 2, (height - short) / 2
    box = (left, top, left + short, top + short)
    if size is None or image.format not in ("JPEG", "MPO"):
        return box, 1.0
    enough = SCALED_DECODING * size / short
    drafted = image.draft(None, (max(1, int(width * enough)), max(1, int(height * enough))))
    return box, 1.0 if drafted is None else drafted[1][2] / width


def _refusal(image: "Image.Image") -> str | None:
    """Return the reason to reject an image that can be decoded; None if it is accepted."""
    if image.format == "TIFF" and getattr(image, "n_frames", 1) > 1:
        return f"is a TIFF of {image.n_frames} pages: save the page you need as its own file"  # type: ignore[attr-defined]
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        kind = "floating-point numbers" if image.mode == "F" else "32-bit or signed integers"
        return f"holds {kind}, whose range is not known: scale it to 8 or 16 bits first"
    if image.mode == "LAB":
        return "holds CIELAB colours: convert it to RGB first"
    return None


def _plain(image: "Image.Image", channels: int) -> "Image.Image":
    """Convert a loaded image to 8-bit gray (L) or RGB, before scaling."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; older versions of Pillow use mode "I" for such a PNG
        deep = np.asarray(image).astype(np.uint32)
        tags = getattr(image, "tag_v2", {})
        if tags.get(PHOTOMETRIC_TAG) == WHITE_IS_ZERO:  # Pillow inverts 8-bit images itself, but not these
            deep = 65535 - deep
        return Image.fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        clear = image.convert("RGBA")
        gray = image.mode in ("L", "LA", "La", "1")
        image = Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear).convert("RGB")
        return image.convert("L") if gray or channels == 1 else image
    if image.mode in ("L", "1") or channels == 1:
        return image if image.mode == "L" else image.convert("L")
    return image if image.mode == "RGB" else image.convert("RGB")


def _strange(data: bytes, name: str) -> str:
    if not data:
        return "is empty (0 bytes): fetch it again"
    if data.startswith(BEGINNINGS):
        return "is truncated or damaged (its header cannot be read): fetch it again"
    if name.lower().endswith((".dcm", ".dicom")):
        return DICOM
    return f"is not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image (it begins with {data[:8]!r}): convert it to PNG"
