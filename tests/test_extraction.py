"""Features are computed once: kept by what an input is made of, whoever is killed or writes beside."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_backbones import Colours
from torch import Tensor

from perdure import InputError
from perdure.inputs.backbones import Running, Unreadable
from perdure.inputs.cache import ABOUT, FeatureCache, default_folder, key_of
from perdure.inputs.extraction import extract

KEYS = [key_of(bytes([i])) for i in range(6)]
X = np.arange(18, dtype=np.float32).reshape(6, 3)


def draw(folder: Path, count: int, first: int = 0) -> list[Path]:
    """Pictures of one colour each: red is their number."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{first + i:03}.png" for i in range(count)]
    for i, file in enumerate(files, first):
        Image.new("RGB", (4, 4), (i, 2 * i % 256, 5)).save(file)
    return files


def colours(count: int, first: int = 0) -> np.ndarray:
    return np.array([(i, 2 * i % 256, 5) for i in range(first, first + count)], np.float32)


# The cache


def filled(folder: Path, rows: slice = slice(None)) -> FeatureCache:
    cache = FeatureCache(folder, {"who": "me"})
    with cache.writing() as add:
        add(KEYS[rows], X[rows])
    return cache


def test_rows_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    filled(tmp_path)
    again = FeatureCache(tmp_path, {"who": "me"})
    assert (len(again), again.width) == (6, 3)
    np.testing.assert_array_equal(again.read([KEYS[4], KEYS[0], KEYS[4]]), X[[4, 0, 4]])
    assert all(key in again for key in KEYS)
    assert key_of(b"another") not in again


def test_rows_are_there_for_who_added_them(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, {"who": "me"})
    assert KEYS[0] not in cache
    with cache.writing() as add:
        add(KEYS[:2], X[:2])
        assert KEYS[1] in cache
        add(KEYS[2:3], X[2:3])
        np.testing.assert_array_equal(cache.read(KEYS[2::-1]), X[2::-1])


def test_rows_are_read_through_a_memory_map_and_hold_no_objects(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, {"who": "me"})
    filled(tmp_path)
    cache = FeatureCache(tmp_path, {"who": "me"})
    assert isinstance(cache._rows[0], np.memmap)
    assert (cache.folder / "0000.rows").read_bytes() == X.tobytes()
    assert {file.name for file in cache.folder.iterdir()} == {ABOUT, "0000.keys", "0000.rows"}


def test_another_backbone_has_another_folder(tmp_path: Path) -> None:
    filled(tmp_path)
    assert len(FeatureCache(tmp_path, {"who": "you"})) == 0


def test_nothing_is_made_before_there_is_something_to_keep(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "new", {"who": "me"})
    with cache.writing():
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("cut", [1, 35, 36, 37])
def test_what_a_kill_left_of_a_key_is_not_found_and_done_again(tmp_path: Path, cut: int) -> None:
    cache = filled(tmp_path)
    keys = cache.folder / "0000.keys"
    os.truncate(keys, keys.stat().st_size - cut)
    whole = 6 - (1 if cut <= 36 else 2)
    again = FeatureCache(tmp_path, {"who": "me"})
    assert [key in again for key in KEYS] == [True] * whole + [False] * (6 - whole)
    with again.writing() as add:
        add(KEYS[whole:], -X[whole:])
    last = FeatureCache(tmp_path, {"who": "me"})
    np.testing.assert_array_equal(last.read(KEYS), np.concatenate([X[:whole], -X[whole:]]))
    assert (last.folder / "0000.rows").stat().st_size == X.nbytes


def test_what_a_kill_left_of_a_row_without_a_key_is_overwritten(tmp_path: Path) -> None:
    cache = filled(tmp_path, slice(0, 4))
    with open(cache.folder / "0000.rows", "ab") as file:
        file.write(b"half a row")
    filled(tmp_path, slice(4, 6))
    np.testing.assert_array_equal(FeatureCache(tmp_path, {"who": "me"}).read(KEYS), X)


