"""What a process holds, from the kernel's account of it."""

import mmap

import pytest

from paceline.runs.meters.memory import Resident, resident, start_peak_anew

STATUS = """Name:	python
VmHWM:	    9000 kB
VmRSS:	    7000 kB
RssAnon:	 4500 kB
RssFile:	 2000 kB
RssShmem:	  500 kB
"""


def test_pages_of_files_are_not_the_models(tmp_path):
    (tmp_path / "status").write_text(STATUS)
    assert resident(tmp_path / "status") == Resident(current_bytes=5000 * 1024, peak_bytes=7000 * 1024)


@pytest.mark.parametrize("text", ["Name:	python\n", ""])
def test_a_kernel_that_keeps_no_such_account_is_no_error(tmp_path, text):
    assert resident(tmp_path / "absent") is None
    (tmp_path / "status").write_text(text)
    assert resident(tmp_path / "status") is None


def test_memory_that_is_taken_is_seen_and_memory_that_was_given_back_stays_in_the_peak():
    before = resident()
    # Straight from the system: what an allocator hands out it may have kept from earlier.
    taken = mmap.mmap(-1, 32 << 20)
    for page in range(0, len(taken), mmap.PAGESIZE):
        taken[page] = 1
    during = resident()
    taken.close()
    after = resident()
    assert during.current_bytes - before.current_bytes >= 31 << 20
    assert after.current_bytes < during.current_bytes
    assert after.peak_bytes >= during.current_bytes - (1 << 20)


def test_what_setting_up_took_is_no_part_of_the_peak_that_follows():
    taken = mmap.mmap(-1, 32 << 20)
    for page in range(0, len(taken), mmap.PAGESIZE):
        taken[page] = 1
    taken.close()
    before = resident()
    start_peak_anew()
    after = resident()
    assert before.peak_bytes - after.peak_bytes >= 31 << 20
    assert after.peak_bytes - after.current_bytes < 4 << 20
