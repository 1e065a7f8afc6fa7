"""Images of modules: PTX text, containers and wrappers, compressed or not, of one target or several."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from scalar import EmulatorError
from small_kernel import Emulator, random_of

ARCH_SPECIFIC, FAMILY, LZ4, ZSTD = 0x100000, 0x200000, 0x2000, 0x8000


def ptx(number: int, target: str = "sm_80") -> bytes:
    return f"""\n\n.version 9.0\n.target {target}\n.address_size 64
.visible .entry which(.param .u64 p) {{ .reg .b64 %d; ld.param.u64 %d, [p]; st.global.u32 [%d], {number}; ret; }}
// {"padding " * 60}\n\0""".encode()


def lz4(data: bytes) -> bytes:
    """A block with a match for each repeat of 16 bytes or more that a simple search finds."""
    out, literals, at, seen = bytearray(), bytearray(), 0, {}

    def sequence(match: int, distance: int) -> None:
        first, second = min(len(literals), 15), min(match - 4, 15) if match else 0
        out.append(first << 4 | second)
        if first == 15:
            out.extend([255] * ((len(literals) - 15) // 255) + [(len(literals) - 15) % 255])
        out.extend(literals)
        literals.clear()
        if match:
            out.extend(struct.pack("<H", distance))
            if match - 4 >= 15:
                out.extend([255] * ((match - 19) // 255) + [(match - 19) % 255])

    while at < len(data):
        key = data[at : at + 16]
        before = seen.get(key, -1)
        seen[key] = at
        length = 0
        while before >= 0 and at + length < len(data) - 12 and data[before + length] == data[at + length]:
            length += 1
        if length >= 16 and at - before < 65536:
            sequence(length, at - before)
            at += length
        else:
            literals.append(data[at])
            at += 1
    sequence(0, 0)
    return bytes(out)


def zstd(data: bytes) -> bytes:
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        pytest.skip("there is no libzstd.so.1")
    buffer = ctypes.create_string_buffer(len(data) + 1000)
    library.ZSTD_compress.restype = ctypes.c_size_t
    size = library.ZSTD_compress(buffer, len(buffer), data, len(data), 3)
    return buffer.raw[:size]


def fat_entry(text: bytes, arch: int, flags: int = 0, kind: int = 1) -> bytes:
    payload = zstd(text) if flags & ZSTD else lz4(text) if flags & LZ4 else text
    compressed = len(payload) if flags & (ZSTD | LZ4) else 0
    payload += bytes(-len(payload) % 8)
    size = len(text) if compressed else 0
    fields = (kind, 0x101, 80, len(payload), compressed, 64, 0, 9, arch, 0, 0, flags | 0x11, 0, size)
    header = struct.pack("<HHIQIIHHIIIQQQ", *fields)
    return header.ljust(80, b"\0") + payload


def container(entries: Sequence[bytes]) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def which(image: bytes | ctypes.Structure, device: str = "sm_100") -> int:
    emulator = Emulator(device)
    out = emulator.array(numpy.zeros(1, numpy.uint32))
    emulator.launch(emulator.load(bytes(image))["which"], args=[out], block=1)
    return int(out.numpy()[0])


@pytest.mark.parametrize("flags", [0, LZ4, ZSTD])
def test_compression(flags: int) -> None:
    number = int(random_of(f"compression {flags}").integers(1 << 31))
    image = container([fat_entry(ptx(number), 80, flags)])
    assert which(image) == number
    buffer = ctypes.create_string_buffer(image, len(image))
    for version in (1, 2):
        assert which(struct.pack("<IIQQ", 0x466243B1, version, ctypes.addressof(buffer), 0)) == number


@pytest.mark.parametrize(
    ("device", "best"), [("sm_80", 80), ("sm_90", 900), ("sm_100", 1000), ("sm_120", 1202)], ids=lambda v: str(v)
)
def test_the_best_target_is_taken(device: str, best: int) -> None:
    entries = [
        fat_entry(ptx(80, "sm_80"), 80),
        fat_entry(ptx(90, "sm_90"), 90, LZ4),
        fat_entry(ptx(900, "sm_90a"), 90, ARCH_SPECIFIC),
        fat_entry(ptx(1000, "sm_100a"), 100, ARCH_SPECIFIC | LZ4),
        fat_entry(ptx(1002, "sm_100f"), 100, FAMILY),
        fat_entry(ptx(1202, "sm_120f"), 120, FAMILY),
        fat_entry(ptx(100, "sm_100"), 100),
        fat_entry(b"\x7fELF" + bytes(60), int(device[3:]), ARCH_SPECIFIC, kind=2),
    ]
    order = random_of(f"order {device}").permutation(len(entries))
    assert which(container([entries[i] for i in order]), device) == best
    assert which(container(entries[:2]), "sm_120") == 90


def test_text_alone() -> None:
    assert which(ptx(5)) == 5


def test_images_without_ptx() -> None:
    cubin = fat_entry(b"\x7fELF" + bytes(60), 100, kind=2)
    for image, reason in [
        (b"\x7fELF" + bytes(60), "machine code.*compute_100"),
        (container([cubin]), "machine code only .sm_100.*code=compute_100"),
        (container([]), "-rdc"),
        (container([fat_entry(ptx(1), 120), fat_entry(ptx(1), 90, ARCH_SPECIFIC)]), "compute_120, compute_90a"),
        (container(2 * [fat_entry(ptx(1), 80)]), "several parts of PTX for compute_80"),
        (b"\x01\x02\x03\x04garbage", "neither PTX nor a fatbin"),
        (struct.pack("<IIQQ", 0x466243B1, 9, 0, 0), "version 9"),
    ]:
        with pytest.raises(EmulatorError, match=reason):
            Emulator().load(image + bytes(16))


@pytest.mark.parametrize("flags", [0, LZ4, ZSTD])
def test_damaged_containers(flags: int) -> None:
    """Every altered byte of the headers and of the payload is rejected with a message, or does no harm."""
    random = random_of(f"damaged {flags}")
    good = container([fat_entry(ptx(3), 80, flags)])
    emulator = Emulator()
    for _ in range(300):
        image = bytearray(good)
        for _ in range(int(random.integers(1, 3))):
            # not the size of all entries, which nothing bounds: the driver is not told how long an image is
            image[int(random.choice([*range(4, 8), *range(16, len(image))]))] = int(random.integers(256))
        try:
            emulator.load(bytes(image) + bytes(64))
        except EmulatorError as error:
            assert len(str(error)) > 10


@pytest.mark.skipif(not shutil.which("nvcc"), reason="nvcc is not here")
@pytest.mark.parametrize("mode", ["default", "size", "speed", "balance", "none"])
def test_what_nvcc_writes(mode: str, tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void which(int *p) { *p = __CUDA_ARCH__ + __LINE__; }\n')
    code = [f"-gencode=arch=compute_{a},code=compute_{a}" for a in ("80", "90a", "100a")]
    command = [
        "nvcc",
        "-fatbin",
        *code,
        f"-Xfatbin=-compress-mode={mode}",
        "-o",
        str(tmp_path / "k.fatbin"),
        str(source),
    ]
    subprocess.run(command, check=True)
    image = (tmp_path / "k.fatbin").read_bytes()
    assert [which(image, device) for device in ("sm_80", "sm_90", "sm_100", "sm_120")] == [801, 901, 1001, 801]
