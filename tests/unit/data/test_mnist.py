"""MNIST: where its files are looked for, how they are read, and what is said when they are not right."""

import gzip
import hashlib

import numpy as np
import pytest

from paceline.data import DataRequest, mnist
from paceline.data.mnist import DATA, FILES, cache_folder, find_folder, load, prepare, read_idx
from paceline.errors import DataError


def idx(array):
    """The array as the bytes of an idx.gz file."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


@pytest.fixture
def tiny_files(monkeypatch):
    """Four small files in MNIST's format that pass for it, by name."""
    images = np.arange(6 * 28 * 28).reshape(6, 28, 28) % 256
    bodies = dict(zip(FILES, map(idx, (images, np.arange(6), images[:3], np.arange(3))), strict=True))
    sums = {name: hashlib.md5(body, usedforsecurity=False).hexdigest() for name, body in bodies.items()}
    monkeypatch.setattr(mnist, "FILES", sums)
    return bodies


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PACELINE_DATA", raising=False)
    return tmp_path / "cache" / "paceline" / "mnist"


def lay(folder, bodies):
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in bodies.items():
        (folder / name).write_bytes(body)


def never(*_):
    raise AssertionError("nothing should have been downloaded")


def test_downloads_are_kept_in_the_cache_of_the_user(empty_cache, monkeypatch, tmp_path):
    assert cache_folder() == empty_cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "paceline" / "mnist"


def test_the_files_are_found_in_the_named_folder_or_its_mnist_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    assert find_folder() is None
    lay(tmp_path / "data" / "mnist", dict.fromkeys(FILES, b""))
    assert find_folder() == tmp_path / "data" / "mnist"
    lay(tmp_path / "data", dict.fromkeys(FILES, b""))
    assert find_folder() == tmp_path / "data"


def test_the_cache_is_looked_at_last(empty_cache, tmp_path, monkeypatch):
    lay(empty_cache, dict.fromkeys(FILES, b""))
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "elsewhere"))
    assert find_folder() == empty_cache


def test_a_folder_that_lacks_a_file_is_passed_over(tmp_path, monkeypatch):
    lay(tmp_path, dict.fromkeys(list(FILES)[:3], b""))
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    assert find_folder() is None


def test_nothing_is_downloaded_when_the_files_are_here(empty_cache, monkeypatch):
    lay(empty_cache, dict.fromkeys(FILES, b""))
    monkeypatch.setattr(mnist, "MIRRORS", ())
    prepare(never)


def test_all_four_files_are_downloaded_into_the_cache(tiny_files, empty_cache, mirror, monkeypatch):
    mirror.files = tiny_files
    monkeypatch.setattr(mnist, "MIRRORS", (mirror.url,))
    told = []
    prepare(lambda *event: told.append(event))
    assert {name: (empty_cache / name).read_bytes() for name in tiny_files} == tiny_files
    assert {name for name, _, _ in told} == set(tiny_files)
    assert load(DataRequest()).train_targets.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_download_that_fails_says_why_and_every_way_out(tiny_files, empty_cache, mirror, monkeypatch):
    mirror.files = {}
    monkeypatch.setattr(mnist, "MIRRORS", (mirror.url,))
    with pytest.raises(DataError) as caught:
        prepare(lambda *_: None)
    message = str(caught.value)
    assert message.startswith("data set mnist is not on this machine and cannot be downloaded (")
    assert f"{mirror.url}: Not Found" in message
    assert f"put {', '.join(tiny_files)} into {empty_cache}" in message
    assert "--data-dir" in message
    assert "$PACELINE_DATA" in message
    assert "--dataset mnist-5k, which ships with Paceline" in message


def test_a_cache_that_cannot_be_made_is_told_the_same_way(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be downloaded"):
        prepare(never)


def test_the_arrays_are_what_the_files_hold(tiny_files, empty_cache):
    lay(empty_cache, tiny_files)
    data = load(DataRequest())
    assert data.train_inputs.shape == (6, 1, 28, 28)
    assert data.test_inputs.shape == (3, 1, 28, 28)
    assert data.train_inputs.dtype == np.float32
    assert data.train_inputs.ravel()[:3].tolist() == pytest.approx([0.0, 1 / 255, 2 / 255])
    assert data.train_targets.tolist() == [0, 1, 2, 3, 4, 5]
    assert data.test_targets.tolist() == [0, 1, 2]
    assert data.classes == 10


def test_fewer_samples_are_the_first_ones(tiny_files, empty_cache):
    lay(empty_cache, tiny_files)
    assert load(DataRequest(train_samples=2)).train_targets.tolist() == [0, 1]


def test_loading_without_the_files_says_what_to_put_where():
    with pytest.raises(DataError) as caught:
        load(DataRequest())
    assert str(caught.value) == ("data set mnist is not on this machine; put its four idx.gz files into --data-dir")


def test_a_file_with_another_checksum_is_refused_by_name(tiny_files, empty_cache):
    name = next(iter(tiny_files))
    lay(empty_cache, {**tiny_files, name: tiny_files[name][:-1] + b"x"})
    with pytest.raises(DataError) as caught:
        load(DataRequest())
    assert str(caught.value) == (
        f"{empty_cache / name} is not the MNIST file of that name (its MD5 differs); replace it"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"plain text",
        idx(np.arange(100))[:-20],
        gzip.compress(b""),
        gzip.compress(b"\0\0"),
        gzip.compress(b"\0\0\x08\x01\0\0\0\x09short"),
        gzip.compress(b"\0\0\x0d\x01\0\0\0\x04\0\0\0\0"),
    ],
    ids=["empty", "not gzip", "cut short", "nothing inside", "half a header", "too few values", "floats"],
)
def test_a_damaged_file_is_refused_with_its_name_and_what_to_do(body, tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(body)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged (")
    assert message.endswith("delete it and run again, or put a good copy there")


def test_an_idx_file_is_read_in_its_own_shape(tmp_path):
    path = tmp_path / "array.gz"
    path.write_bytes(idx(np.arange(24).reshape(2, 3, 4)))
    assert read_idx(path).tolist() == np.arange(24).reshape(2, 3, 4).tolist()


@pytest.mark.parametrize(("asked", "have"), [(None, 60_000), (100, 100), (70_000, 60_000)])
def test_the_source_says_how_many_samples_a_run_will_find_without_loading_them(asked, have):
    assert DATA.count(DataRequest(train_samples=asked)) == have


def test_the_real_files_hold_sixty_thousand_and_ten_thousand_digits(mnist_files, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(mnist_files))
    data = load(DataRequest())
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert data.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(data.test_targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.input_shape == DATA.shape