def test_a_row_that_a_power_cut_spoiled_is_not_found(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    with open(cache.folder / "0000.rows", "r+b") as file:
        file.seek(2 * 12)
        file.write(bytes(12))  # a file system may leave zeros where nothing had been written yet
    again = FeatureCache(tmp_path, {"who": "me"})
    assert [key in again for key in KEYS] == [True, True, False, True, True, True]
    os.truncate(cache.folder / "0000.rows", 5 * 12)  # or less than the keys speak of
    assert [key in FeatureCache(tmp_path, {"who": "me"}) for key in KEYS][3:] == [True, True, False]


def test_two_writers_have_files_of_their_own_and_find_each_others_rows(tmp_path: Path) -> None:
    one, two = (FeatureCache(tmp_path, {"who": "me"}) for _ in range(2))
    with one.writing() as add_one, two.writing() as add_two:
        add_one(KEYS[:2], X[:2])
        add_two(KEYS[2:4], X[2:4])
        add_one(KEYS[4:], X[4:])
    assert sorted(file.name for file in one.folder.glob("*.keys")) == ["0000.keys", "0001.keys"]
    np.testing.assert_array_equal(FeatureCache(tmp_path, {"who": "me"}).read(KEYS), X)
    filled(tmp_path, slice(0, 1))  # whoever comes later takes up the first that is free
    assert len(list(one.folder.glob("*.keys"))) == 2


def test_a_writer_finds_what_another_added_meanwhile(tmp_path: Path) -> None:
    late = FeatureCache(tmp_path, {"who": "me"})
    filled(tmp_path, slice(0, 3))
    with late.writing() as add:
        add(KEYS[3:], X[3:])
    np.testing.assert_array_equal(late.read(KEYS), X)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": "x", "width": 3}'])
def test_a_damaged_cache_says_what_to_remove(tmp_path: Path, content: bytes) -> None:
    cache = filled(tmp_path)
    (cache.folder / ABOUT).write_bytes(content)
    with pytest.raises(InputError, match=rf"about\.json is damaged \(.*\); remove the folder {cache.folder}\."):
        FeatureCache(tmp_path, {"who": "me"})


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    with pytest.raises(InputError, match="keeps 3 features a row, not 2"), cache.writing() as add:
        add(KEYS[:1], X[:1, :2])


def test_the_cache_is_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "mine"))
    assert default_folder() == tmp_path / "mine"
    monkeypatch.delenv("PERDURE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "perdure" / "features"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path.home() / ".cache" / "perdure" / "features"


def _write_for_ever(folder: Path, first: int) -> None:
    cache = FeatureCache(folder, {"who": "many"})
    with cache.writing() as add:
        for i in range(first, 10**9, 2):
            add([key_of(str(i).encode())], np.full((1, 500), i, np.float32))


def test_two_processes_that_are_killed_at_any_moment_leave_only_whole_rows(tmp_path: Path) -> None:
    fresh = multiprocessing.get_context("spawn")
    writers = [fresh.Process(target=_write_for_ever, args=(tmp_path, first)) for first in (0, 1)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sum(file.stat().st_size > 100_000 for file in tmp_path.glob("*/*.rows")) < 2:
        time.sleep(0.01)
    for writer in writers:
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    cache = FeatureCache(tmp_path, {"who": "many"})
    assert len(list(tmp_path.glob("*/*.rows"))) == 2
    there = [i for i in range(20_000) if key_of(str(i).encode()) in cache]
    assert len(there) == len(cache) > 100
    assert {i % 2 for i in there} == {0, 1}
    np.testing.assert_array_equal(cache.read([key_of(str(i).encode()) for i in there])[:, 499], np.array(there, np.float32))


# Extraction


def test_features_come_in_the_order_of_the_pictures(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 11), Colours(batch=4)
    done = extract(files, backbone, progress=False)
    np.testing.assert_array_equal(done.x, colours(11))
    assert (done.of, done.computed, done.broken) == (list(range(11)), 11, [])
    assert backbone.seen == [4, 4, 3]
    assert done.x.dtype == np.float32


def test_nothing_is_computed_twice_whatever_a_file_is_called(tmp_path: Path) -> None:
    files = draw(tmp_path / "p", 6)
    extract(files, Colours(), progress=False)
    moved = files[2].rename(tmp_path / "p" / "renamed.png")
    (tmp_path / "p" / "copy.png").write_bytes(moved.read_bytes())
    backbone = Colours()
    done = extract([tmp_path / "p" / "copy.png", moved, *files[3:]], backbone, progress=False)
    assert (backbone.count, done.computed) == (0, 0)
    np.testing.assert_array_equal(done.x, colours(6)[[2, 2, 3, 4, 5]])


def test_copies_go_through_once(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 3), Colours(batch=2)
    done = extract([*files, *files, files[0]], backbone, progress=False)
    assert (backbone.count, done.computed) == (3, 3)
    np.testing.assert_array_equal(done.x, np.concatenate([colours(3), colours(3), colours(1)]))


def test_a_file_that_changed_is_computed_again(tmp_path: Path) -> None:
    files, stat = draw(tmp_path / "p", 3), (tmp_path / "p" / "001.png").stat()
    extract(files, Colours(), progress=False)
    changed = draw(tmp_path / "q", 1, first=77)[0].read_bytes()
    files[1].write_bytes(changed)
    os.utime(files[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))  # not even its date tells
    backbone = Colours()
    np.testing.assert_array_equal(extract(files, backbone, progress=False).x[1], colours(1, first=77)[0])
    assert backbone.count == 1


def test_other_backbones_and_precisions_are_kept_apart(tmp_path: Path) -> None:
    files = draw(tmp_path / "p", 3)
    extract(files, Colours(), progress=False)
    other, halved = Colours(network="other"), Colours()
    halved.running = Running("cpu", "bfloat16", 4)
    for backbone in (other, halved):
        extract(files, backbone, progress=False)
        assert backbone.count == 3


def test_without_a_cache_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    files = draw(tmp_path / "p", 3)
    for _ in range(2):
        backbone = Colours()
        np.testing.assert_array_equal(extract(files, backbone, keep=False, progress=False).x, colours(3))
        assert backbone.count == 3
    assert not (tmp_path / "cache").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def stop_after(pictures: int) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if done >= pictures:
            raise KeyboardInterrupt

    return report


def test_stopped_it_goes_on_where_it_was(tmp_path: Path) -> None:
    files = draw(tmp_path / "p", 12)
    with pytest.raises(KeyboardInterrupt):
        extract(files, Colours(batch=2), progress=stop_after(4))
    backbone, reports = Colours(batch=2), list[tuple[int, int]]()
    np.testing.assert_array_equal(extract(files, backbone, progress=lambda *step: reports.append(step)).x, colours(12))
    assert 12 - 8 <= backbone.count <= 8
    assert reports[-1] == (12, 12)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


def test_ctrl_c_keeps_the_batch_under_way(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 12), Colours(batch=3)
    encode = backbone.encode

    def pressed(prepared: Any, *, exact: bool = False) -> Tensor:
        signal.raise_signal(signal.SIGINT)
        return encode(prepared)

    backbone.encode = pressed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        extract(files, backbone, progress=False)
    again = Colours(batch=3)
    extract(files, again, progress=False)
    assert again.count == 9


def test_a_broken_picture_stops_and_costs_nothing_that_was_done(tmp_path: Path) -> None:
    files = draw(tmp_path / "p", 9)
    files[6].write_bytes(b"broken")
    with pytest.raises(Unreadable, match=rf"^{files[6]} cannot be read"):
        extract(files, Colours(batch=2), progress=False)
    backbone = Colours(batch=2)
    extract(files[:6], backbone, progress=False)
    assert backbone.count == 0


def test_broken_pictures_are_named_and_left_out_if_asked(tmp_path: Path) -> None:
    files = draw(tmp_path / "p", 6)
    files[0].write_bytes(b"broken")
    files[4].unlink()
    done = extract(files, Colours(batch=2), broken="skip", progress=False)
    assert done.of == [1, 2, 3, 5]
    np.testing.assert_array_equal(done.x, colours(6)[[1, 2, 3, 5]])
    assert [sentence.split(" cannot")[0] for sentence in done.broken] == [str(files[0]), str(files[4])]
    with pytest.raises(InputError, match=rf"None of 1 can be read\. The first: {files[0]} cannot be read as a picture"):
        extract(files[:1], Colours(), broken="skip", progress=False)
    with pytest.raises(InputError, match='`broken` must be "stop" or "skip"'):
        extract(files, Colours(), broken="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="There is nothing to turn into features"):
        extract([], Colours())


def test_features_that_are_no_numbers_are_not_kept(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 3), Colours()
    encode = backbone.encode
    backbone.encode = lambda prepared, exact=False: encode(prepared).where(encode(prepared) != 1, torch.nan)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=rf"^{files[1]} gets features that are no numbers; is colours damaged\?"):
        extract(files, backbone, progress=False)
    again = Colours()
    extract(files, again, progress=False)
    assert again.count == 3


def test_where_half_precision_overflows_it_is_computed_in_full(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 3), Colours()
    backbone.running = Running("cpu", "float16", 4)
    encode, asked = backbone.encode, list[bool]()

    def half(prepared: Any, *, exact: bool = False) -> Tensor:
        asked.append(exact)
        return encode(prepared) if exact else encode(prepared) / 0

    backbone.encode = half  # type: ignore[method-assign]
    np.testing.assert_array_equal(extract(files, backbone, progress=False).x, colours(3))
    assert asked == [False, True]


def test_where_memory_is_short_batches_become_smaller(tmp_path: Path) -> None:
    files, backbone = draw(tmp_path / "p", 20), Colours(batch=8)
    encode, sizes = backbone.encode, list[int]()

    def narrow(prepared: Any, *, exact: bool = False) -> Tensor:
        sizes.append(len(prepared))
        if len(prepared) > 3:
            raise torch.cuda.OutOfMemoryError
        return encode(prepared)

    backbone.encode = narrow  # type: ignore[method-assign]
    np.testing.assert_array_equal(extract(files, backbone, progress=False).x, colours(20))
    assert sizes == [8, 4, *[2] * 10]  # found out once
    backbone.encode = lambda prepared, exact=False: (_ for _ in ()).throw(torch.cuda.OutOfMemoryError)  # type: ignore[method-assign]
    with pytest.raises(InputError, match="Not even one input fits into the memory of the device with colours"):
        extract(draw(tmp_path / "q", 2, first=100), backbone, progress=False)


def test_pictures_are_decoded_in_parallel_and_not_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, backbone = draw(tmp_path / "p", 64), Colours(batch=4)
    monkeypatch.setattr("perdure.inputs.extraction.threads", lambda: 3)
    threads, ahead, looked = set(), list[int](), [0]
    prepare, encode, guard = backbone.prepare, backbone.encode, threading.Lock()

    def watched(content: bytes, item: Any) -> Any:
        with guard:
            looked[0] += 1
            threads.add(threading.get_ident())
        time.sleep(0.001)
        return prepare(content, item)

    def counted(prepared: Any, *, exact: bool = False) -> Tensor:
        time.sleep(0.02)
        ahead.append(looked[0] - backbone.count)
        return encode(prepared)

    backbone.prepare, backbone.encode = watched, counted  # type: ignore[method-assign]
    extract(files, backbone, progress=False)
    assert len(threads) == 3
    assert threading.get_ident() not in threads
    assert max(ahead) <= 3 * 4 + 1  # the batch itself, and two more


def test_a_bar_shows_pictures_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extract(draw(tmp_path / "p", 3), Colours(), progress=True)
    assert "img/s" in capsys.readouterr().err
