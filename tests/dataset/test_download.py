import multiprocessing
from pathlib import Path

import pytest

from attnprior.data import download
from attnprior.data.download import Archive, Patience
from attnprior.errors import UserError
from tests.dataset.archives import md5
from tests.dataset.server import closed_port, served

CONTENT = bytes(range(256)) * 400  # 100 KiB
QUICK = Patience(tries=3, backoff=0.01, timeout=5.0, window=0.3, least=1000)


@pytest.fixture
def server():
    with served({"a.zip": CONTENT}) as made:
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(download.FOLDER, str(tmp_path))
    monkeypatch.delenv(download.MIRRORS, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def get(*bases: str, content: bytes = CONTENT, lines: list | None = None, patience=QUICK) -> Path:
    archive = Archive("a.zip", md5(content), tuple(b + "a.zip" for b in bases))
    return download.fetch(archive, "datasets.x", (lines if lines is not None else []).append, patience)


def test_a_file_is_downloaded_once_and_then_only_verified(server, folder):
    assert get(server.url).read_bytes() == CONTENT
    assert get(server.url) == folder / "a.zip"
    assert len(server.asked) == 1
    assert not list(folder.glob("*.part"))


def test_a_busy_server_is_asked_again(server):
    server.script = ["503", "503"]
    lines: list[str] = []
    assert get(server.url, lines=lines).read_bytes() == CONTENT
    assert len(server.asked) == 3
    assert sum("503" in line and "once more" in line for line in lines) == 2


def test_a_server_that_stays_busy_is_left_for_the_next_address(server):
    server.script = ["503"] * 3
    assert get(server.url + "one/", server.url + "two/").read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/one/a.zip"] * 3 + ["/two/a.zip"]


def test_a_cut_connection_goes_on_where_it_ended(server):
    server.script = ["cut"]
    assert get(server.url).read_bytes() == CONTENT
    assert [r for _, r in server.asked] == [None, f"bytes={len(CONTENT) // 2}-"]


def test_a_later_call_goes_on_with_what_an_earlier_one_left(server, folder):
    (folder / "a.zip.part").write_bytes(CONTENT[:1234])
    assert get(server.url).read_bytes() == CONTENT
    assert [r for _, r in server.asked] == ["bytes=1234-"]


def test_a_server_without_ranges_sends_the_whole_again(server, folder):
    (folder / "a.zip.part").write_bytes(CONTENT[:1234])
    server.script = ["whole"]
    assert get(server.url).read_bytes() == CONTENT


def test_a_complete_part_needs_nothing_more(server, folder):
    (folder / "a.zip.part").write_bytes(CONTENT)
    assert get(server.url).read_bytes() == CONTENT


def test_a_part_of_another_file_is_dropped_and_the_file_begun_anew(server, folder):
    (folder / "a.zip.part").write_bytes(b"other" * 100)
    assert get(server.url).read_bytes() == CONTENT
    assert [r for _, r in server.asked] == ["bytes=500-", None]


def test_a_wrong_file_is_not_kept_and_both_sums_are_named(server, folder):
    server.script = ["other"]
    with pytest.raises(UserError) as e:
        get(server.url)
    text = str(e.value)
    assert md5(bytes(len(CONTENT))) in text and md5(CONTENT) in text and "\n" not in text
    assert not list(folder.glob("a.zip*"))


def test_after_a_wrong_file_the_next_address_may_have_the_right_one(server):
    server.script = ["other"]
    assert get(server.url, server.url).read_bytes() == CONTENT


def test_a_partial_file_never_counts_as_whole(server, folder):
    server.script = ["cut"] * 3
    with pytest.raises(UserError, match=r"a.zip cannot be downloaded \(.*ended after .* 3 times\)"):
        get(server.url)
    assert not (folder / "a.zip").exists()
    assert (folder / "a.zip.part").read_bytes() == CONTENT[: len((folder / "a.zip.part").read_bytes())]


def test_a_trickle_is_given_up(server, folder):
    server.script = ["trickle"] * 2
    lines: list[str] = []
    assert get(server.url, lines=lines).read_bytes() == CONTENT
    assert any("bytes in 0.3 s" in line for line in lines)


def test_a_silent_server_is_given_up(server):
    patience = Patience(tries=2, backoff=0.01, timeout=0.01, window=5, least=1)
    server.script = ["trickle"] * 2
    with pytest.raises(UserError, match="timed out"):
        get(server.url, patience=patience)


def test_a_closed_network_tells_what_to_do_by_hand(folder):
    url = closed_port()
    with pytest.raises(UserError) as e:
        get(url)
    text = str(e.value)
    assert text.startswith("datasets.x: a.zip cannot be downloaded (")
    assert f"get {url}a.zip by hand and put it into {folder}, or name it in datasets.x.path" in text
    assert "\n" not in text


def test_mirrors_of_the_environment_come_first(server, monkeypatch):
    monkeypatch.setenv(download.MIRRORS, f"{server.url}mine {server.url}other/")
    server.script = ["404"]
    get(server.url)
    assert [path for path, _ in server.asked] == ["/mine/a.zip", "/other/a.zip"]


def test_a_file_put_there_by_hand_is_verified(server, folder):
    (folder / "a.zip").write_bytes(b"not it")
    with pytest.raises(UserError, match=f"has MD5 {md5(b'not it')}, the official a.zip has {md5(CONTENT)}"):
        get(server.url)
    assert not server.asked


def _get(url: str, folder: str) -> None:
    import os

    os.environ[download.FOLDER] = folder
    get(url)


def test_processes_that_want_the_same_file_download_it_once(server, folder):
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_get, args=(server.url, str(folder))) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * 4
    assert len(server.asked) == 1


def test_a_folder_that_cannot_be_made_is_named(server, folder, monkeypatch):
    (folder / "file").write_text("")
    monkeypatch.setenv(download.FOLDER, str(folder / "file"))
    with pytest.raises(UserError, match=f"cannot be written.*{download.FOLDER}"):
        get(server.url)
