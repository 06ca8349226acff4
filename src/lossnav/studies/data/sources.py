"""Where the data sets live on the web, and how their files become ours."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lossnav.studies.data.downloads import DataError, Source


@dataclass(frozen=True)
class Home:
    """A data set: its file here, its sources on the web, and the way from those to that.

    Args:
        file: Name of the file in ``$LOSSNAV_DATA`` and in the cache.
        shape: Shape of one image; empty for a text.
        sources: What to fetch.
        packed: From the contents fetched to the bytes of ``file``.
    """

    file: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    packed: Callable[[Mapping[str, bytes]], bytes]


_IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def _idx(name: str, content: bytes) -> NDArray[np.uint8]:
    """An array from the idx format: two zeros, type 8 for uint8, the axes, their lengths, the bytes."""
    if len(content) >= 4 and content[:3] == b"\0\0\x08":
        axes = content[3]
        start = 4 + 4 * axes
        if len(content) >= start:
            shape = struct.unpack(f">{axes}I", content[4:start])
            if len(content) - start == int(np.prod(shape, dtype=np.int64)):
                return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    raise DataError(f"{name} is not an idx file of bytes")


def _npz(**arrays: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _from_idx(contents: Mapping[str, bytes]) -> bytes:
    return _npz(**{field: _idx(name, contents[name]) for field, name in _IDX.items()})


def _from_bin(contents: Mapping[str, bytes]) -> bytes:
    """CIFAR's binary version: for each image its class, and 3072 bytes, colour by colour."""

    def part(*names: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows = np.frombuffer(b"".join(contents[name] for name in names), np.uint8)
        if len(rows) % 3073:
            raise DataError(f"{names[0]} is not of CIFAR-10's binary version")
        rows = rows.reshape(-1, 3073)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, 0].copy()

    x_train, y_train = part(*(f"data_batch_{i}.bin" for i in range(1, 6)))
    x_test, y_test = part("test_batch.bin")
    return _npz(x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def _idx_sources(bases: tuple[str, ...], digests: tuple[str, ...]) -> tuple[Source, ...]:
    return tuple(
        Source(tuple(f"{base}{name}.gz" for base in bases), {name: digest}, "gzip")
        for name, digest in zip(_IDX.values(), digests, strict=True)
    )


HOMES: dict[str, Home] = {
    "mnist": Home(
        "mnist.npz", (28, 28),
        _idx_sources(
            ("https://ossci-datasets.s3.amazonaws.com/mnist/",
             "https://storage.googleapis.com/cvdf-datasets/mnist/"),
            ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
             "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
             "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
             "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
        _from_idx,
    ),
    "fashion-mnist": Home(
        "fashion_mnist.npz", (28, 28),
        _idx_sources(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
             "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
            ("c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
             "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
             "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
             "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        ),
        _from_idx,
    ),
    "cifar10": Home(
        "cifar10.npz", (32, 32, 3),
        (Source(
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            {"data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
             "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
             "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
             "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
             "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
             "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
            "tar.gz",
        ),),
        _from_bin,
    ),
    "tinyshakespeare": Home(
        "tinyshakespeare.txt", (),
        (Source(
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
            {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
        ),),
        lambda contents: contents["input.txt"],
    ),
}  # fmt: skip
