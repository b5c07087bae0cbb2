"""Reading images: each kind of file is read rightly or refused with what to do."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

from sitewise.tables.images import TURNS, read_image

NOISE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_rgb_comes_back_as_it_was_channels_first(kind, tmp_path):
    path = tmp_path / "image"
    path.write_bytes(encoded(NOISE, kind))
    for source in (path, str(path), path.read_bytes()):
        pixels = read_image(source)
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous
        np.testing.assert_array_equal(pixels, NOISE.transpose(2, 0, 1))


def test_jpeg_comes_back_as_pillow_decodes_it():
    data = encoded(NOISE, "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(read_image(data), expected.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_the_full_range_of_the_type(kind):
    deep = np.array([[0, 128, 129, 257, 4095, 32896, 65535]], dtype=np.uint16)
    assert read_image(encoded(deep, kind), channels=1).tolist() == [[[0, 0, 1, 1, 16, 128, 255]]]


def test_sixteen_bits_never_depend_on_the_rest_of_the_image():
    deep = np.random.default_rng(1).integers(0, 2**16, (8, 8), dtype=np.uint16)
    brighter = deep.copy()
    brighter[0, 0] = 65535
    one, other = (read_image(encoded(image), channels=1) for image in (deep, brighter))
    np.testing.assert_array_equal(one[0].ravel()[1:], other[0].ravel()[1:])


def test_big_endian_and_white_is_zero_sixteen_bit_tiffs():
    deep = np.array([[0, 257, 65535]], dtype=np.uint16)
    swapped = Image.frombytes("I;16B", (3, 1), deep.astype(">u2").tobytes())
    assert read_image(encoded(swapped, "TIFF"), channels=1).tolist() == [[[0, 1, 255]]]
    assert read_image(encoded(deep, "TIFF", tiffinfo={262: 0}), channels=1).tolist() == [[[255, 254, 0]]]


def test_a_palette_becomes_its_colours_and_not_its_numbers():
    palette = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8), "L").convert("P")
    palette.putpalette([200, 10, 20, 30, 210, 40, 50, 60, 220])
    assert read_image(encoded(palette)).tolist() == [[[200, 30, 50]], [[10, 210, 60]], [[20, 40, 220]]]


def test_gray_among_rgb_is_repeated_and_rgb_for_one_channel_is_luma():
    gray = NOISE[:, :, 0]
    pixels = read_image(encoded(gray))
    assert pixels.shape == (3, 40, 60)
    for channel in pixels:
        np.testing.assert_array_equal(channel, gray)
    luma = read_image(encoded(NOISE), channels=1)
    assert luma.shape == (1, 40, 60)
    expected = NOISE @ [0.299, 0.587, 0.114]
    assert np.abs(luma[0] - expected).max() <= 1


def test_what_is_transparent_is_laid_on_black():
    clear = np.array([[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 128]]], dtype=np.uint8)
    assert read_image(encoded(clear)).tolist() == [[[200, 0, 100]], [[100, 0, 50]], [[50, 0, 25]]]
    keyed = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "L").convert("P")
    keyed.putpalette([200, 10, 20, 30, 210, 40])
    assert read_image(encoded(keyed, transparency=1)).tolist() == [[[200, 0]], [[10, 0]], [[20, 0]]]
    gray = np.array([[[90, 255], [90, 0]]], dtype=np.uint8)
    assert read_image(encoded(gray), channels=1).tolist() == [[[90, 0]]]
    assert read_image(encoded(gray)).tolist() == [[[90, 0]]] * 3


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(kind):
    inks = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan: red
    red, green, blue = read_image(encoded(inks, kind))[:, 8, 8].astype(int)
    assert red > 240
    assert green < 15
    assert blue < 15


def test_one_bit_becomes_black_and_white():
    bits = Image.fromarray(np.array([[0, 255, 0]], dtype=np.uint8)).convert("1")
    assert read_image(encoded(bits), channels=1).tolist() == [[[0, 255, 0]]]


@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation, size):
    smooth = Image.fromarray(NOISE[:4, :6]).resize((60, 40), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    turned = read_image(encoded(smooth, "JPEG", quality=95, exif=exif), size)
    upright = Image.fromarray(read_image(encoded(smooth, "JPEG", quality=95), size).transpose(1, 2, 0))
    if orientation in TURNS:
        upright = upright.transpose(Image.Transpose[TURNS[orientation]])
    np.testing.assert_array_equal(turned, np.asarray(upright).transpose(2, 0, 1))


def test_exif_orientation_six_stands_on_its_left_side():
    """The standard, in numbers: with orientation 6 the first stored row is the right side of the picture."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stored = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    for kind in ("PNG", "TIFF"):
        assert read_image(encoded(stored, kind, exif=exif), channels=1).tolist() == [[[3, 1], [4, 2]]]


