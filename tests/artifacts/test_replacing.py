"""Replacing a saved folder: at once, by one writer at a time, while others read; nothing is left by the dead."""

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading

import pytest
from writers import compete, make, number_of, save_and_be_killed, save_until, without_exchange

from patience import LONG, wait_for
from sitewise.artifacts import places
from sitewise.artifacts.folders import read_folder, write_folder

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")  # quick; it only writes files


@pytest.fixture(params=["exchange", "two renames"])
def either_way(request, monkeypatch):
    """With the exchange of two folders at once, and where the system has none."""
    if request.param == "two renames":
        without_exchange(monkeypatch)
    return request.param == "exchange"


def test_readers_beside_a_writer_always_get_one_whole_writing(tmp_path):
    path = tmp_path / "site"
    write_folder(make(0), path)
    enough = SPAWN.Event()
    writer = SPAWN.Process(target=save_until, args=(enough, path, (1, 2, 3)))
    writer.start()
    numbers = []

    def read_often():
        numbers.extend(number_of(read_folder(place)) for place in (path, path / "model"))
        return not writer.is_alive() or (len(numbers) > 40 and len(set(numbers)) > 2)

    try:
        wait_for(read_often)
    finally:
        enough.set()
        writer.join()
    assert writer.exitcode == 0
    assert set(numbers) <= {0, 1, 2, 3}
    assert os.listdir(tmp_path) == ["site"]


def test_an_inner_folder_is_read_from_the_bytes_that_were_checked(tmp_path, monkeypatch):
    """A model that was replaced after it was checked is not trusted."""
    write_folder(make(1), tmp_path / "site")
    write_folder(make(2), tmp_path / "other")
    original = json.loads
    calls = []

    def swap(text, **options):
        calls.append(text)
        if len(calls) == 2:  # the outer one is checked, the inner one's turn comes
            shutil.rmtree(tmp_path / "site" / "model")
            shutil.copytree(tmp_path / "other" / "model", tmp_path / "site" / "model")
        return original(text, **options)

    monkeypatch.setattr(json, "loads", swap)
    with pytest.raises(ValueError, match=r"checksum differs|changed"):
        number_of(read_folder(tmp_path / "site"))


def test_a_folder_that_is_replaced_all_the_time_is_not_called_damaged(tmp_path, monkeypatch):
    path = tmp_path / "site"
    write_folder(make(0), path)
    monkeypatch.setattr(places, "PAUSE", 0)
    original, numbers = json.loads, itertools.count(1)

    def replace_first(text, **options):
        write_folder(make(next(numbers)), path)
        return original(text, **options)

    monkeypatch.setattr(json, "loads", replace_first)
    with pytest.raises(ValueError, match=r"is being replaced again and again.*load it again"):
        read_folder(path)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize(
    ("owner", "name"), [("os", "fsync"), ("Path", "rename"), ("Path", "mkdir"), ("os", "fsencode")]
)
def test_a_killed_writer_leaves_the_old_or_the_new_model_and_the_next_one_tidies_up(
    tmp_path, either_way, replace, owner, name
):
    path = tmp_path / "site"
    for calls in range(20):
        if replace:
            write_folder(make(0), path)
        writer = FORK.Process(target=save_and_be_killed, args=(path, 1, owner, name, calls, either_way))
        writer.start()
        writer.join()
        killed = writer.exitcode == -signal.SIGKILL
        assert killed or writer.exitcode == 0
        if replace or not killed:
            assert read_whole(path) in ({0, 1} if killed else {1})
        write_folder(make(3), path)
        assert number_of(read_folder(path)) == 3
        assert os.listdir(tmp_path) == ["site"]
        if not replace:
            shutil.rmtree(path)
        if not killed:
            return
    raise AssertionError("it was killed every time")


def read_whole(path):
    """The number of what is there; what was set aside is found, with a warning."""
    if path.exists():
        return number_of(read_folder(path))
    with pytest.warns(UserWarning, match="interrupted"):
        return number_of(read_folder(path))


def test_a_model_that_an_interrupted_save_set_aside_is_found_and_put_back(tmp_path):
    path = tmp_path / "site"
    write_folder(make(4), path)
    path.rename(tmp_path / ".site.old-0a1b2c3d")
    with pytest.warns(UserWarning, match=r"was interrupted.*\.site\.old-0a1b2c3d"):
        assert number_of(read_folder(path)) == 4
    refused = make(5)
    refused.content["number"] = float("nan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_folder(refused, path)
    assert os.listdir(tmp_path) == ["site"]
    assert number_of(read_folder(path)) == 4


def test_only_one_of_several_writers_writes(tmp_path):
    path = tmp_path / "site"
    inside, go_on = threading.Event(), threading.Event()

    def hold():
        with places.sole_writer(path):
            inside.set()
            go_on.wait(LONG)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(LONG)
    try:
        with pytest.raises(
            BlockingIOError, match=r"site could not be written \(another program is writing there"
        ) as caught:
            write_folder(make(1), path)
    finally:
        go_on.set()
        holder.join()
    assert "\n" not in str(caught.value)
    write_folder(make(2), path)
    assert number_of(read_folder(path)) == 2
    assert os.listdir(tmp_path) == ["site"]


def test_three_writers_at_once_leave_one_whole_model(tmp_path):
    path = tmp_path / "site"
    results = SPAWN.Queue()
    writers = [SPAWN.Process(target=compete, args=(path, number, 20, results)) for number in (1, 2, 3)]
    for writer in writers:
        writer.start()
    said = [results.get(timeout=LONG) for _ in range(60)]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert None in said
    assert number_of(read_folder(path)) in {1, 2, 3}
    assert os.listdir(tmp_path) == ["site"]


def test_a_living_writers_part_is_left_alone(tmp_path):
    """Beside a place others may write under names that look alike."""
    path, other = tmp_path / "site", tmp_path / "site.part"
    with places.sole_writer(other) as part:
        part.mkdir()
        write_folder(make(1), path)
        assert part.is_dir()
    for name in (".site.part-mine", ".site.old", ".sites.part-00000000"):
        (tmp_path / name).mkdir()
    write_folder(make(1), path)
    assert sorted(os.listdir(tmp_path)) == [".site.old", ".site.part-mine", ".sites.part-00000000", "site"]


def test_without_locks_nothing_of_others_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "fcntl", None)
    (tmp_path / ".site.part-00000000").mkdir()
    write_folder(make(1), tmp_path / "site")
    write_folder(make(2), tmp_path / "site")
    assert number_of(read_folder(tmp_path / "site")) == 2
    assert sorted(os.listdir(tmp_path)) == [".site.part-00000000", "site"]


@pytest.mark.parametrize("inside", [False, True])
def test_another_programs_model_json_is_not_replaced(tmp_path, inside):
    """XGBoost calls its file so, too."""
    folder = tmp_path / "xgb" / "model" if inside else tmp_path / "xgb"
    if inside:
        write_folder(make(1), tmp_path / "xgb")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "model.json").write_text('{"learner": {}}')
    with pytest.raises(FileExistsError, match=r"\(model(\.json)?\).*nothing was written"):
        write_folder(make(2), tmp_path / "xgb")
    assert (folder / "model.json").read_text() == '{"learner": {}}'


def test_a_damaged_model_can_be_saved_again(tmp_path):
    write_folder(make(1), tmp_path / "site")
    file = tmp_path / "site" / "model.json"
    file.write_bytes(file.read_bytes()[:200])
    write_folder(make(2), tmp_path / "site")
    assert number_of(read_folder(tmp_path / "site")) == 2
