"""Downloads: checked, resumed, and never half-written under their own name."""

import hashlib
import random

import pytest

from paceline.data.download import CHUNK_BYTES, fetch

NAME = "images.gz"
BODY = random.Random(1).randbytes(3 * CHUNK_BYTES + 1000)
MD5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()


def silent(*_):
    """Tells nobody."""


@pytest.fixture
def download(tmp_path, mirror):
    """Fetches the file from the mirrors (one good one if none are named)."""
    mirror.files = {NAME: BODY}

    def run(*mirrors, progress=silent):
        urls = tuple(each.url for each in mirrors or (mirror,))
        return fetch(NAME, urls, tmp_path, MD5, progress)

    return run


@pytest.fixture
def part(tmp_path):
    return tmp_path / (NAME + ".part")


def test_a_file_arrives_whole_and_leaves_no_part_behind(download, tmp_path):
    assert download() == tmp_path / NAME
    assert (tmp_path / NAME).read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_the_whole_file_is_asked_for_without_a_range(download, mirror):
    download()
    assert mirror.asked == [(NAME, None)]


def test_a_file_that_is_here_and_right_is_not_asked_for(download, mirror, tmp_path):
    (tmp_path / NAME).write_bytes(BODY)
    assert download() == tmp_path / NAME
    assert mirror.asked == []


def test_a_file_that_is_here_and_wrong_is_replaced(download, tmp_path):
    (tmp_path / NAME).write_bytes(b"something else")
    download()
    assert (tmp_path / NAME).read_bytes() == BODY


def test_progress_is_told_with_the_name_the_bytes_so_far_and_the_bytes_in_all(download):
    told = []
    download(progress=lambda *event: told.append(event))
    assert {name for name, _, _ in told} == {NAME}
    assert {total for _, _, total in told} == {len(BODY)}
    done = [bytes_so_far for _, bytes_so_far, _ in told]
    assert done == sorted(done)
    assert done[0] <= CHUNK_BYTES
    assert done[-1] == len(BODY)


def test_no_file_has_its_own_name_until_it_is_whole(download, part, tmp_path):
    seen = []
    download(progress=lambda *_: seen.append((part.exists(), (tmp_path / NAME).exists())))
    assert set(seen) == {(True, False)}


def test_a_part_is_continued_where_it_ended(download, mirror, part, tmp_path):
    part.write_bytes(BODY[:70_000])
    told = []
    download(progress=lambda *event: told.append(event))
    assert mirror.asked == [(NAME, "bytes=70000-")]
    assert (tmp_path / NAME).read_bytes() == BODY
    assert told[0][1] > 70_000
    assert {total for _, _, total in told} == {len(BODY)}


def test_a_mirror_that_cannot_continue_sends_the_file_from_its_beginning(download, mirror, part, tmp_path):
    mirror.ranges = False
    part.write_bytes(b"x" * 70_000)
    download()
    assert (tmp_path / NAME).read_bytes() == BODY


def test_a_part_that_was_whole_already_is_taken_as_it_is(download, mirror, part, tmp_path):
    part.write_bytes(BODY)
    assert download().read_bytes() == BODY
    assert mirror.asked == [(NAME, f"bytes={len(BODY)}-")]


def test_a_part_of_something_else_is_thrown_away_and_the_next_mirror_starts_anew(
    download, mirror, second_mirror, part, tmp_path
):
    second_mirror.files = mirror.files
    part.write_bytes(b"x" * 70_000)
    assert download(mirror, second_mirror).read_bytes() == BODY
    assert second_mirror.asked == [(NAME, None)]


def test_a_connection_cut_short_keeps_the_part_and_says_how_far_it_came(download, mirror, part, tmp_path):
    mirror.cut_after = 100_000
    with pytest.raises(OSError, match=f"the connection ended after 100000 of {len(BODY)} bytes") as caught:
        download()
    assert mirror.url in str(caught.value)
    assert part.read_bytes() == BODY[:100_000]
    assert not (tmp_path / NAME).exists()


def test_a_download_that_was_cut_short_goes_on_in_the_next_attempt(download, mirror):
    mirror.cut_after = 100_000
    with pytest.raises(OSError, match="ended after"):
        download()
    mirror.cut_after = None
    assert download().read_bytes() == BODY
    assert mirror.asked[-1] == (NAME, "bytes=100000-")


def test_a_download_that_was_cut_short_goes_on_at_the_next_mirror(download, mirror, second_mirror):
    mirror.cut_after = 100_000
    second_mirror.files = mirror.files
    assert download(mirror, second_mirror).read_bytes() == BODY
    assert second_mirror.asked == [(NAME, "bytes=100000-")]


@pytest.mark.parametrize("code", [403, 404, 500, 503])
def test_a_mirror_that_fails_is_followed_by_the_next(download, mirror, second_mirror, code):
    mirror.refuse = code
    second_mirror.files = {NAME: BODY}
    assert download(mirror, second_mirror).read_bytes() == BODY
    assert len(mirror.asked) == len(second_mirror.asked) == 1


def test_a_mirror_that_nobody_runs_is_followed_by_the_next(mirror, tmp_path):
    mirror.files = {NAME: BODY}
    nobody = "http://127.0.0.1:9/"
    assert fetch(NAME, (nobody, mirror.url), tmp_path, MD5, silent).read_bytes() == BODY


def test_a_file_with_another_checksum_is_thrown_away_and_the_next_mirror_asked(download, mirror, second_mirror):
    mirror.files = {NAME: b"another file"}
    second_mirror.files = {NAME: BODY}
    assert download(mirror, second_mirror).read_bytes() == BODY
    assert second_mirror.asked == [(NAME, None)]


def test_a_file_with_another_checksum_everywhere_is_refused_with_the_sum_it_should_have(
    download, mirror, part, tmp_path
):
    mirror.files = {NAME: b"another file"}
    with pytest.raises(OSError, match=f"{mirror.url}: sent a file whose MD5 is not {MD5}"):
        download()
    assert list(tmp_path.iterdir()) == []


def test_when_no_mirror_serves_the_file_the_answer_of_each_is_told(download, mirror, second_mirror):
    mirror.refuse = 503
    second_mirror.files = {NAME: b"another file"}
    with pytest.raises(OSError, match="Service Unavailable") as caught:
        download(mirror, second_mirror)
    assert str(caught.value) == (
        f"{mirror.url}: Service Unavailable; {second_mirror.url}: sent a file whose MD5 is not {MD5}"
    )


def test_a_mirror_that_does_not_say_the_length_will_do(download, mirror):
    mirror.chunked = True
    told = []
    assert download(progress=lambda *event: told.append(event)).read_bytes() == BODY
    assert told[-1] == (NAME, len(BODY), 0)


@pytest.mark.parametrize("faults", [{"nonsense": True}, {"chunked": True, "cut_after": 1000}], ids=str)
def test_a_mirror_that_breaks_the_protocol_is_followed_by_the_next(download, mirror, second_mirror, faults):
    for fault, value in faults.items():
        setattr(mirror, fault, value)
    second_mirror.files = {NAME: BODY}
    assert download(mirror, second_mirror).read_bytes() == BODY


def test_a_folder_that_cannot_be_written_is_an_os_error(mirror, tmp_path):
    mirror.files = {NAME: BODY}
    with pytest.raises(OSError, match="No such file"):
        fetch(NAME, (mirror.url,), tmp_path / "gone", MD5, silent)
