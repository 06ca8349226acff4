"""Data sets: found, fetched from a local server, checked, or refused in one sentence."""

import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lossnav.studies import data
from lossnav.studies.data import HOMES, MOST, DataError, fetch

RNG = np.random.default_rng(0)
SMALL = {
    "x_train": RNG.integers(0, 256, (7, 28, 28), dtype=np.uint8),
    "y_train": RNG.integers(0, 10, 7, dtype=np.uint8),
    "x_test": RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8),
    "y_test": RNG.integers(0, 10, 3, dtype=np.uint8),
}
IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def sha(content):
    return hashlib.sha256(content).hexdigest()


def idx(array):
    """The idx format, as its description has it."""
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch):
    """No data of this machine, and a cache of its own."""
    monkeypatch.delenv("LOSSNAV_DATA", raising=False)
    monkeypatch.delenv("LOSSNAV_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def server():
    """A local web server: ``files`` maps a path to its bytes, ``cut`` has those that break off."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            if self.path not in server.files:
                self.send_error(404)
                return
            content = server.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path in server.cut else content)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.cut, server.asked = {}, set(), []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def mnist(server, monkeypatch):
    """A small MNIST at the server, in the packing of the real one."""
    contents = {}
    for field, name in IDX.items():
        content = idx(SMALL[field])
        server.files[f"/{name}.gz"] = gzip.compress(content)
        contents[name] = sha(content)
    home = replace(HOMES["mnist"], urls=(f"{server.url}/{{name}}.gz",), contents=contents)
    monkeypatch.setitem(HOMES, "mnist", home)
    return server


def assert_small(found):
    for field, array in SMALL.items():
        np.testing.assert_array_equal(getattr(found, field), array)
        assert getattr(found, field).dtype == np.uint8


def test_a_folder_of_ones_own_comes_first(mnist, tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "mnist.npz", **SMALL)
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    assert data.available("mnist")
    assert_small(data.load("mnist"))
    assert data.load("mnist") is data.load("mnist")  # read once
    assert mnist.asked == []


def test_fetched_once_checked_and_kept(mnist):
    assert not data.available("mnist")
    assert_small(data.load("mnist"))
    assert len(mnist.asked) == 4
    assert data.available("mnist")
    assert [path.name for path in data.cache().iterdir()] == ["mnist.npz"]
    data._images.cache_clear()  # another process
    assert_small(data.load("mnist"))
    assert len(mnist.asked) == 4


def test_what_is_shared_cannot_be_changed(mnist):
    with pytest.raises(ValueError, match="read-only"):
        data.load("mnist").x_train[0] = 0


def test_cifar_from_its_binary_version(server, monkeypatch):
    """Label byte, then 3 x 1024 bytes, colour by colour: compared pixel by pixel."""
    images = RNG.integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    labels = RNG.integers(0, 10, 12, dtype=np.uint8)
    contents, packed = {}, io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for part in range(6):
            name = f"data_batch_{part + 1}.bin" if part < 5 else "test_batch.bin"
            content = b""
            for i in (2 * part, 2 * part + 1):
                content += bytes([labels[i]])
                content += b"".join(images[i, :, :, colour].tobytes() for colour in range(3))
            contents[name] = sha(content)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    server.files["/c.tar.gz"] = packed.getvalue()
    home = replace(HOMES["cifar10"], urls=(f"{server.url}/c.tar.gz",), contents=contents)
    monkeypatch.setitem(HOMES, "cifar10", home)
    found = data.load("cifar10")
    np.testing.assert_array_equal(found.x_train, images[:10])
    np.testing.assert_array_equal(found.y_train, labels[:10])
    np.testing.assert_array_equal(found.x_test, images[10:])
    np.testing.assert_array_equal(found.y_test, labels[10:])


def test_source_code_is_a_text_that_every_machine_has(monkeypatch, tmp_path):
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    text = data.load_text("python")
    assert data.available("python")
    assert len(text) == 2**20
    assert text.isascii()
    assert all("def " in text[i : i + 2**16] for i in range(0, 2**20, 2**16))  # code throughout


def test_a_text(server, monkeypatch):
    server.files["/input.txt"] = b"to be, or not to be"
    contents = {"input.txt": sha(b"to be, or not to be")}
    home = HOMES["tinyshakespeare"]
    home = replace(home, urls=(f"{server.url}/input.txt",), contents=contents)
    monkeypatch.setitem(HOMES, "tinyshakespeare", home)
    assert data.load_text() == "to be, or not to be"


def refusal(name="mnist"):
    """The refusal names what was looked for, where, and what to do; and nothing is left behind."""
    with pytest.raises(DataError) as caught:
        data.load(name)
    message = str(caught.value)
    assert "\n" not in message
    assert HOMES[name].file in message
    assert "LOSSNAV_DATA" in message
    assert str(data.cache()) in message
    assert "'digits'" in message
    assert not data.cache().exists() or not any(data.cache().iterdir())
    return message


def test_a_wrong_checksum(mnist):
    mnist.files["/t10k-labels-idx1-ubyte.gz"] = gzip.compress(idx(SMALL["y_test"] // 2))
    message = refusal()
    assert "t10k-labels-idx1-ubyte that is not the published one" in message
    assert sha(idx(SMALL["y_test"]))[:12] in message


def test_a_connection_that_breaks_off(mnist):
    mnist.cut.add("/t10k-images-idx3-ubyte.gz")
    assert "broke off after" in refusal()


def test_a_truncated_archive(mnist):
    whole = mnist.files["/t10k-images-idx3-ubyte.gz"]
    mnist.files["/t10k-images-idx3-ubyte.gz"] = whole[: len(whole) // 2]
    assert "end-of-stream marker" in refusal()


def test_something_else_in_its_place(mnist):
    mnist.files["/t10k-images-idx3-ubyte.gz"] = b"<html>Please sign in</html>"
    assert "t10k-images-idx3-ubyte.gz failed (Not a gzipped file" in refusal()


def test_not_there(mnist):
    del mnist.files["/train-labels-idx1-ubyte.gz"]
    assert "train-labels-idx1-ubyte.gz failed (HTTP 404 Not Found)" in refusal()


def test_no_network(mnist):
    mnist.shutdown()
    mnist.server_close()
    assert "refused" in refusal()


def test_offline(mnist, monkeypatch):
    monkeypatch.setenv("LOSSNAV_OFFLINE", "1")
    assert "LOSSNAV_OFFLINE is set" in refusal()
    assert mnist.asked == []
    monkeypatch.setenv("LOSSNAV_OFFLINE", "0")
    assert_small(data.load("mnist"))


def test_the_next_address_is_tried(mnist, monkeypatch):
    (url,) = HOMES["mnist"].urls
    monkeypatch.setitem(HOMES, "mnist", replace(HOMES["mnist"], urls=(url + ".gone", url)))
    assert_small(data.load("mnist"))


def test_a_cache_that_cannot_be_written(mnist, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot be written .*Set LOSSNAV_DATA"):
        data.load("mnist")


def test_a_disk_that_fills_up(mnist, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refusal()


def test_too_large(server, monkeypatch):
    monkeypatch.setattr("lossnav.studies.data.MOST", 1000)
    for name, content in (("big", b"a" * 1001), ("bomb.gz", gzip.compress(b"a" * 1001))):
        server.files[f"/{name}"] = content
        contents = {"a": sha(b"a" * 1001)}
        home = replace(HOMES["mnist"], urls=(f"{server.url}/{name}",), contents=contents)
        with pytest.raises(DataError, match="1,000 bytes that are allowed"):
            fetch(home)
    assert MOST > 200_000_000  # CIFAR-10 fits


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"not an archive", "cannot be read"),
        ({k: v for k, v in SMALL.items() if k != "y_test"}, "y_test is not a file in the archive"),
        ({**SMALL, "x_test": SMALL["x_test"][:, :20]}, r"shape \(3, 20, 28\)"),
        ({**SMALL, "y_train": SMALL["y_train"][:5]}, r"y_train \(5,\)"),
        ({**SMALL, "x_train": SMALL["x_train"] / 255}, "must be uint8"),
        ({**SMALL, "y_test": SMALL["y_test"] + np.uint8(10)}, "classes go from 0 to 9"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(tmp_path, monkeypatch, content, reason):
    path = tmp_path / "mnist.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    with pytest.raises(DataError, match=reason) as caught:
        data.load("mnist")
    assert str(path) in str(caught.value)


def test_a_truncated_file(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "mnist.npz", **SMALL)
    content = (tmp_path / "mnist.npz").read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 4] ^= 0xFF
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    for bad in (content[: len(content) // 2], bytes(damaged)):
        (tmp_path / "mnist.npz").write_bytes(bad)
        with pytest.raises(DataError, match="cannot be read as the data set 'mnist'"):
            data.load("mnist")


def test_a_substitute_is_named():
    assert data.substitute("digits") == ("digits", "")
    name, sentence = data.substitute("fashion-mnist")
    assert name == "digits"
    assert "'fashion-mnist' is not on this machine" in sentence
    assert "digits are used instead" in sentence


def test_digits_are_mixed():
    """Every class in both parts, all 1,797 images, and each pixel from 0 to 16."""
    from sklearn.datasets import load_digits

    found = data.load("digits")
    assert np.bincount(found.y_test).min() > 25
    everything = np.concatenate([found.x_train, found.x_test]).reshape(-1, 64)
    theirs = load_digits().data
    assert sorted(map(bytes, everything)) == sorted(map(bytes, theirs.astype(np.uint8)))


REAL = os.environ.get("LOSSNAV_DATA", "")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "tinyshakespeare"])
def test_digests_are_of_the_real_files(name, monkeypatch):
    """Rebuild the published files from what is in LOSSNAV_DATA, where there is any."""
    home = HOMES[name]
    digests = home.contents
    assert all(len(digest) == 64 for digest in digests.values())
    if not (Path(REAL) / home.file).is_file() or not REAL:
        pytest.skip(f"{home.file} is not in LOSSNAV_DATA")
    monkeypatch.setenv("LOSSNAV_DATA", REAL)
    if name == "tinyshakespeare":
        assert digests == {"input.txt": sha(data.load_text().encode())}
        return
    found = data.load(name)
    if name != "cifar10":
        assert digests == {IDX[field]: sha(idx(getattr(found, field))) for field in IDX}
        return
    rows = [
        np.hstack([y[:, None], x.transpose(0, 3, 1, 2).reshape(len(x), -1)])
        for x, y in ((found.x_test, found.y_test), (found.x_train[:10000], found.y_train[:10000]))
    ]
    assert digests["test_batch.bin"] == sha(rows[0].tobytes())
    assert digests["data_batch_1.bin"] == sha(rows[1].tobytes())
