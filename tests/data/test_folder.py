"""Folders of images: what is found, how it is brought to one shape, and what is refused."""

import numpy as np
import pytest
from jobs.made_up import images
from PIL import Image

from rankfold.data.errors import DamagedData, MissingData
from rankfold.data.folder import ImageShape, common_shape, pixels, read_folder


def test_classes_are_folders_and_pixels_those_of_the_files(tmp_path):
    folder = read_folder(images(tmp_path / "a"))
    assert len(folder) == 24
    assert set(folder.labels) == {"up", "flat"}
    assert folder.name(0) == "flat/flat0.png"
    shape = common_shape(folder)
    assert shape == ImageShape(1, 8, 8)
    values = pixels(folder.files, shape)
    assert values.shape == (24, 1, 8, 8)
    assert np.array_equal(values[0, 0], np.asarray(Image.open(folder.files[0])))


def test_a_class_may_have_a_name_like_that_of_an_image(tmp_path):
    data = images(tmp_path / "a")
    (data / "up").rename(data / "up.png")
    folder = read_folder(data)
    assert set(folder.labels) == {"up.png", "flat"}
    assert folder.left_out == ()


def test_images_alone_have_no_labels(tmp_path):
    assert read_folder(images(tmp_path / "a", labelled=False)).labels is None


@pytest.mark.parametrize(
    ("mode", "size", "expected"),
    [
        ("RGB", (8, 8), (3, 64, 64)),  # not all of one size: squares
        ("L", (20, 10), (1, 64, 64)),
        ("RGB", (80, 100), (3, 64, 64)),
    ],
)
def test_mixed_or_large_images_become_squares(mode, size, expected, tmp_path):
    images(tmp_path / "a")
    Image.new(mode, size).save(tmp_path / "a" / "up" / "other.png")
    folder = read_folder(tmp_path / "a")
    shape = common_shape(folder)
    if size == (8, 8):  # only the colour differs
        expected = (3, 8, 8)
    assert (shape.channels, shape.height, shape.width) == expected
    assert pixels(folder.files, shape).shape == (25, *expected)


def test_a_tall_image_keeps_its_orientation(tmp_path):
    values = np.zeros((16, 10), np.uint8)
    values[15] = 255
    Image.fromarray(values).save(tmp_path / "x.png")
    folder = read_folder(tmp_path)
    assert common_shape(folder) == ImageShape(1, 16, 10)
    assert np.array_equal(pixels(folder.files, ImageShape(1, 16, 10))[0, 0], values)


def test_tiny_images_are_enlarged(tmp_path):
    Image.new("L", (3, 20)).save(tmp_path / "x.png")
    assert common_shape(read_folder(tmp_path)) == ImageShape(1, 20, 8)


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(MissingData, match="is no folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(MissingData, match="has no images"):
        read_folder(tmp_path)
    images(tmp_path / "a")
    (tmp_path / "a" / "empty").mkdir()
    with pytest.raises(MissingData, match=r"a/empty has no images .*remove it"):
        read_folder(tmp_path / "a")


@pytest.mark.parametrize("keep", [0, 60])
def test_a_broken_image_is_named(keep, tmp_path):
    folder = images(tmp_path / "a")
    file = folder / "up" / "up3.png"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DamagedData, match=r"up3.png cannot be read as an image .*; replace it"):
        pixels([file], common_shape(read_folder(folder)))