@pytest.mark.parametrize("size", [20, 40])
def test_size_scales_the_shorter_side_then_cuts_the_centre_square(size):
    for wide in (Image.fromarray(NOISE), Image.fromarray(NOISE.transpose(1, 0, 2).copy())):
        width, height = (side * size // 40 for side in wide.size)
        left, top = (width - size) // 2, (height - size) // 2
        whole = wide.resize((width, height), Image.Resampling.BILINEAR)
        expected = np.asarray(whole.crop((left, top, left + size, top + size))).astype(int)
        assert np.abs(read_image(encoded(wide), size) - expected.transpose(2, 0, 1)).max() <= 1


def test_a_small_image_is_enlarged():
    assert (read_image(encoded(np.full((5, 9), 77, dtype=np.uint8)), size=30) == np.full((3, 30, 30), 77)).all()


def test_shrinking_averages_instead_of_picking_pixels():
    checkers = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    assert np.abs(read_image(encoded(checkers), size=8, channels=1)[:, 1:-1, 1:-1].astype(int) - 128).max() <= 8


@pytest.mark.parametrize("shape", [(900, 700), (701, 933), (1600, 1200)])
def test_a_large_jpeg_decoded_small_differs_little_from_one_decoded_whole(shape):
    blurred = Image.fromarray(NOISE).resize(shape, Image.Resampling.BICUBIC)
    data = encoded(blurred, "JPEG", quality=95)
    whole = encoded(Image.open(io.BytesIO(data)))
    difference = read_image(data, 100).astype(int) - read_image(whole, 100)
    assert np.abs(difference).mean() < 1.5
    assert np.abs(difference).max() < 10


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("size", [None, 8])
def test_a_truncated_file_is_refused_wherever_it_ends(kind, size):
    data = encoded(NOISE, kind)
    for kept in np.linspace(len(data) * 0.02, len(data) * 0.98, 25).astype(int):
        with pytest.raises(ValueError, match="truncated or damaged"):
            read_image(data[:kept], size)


def test_half_an_image_is_refused_where_pillow_is_set_to_accept_it(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES is set"):
        read_image(encoded(NOISE))


def test_dicom_is_refused_with_what_to_do(tmp_path):
    dicom = bytes(128) + b"DICM" + bytes(100)
    with pytest.raises(ValueError, match=r"the image is a DICOM file.*convert it to PNG, with pydicom"):
        read_image(dicom)
    bare = tmp_path / "no_preamble.dcm"
    bare.write_bytes(b"\x08\x00\x05\x00" + bytes(100))
    with pytest.raises(ValueError, match=r"no_preamble\.dcm is a DICOM file"):
        read_image(bare)


def test_what_has_no_known_range_or_several_pages_is_refused():
    with pytest.raises(ValueError, match="floating-point numbers, whose range is not known: scale it"):
        read_image(encoded(np.ones((2, 2), dtype=np.float32), "TIFF"))
    with pytest.raises(ValueError, match="32-bit or signed integers"):
        read_image(encoded(np.ones((2, 2), dtype=np.int32), "TIFF"))
    page = Image.fromarray(NOISE)
    with pytest.raises(ValueError, match="a TIFF of 2 pages: save the page you need"):
        read_image(encoded(page, "TIFF", save_all=True, append_images=[page]))
    with pytest.raises(ValueError, match="CIELAB"):
        read_image(encoded(Image.new("LAB", (2, 2)), "TIFF"))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a JPEG, PNG or TIFF image \(it begins with b'GIF87a"):
        read_image(encoded(NOISE, "GIF"))
    with pytest.raises(ValueError, match=r"is empty \(0 bytes\)"):
        read_image(b"")
    with pytest.raises(FileNotFoundError, match=r"there is no image .*nowhere\.png"):
        read_image(tmp_path / "nowhere.png")


def test_wrong_arguments_are_named_together():
    with pytest.raises(ValueError, match=r"2 problems(.|\n)*size must be at least one(.|\n)*channels must be 1"):
        read_image(b"", size=0, channels=4)
