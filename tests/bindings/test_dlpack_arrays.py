"""Arrays of other libraries than torch and NumPy, by __dlpack__: a fake one (support/fake_array_library.py), JAX and
array-api-strict where they are installed. What is asked of them, what is rejected, and results of their own type."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_array_library as library
import numpy as np
import pytest
import torch
from emulated_runs import driver
from fake_array_library import Array, Buffer, OldArray, OldBuffer
from paths import SUPPORT
from python_server import python
from small_product import K, M, N

import nvfp4
from nvfp4 import reference


@pytest.fixture
def arrays(operands: list[torch.Tensor]) -> list[np.ndarray]:
    return [x.numpy() for x in operands]


@pytest.fixture(autouse=True)
def recorded() -> Any:
    library.streams.clear()
    library.asked.clear()
    yield
    assert not library.exports  # each export was let go


def same(x: Array, y: np.ndarray) -> bool:
    assert type(x) is Array and x.memory.flags.writeable
    return (x.memory.dtype, x.memory.shape) == (y.dtype, y.shape) and x.memory.tobytes() == y.tobytes()


@pytest.mark.parametrize("kind", [Array, Buffer, OldArray, OldBuffer])
def test_every_function_takes_and_returns_them(kind: Any, arrays: list[np.ndarray], generator: torch.Generator) -> None:
    expected = nvfp4.gemm(*arrays, out_dtype="float32")
    other = [kind(x) for x in arrays]
    vector = np.float32(np.arange(N) + 1)
    assert same(nvfp4.gemm(*other, out_dtype="float32"), expected)
    assert same(nvfp4.gemm(*other, alpha=kind(vector), out_dtype="float32"), expected * vector)
    assert same(nvfp4.gemm(*other, c=kind(expected), beta=1.0, out_dtype="float32"), expected * 2)
    assert same(nvfp4.gemm(other[0], *arrays[1:], bias=kind(vector)), nvfp4.gemm(*arrays, bias=vector))
    assert type(nvfp4.gemm(arrays[0], *other[1:])) is np.ndarray  # a's library
    x = torch.randn(3, 33, 48, generator=generator).numpy()
    for layout in ("128x4", "linear"):
        data, scale = nvfp4.quantize(x, global_scale=0.5, scale_layout=layout)
        got = nvfp4.quantize(kind(x), global_scale=kind(np.float32([0.5])), scale_layout=layout)
        assert same(got[0], data) and same(got[1], scale)
        assert same(
            nvfp4.dequantize(kind(data), kind(scale), scale_layout=layout),
            nvfp4.dequantize(data, scale, scale_layout=layout),
        )
    assert same(nvfp4.amax_scale(kind(x)), nvfp4.amax_scale(x))
    rows, weight = x[0], x[1, 0]
    ends, order, g = np.int32([1, 2, 33]), np.int32(range(32, -1, -1)), np.float32([1, 2, 3])  # every block is written
    groups, others = {"ends": ends, "global_scale": g}, {"ends": kind(ends), "global_scale": kind(g)}
    for got, want in (
        (nvfp4.quantize(kind(rows), rows=kind(order), **others), nvfp4.quantize(rows, rows=order, **groups)),
        (nvfp4.gated_quantize(kind(rows), kind(rows), **others), nvfp4.gated_quantize(rows, rows, **groups)),
        ([nvfp4.amax_scale(kind(rows), by_row=True)], [nvfp4.amax_scale(rows, by_row=True)]),
        (nvfp4.silu_mul_quantize(kind(rows[:, :32])), nvfp4.silu_mul_quantize(rows[:, :32])),
        (nvfp4.rms_norm_quantize(kind(rows), kind(weight), 1e-5), nvfp4.rms_norm_quantize(rows, weight, 1e-5)),
    ):
        assert all(map(same, got, want))
    swizzled = nvfp4.swizzle(scale)
    assert same(nvfp4.swizzle(kind(scale)), swizzled)
    assert same(nvfp4.unswizzle(kind(swizzled), 33, 3), scale)
    assert set(library.streams) == {None}  # none is asked for on the CPU
    assert all(options == {} for options in library.asked)  # a copy of an input is as good


@pytest.mark.parametrize("kind", [Array, Buffer, OldArray])
def test_out_is_written_and_returned(kind: Any, arrays: list[np.ndarray]) -> None:
    expected = nvfp4.gemm(*arrays, out_dtype="float32")
    wide = np.full((M, N + 9), np.nan, np.float32)
    out = kind(wide[:, :N])
    assert nvfp4.gemm(*(Array(x) for x in arrays), out=out) is out
    assert wide[:, :N].tobytes() == expected.tobytes() and np.isnan(wide[:, N:]).all()
    assert [options.get("copy") for options in library.asked].count(False) == (kind is not OldArray)
    rows = np.arange(M * 32, dtype=np.float32).reshape(M, 32) / 8
    want = nvfp4.silu_mul_quantize(rows)
    pair = tuple(kind(np.full_like(x, 7)) for x in want)
    assert nvfp4.silu_mul_quantize(OldBuffer(rows), out=pair)[0] is pair[0]
    assert all((x.memory == y).all() for x, y in zip(pair, want))
    a, b, _, _, sfa, sfb, c = reference.generate_input(4, 4, 16, 1, 0, device="cpu")
    views = [x.view(torch.uint8).numpy() for x in (a, b, sfa, sfb)]
    written = kind(np.full((1, 4, 4), np.nan, np.float16).transpose(1, 2, 0))
    assert nvfp4.custom_kernel(*(Array(x) for x in views), written) is written
    assert (written.memory == nvfp4.custom_kernel(a, b, sfa, sfb, c).numpy()).all()


def test_what_dlpack_describes(arrays: list[np.ndarray]) -> None:
    """Byte offsets, absent strides, strides, pinned memory, e2m1 pairs, e4m3, copies that the export keeps."""
    expected = nvfp4.gemm(*arrays, out_dtype="float32")
    a, b, scale_a, scale_b = arrays
    pitched = np.full((M, 48), 0xFF, np.uint8)
    pitched[:, : K // 2] = a
    e4m3 = {"dtype": (10, 8)}
    for x in (
        Array(a, byte_offset=32),
        Array(a, no_strides=True),
        Array(pitched[:, : K // 2]),
        Array(a, (3, 0)),
        Array(a, dtype=(17, 4), lanes=2),
        Array(a, copies=True),
        Array(a, flags=library.PADDED),  # a byte is a value of 8 bits
    ):
        assert same(nvfp4.gemm(x, b, Array(scale_a, **e4m3), scale_b, out_dtype="float32"), expected)
    linear = np.ascontiguousarray(scale_a[:6])
    assert same(nvfp4.swizzle(Array(linear, **e4m3)), nvfp4.swizzle(linear))


DIMENSION = "must be 0 or more, and the array smaller than 2^60 bytes"


def errors() -> dict[str, dict[str, Any]]:
    data, out = np.zeros((M, K // 2), np.uint8), np.full((M, N), 7, np.float32)
    dtypes = "must be uint8, float4_e2m1fn_x2, float16 or bfloat16"

    class Raises(Array):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("cannot be exported")

    class NoCapsule(Array):
        def __dlpack__(self, **options: Any) -> Any:
            return 1

    class NoPair(Array):
        def __dlpack_device__(self) -> Any:
            return None

    class Typed(Array):
        dtype = "float4_e2m1fn"

    return {
        "a: dtype is DLPack's code 0 of 8 bits and 1 lanes; " + dtypes: {"a": Array(data.view(np.int8))},
        "a: dtype is DLPack's code 12 of 8 bits and 1 lanes; " + dtypes: {"a": Array(data, dtype=(12, 8))},
        "a: dtype is DLPack's code 1 of 8 bits and 4 lanes; " + dtypes: {"a": Array(data, lanes=4)},
        "a: dtype is DLPack's code 1 of 4 bits and 2 lanes; " + dtypes: {"a": Array(data, dtype=(1, 4), lanes=2)},
        "a: dtype is float4_e2m1fn; " + dtypes: {"a": Typed(data, dtype=(17, 4))},
        "a: dtype is of fewer than 8 bits and padded to a byte; " + dtypes: {
            "a": Array(data, dtype=(17, 4), lanes=2, flags=library.PADDED)
        },
        "a: is of DLPack 2.3; must be of 1.x": {"a": Array(data, major=2)},
        "a: is on a device of DLPack's type 10; must be on the CPU (1) or a CUDA device (2)": {
            "a": Array(data, (10, 0))
        },
        "a: its __dlpack__ is on device (2, 0) but its __dlpack_device__ says (1, 0)": {"a": Array(data, says=(2, 0))},
        "a: its __dlpack__ has no memory": {"a": Array(data, data=None)},
        "a: has 7 dimensions; must have 0 to 6": {"a": Array(np.zeros((1,) * 7, np.uint8))},
        "a: has -1 dimensions; must have 0 to 6": {"a": Array(data, ndim=-1)},
        "a: has -2147483648 dimensions; must have 0 to 6": {"a": Array(data, ndim=-(2**31))},
        f"a: dimension 0 is -1; {DIMENSION}": {"a": Array(data, dims=(-1, 8))},
        f"a: dimension 1 is -64; {DIMENSION}": {"a": Array(data, dims=(0, -64))},
        f"a: dimension 1 is -9223372036854775808; {DIMENSION}": {"a": Array(data, dims=(2, -(2**63)))},
        f"a: dimension 1 is 4611686018427387904; {DIMENSION}": {"a": Array(data, dims=(0, 2**62))},
        f"a: dimension 1 is 4294967296; {DIMENSION}": {"a": Array(data, dims=(2**32, 2**32))},
        "a: its __dlpack__ raised BufferError: cannot be exported": {"a": Raises(data)},
        "a: its __dlpack__ returned a int; must be a new DLPack capsule": {"a": NoCapsule(data)},
        "a: its __dlpack__ returned a PyCapsule; must be a new DLPack capsule": {
            "a": Array(data, name=b"used_dltensor")
        },
        "a: its __dlpack_device__ raised TypeError: it did not return a pair": {"a": NoPair(data)},
        "a: is of type type; must be a torch.Tensor, a numpy.ndarray or an array with __dlpack__": {"a": Array},
        "b: is on cuda:0 but a is on the CPU": {"b": Array(np.zeros((N, K // 2), np.uint8), library.CUDA)},
        "beta: is of type Array; must be a real number": {"beta": Array(np.ones(1, np.float32))},
        "alpha: dtype is float16; must be float32": {"alpha": Array(np.ones(1, np.float16))},
        "out: is read-only; must be writeable": {"out": Array(out, flags=library.READ_ONLY)},
        "out: its __dlpack__ returned a copy; must return its own memory, which is written": {
            "out": Array(out, flags=library.COPIED)
        },
        "out: is of type OldBuffer, which is immutable; must be writeable": {"out": OldBuffer(out)},
    }  # fmt: skip


@pytest.mark.parametrize(("message", "wrong"), errors().items(), ids=lambda x: x if isinstance(x, str) else "")
def test_errors(arrays: list[np.ndarray], message: str, wrong: dict[str, Any]) -> None:
    out = np.full((M, N), 7, np.float32)
    arguments = dict(zip(("a", "b", "scale_a", "scale_b"), arrays)) | {"out": Array(out)} | wrong
    with pytest.raises(nvfp4.Error) as error:
        nvfp4.gemm(**arguments)
    assert str(error.value) == message
    written = wrong["out"].memory if "out" in wrong else out
    assert (written == 7).all()


def test_torchs_dispatcher_takes_torch_alone(arrays: list[np.ndarray]) -> None:
    class Subclass(torch.Tensor):
        pass

    a, *others = map(torch.from_numpy, arrays)
    for wrong, message in (
        ({"b": Array(arrays[1])}, "b: is of type Array; must be a torch.Tensor, as other arguments are"),
        ({"alpha": Array(np.ones(N, np.float32))}, "alpha: is of type Array; must be a number or a torch.Tensor"),
    ):
        given = dict(zip(("b", "scale_a", "scale_b"), others)) | wrong
        with pytest.raises(nvfp4.Error, match=f"^{message}$"):
            nvfp4.gemm(a.as_subclass(Subclass), **given)


def test_an_interrupt_stays_one(arrays: list[np.ndarray]) -> None:
    class Interrupted(Array):
        def __dlpack__(self, **options: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nvfp4.gemm(Interrupted(arrays[0]), *arrays[1:])


def test_libraries_that_cannot_make_the_result(arrays: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    other = [Array(x) for x in arrays]
    message = "result: from_dlpack of its library, given bfloat16, raised (RuntimeError|BufferError): "
    with pytest.raises(nvfp4.Error, match=f"^{message}"):
        nvfp4.gemm(*other, out_dtype="bfloat16")
    monkeypatch.delattr(library, "from_dlpack")
    with pytest.raises(nvfp4.Error, match="^result: the library of Array has no from_dlpack to make it with$"):
        nvfp4.gemm(*other)


def test_host_results_outlive_what_made_them(arrays: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """from_dlpack may take the memory as it is or copy it, by either kind of capsule, once, twice or not at all."""
    expected = nvfp4.gemm(*arrays)
    takes: dict[str, Any] = {
        "twice": lambda x: [Array(np.from_dlpack(x)), np.from_dlpack(x)][0],
        "old": lambda x: np.from_dlpack(type("Old", (), {
            "__dlpack__": lambda self, **_: x.__dlpack__(), "__dlpack_device__": lambda self: x.__dlpack_device__(),
        })()),
        "torch": torch.from_dlpack,
    }  # fmt: skip
    for name, take in takes.items():
        monkeypatch.setattr(library, "from_dlpack", take)
        got = nvfp4.gemm(*(Array(x) for x in arrays))
        memory = got.memory if name == "twice" else got
        assert bytes(np.asarray(memory).tobytes()) == expected.tobytes(), name
    monkeypatch.setattr(library, "from_dlpack", lambda x: x.__dlpack__() and None)
    assert nvfp4.gemm(*(Array(x) for x in arrays)) is None
    monkeypatch.setattr(library, "from_dlpack", type)
    with pytest.raises(TypeError, match="cannot create 'nvfp4._C.host_result' instances"):
        nvfp4.gemm(*(Array(x) for x in arrays))()


# ---- on a GPU ----

ON_GPU = """
import fake_array_library as library, ctypes, numpy as np, nvfp4, os
from fake_array_library import CUDA, Array, OldArray
random = np.random.default_rng(0)
cpu = [random.integers(0, 256, (rows, {k} // 2), dtype=np.uint8) for rows in (3, 40)]
cpu += [random.choice(np.uint8([0x38, 0x40, 0x48]), (128, {k} // 16)) for _ in "ab"]  # 1, 2, 4: sums are exact
gpu = [kind(x, CUDA) for x, kind in zip(cpu, (Array, OldArray, Array, OldArray))]
def asked(call):
    library.streams.clear()
    result = call()
    return result, set(library.streams)
"""


def on_gpu(program: str, k: int = 64, **environment: str) -> str:
    """Returns what the program prints, on a GPU that is not torch's."""
    done = python("-c", ON_GPU.format(k=k) + program, library="numpy", env={**os.environ, **environment}, cwd=SUPPORT)
    assert done.returncode == 0, done.stderr
    return done.stdout


need_gpu_code = pytest.mark.skipif(not nvfp4.info()["archs"], reason="this build has no GPU code")


@need_gpu_code
def test_results_and_streams_on_an_emulated_gpu() -> None:
    """The producer is called with the stream that the kernel is launched on: a destroyed one cannot be."""
    program = """
cuda = ctypes.CDLL(os.environ["NVFP4_LIBCUDA"])
expected = nvfp4.gemm(*cpu, out_dtype="float32", backend="cpu")
nvfp4.init(0)
stream = ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
def computed(x):
    assert cuda.cuStreamSynchronize(stream) == 0
    return x.memory
for pointer, said in ((0, 1), (1, 1), (2, 2), (stream.value, stream.value)):
    library.current = pointer
    got, streams = asked(lambda: nvfp4.gemm(*gpu, out_dtype="float32"))
    assert streams == {said}, streams
    assert library.asked[-1] == {"copy": False}  # of the result
    assert type(got) is Array and got.device_pair == CUDA and (computed(got) == expected).all()
out = Array(np.full((3, 40), np.nan, np.float32), CUDA)
got, streams = asked(lambda: nvfp4.gemm(*gpu, out=out))
assert got is out and streams == {stream.value} and (computed(out) == expected).all()
class Other(library.Buffer): pass  # of a library without streams and empty()
other = [Other(x, CUDA) for x in cpu]
got, streams = asked(lambda: nvfp4.gemm(*other, out=out))  # that of out counts
assert streams == {stream.value}
x = np.random.default_rng(1).standard_normal((3, 64), np.float32)
(data, scale), streams = asked(lambda: nvfp4.quantize(Array(x, CUDA), scale_layout="linear"))
assert streams == {stream.value} and type(scale) is Array
want = nvfp4.quantize(x, scale_layout="linear")
assert (computed(data) == want[0]).all() and (scale.memory == want[1]).all()
assert (computed(nvfp4.dequantize(data, scale, scale_layout="linear"))
        == nvfp4.dequantize(*want, scale_layout="linear")).all()
swizzled = nvfp4.swizzle(scale)
assert (computed(swizzled) == nvfp4.swizzle(want[1])).all()
assert (computed(nvfp4.unswizzle(swizzled, 3, 4)) == want[1]).all()
print("equal")
def error(call):
    try: call()
    except nvfp4.Error as error: print(error)
error(lambda: nvfp4.gemm(*gpu, out_dtype="bfloat16"))
error(lambda: nvfp4.gemm(gpu[0], gpu[1], Array(cpu[2]), gpu[3]))
empty, library.CUDA = library.CUDA, (2, 1)
error(lambda: nvfp4.gemm(*gpu))
library.CUDA = empty
del library.empty
error(lambda: nvfp4.gemm(*gpu))
assert cuda.cuStreamDestroy_v2(stream) == 0
error(lambda: nvfp4.gemm(*gpu, out=out))
assert not library.exports
"""
    lines = on_gpu(program, EMULATE_DEVICE="sm_80", **driver()).splitlines()
    assert lines[:5] == [
        "equal",
        "result: the library of Array has no bfloat16",
        "scale_a: is on the CPU but a is on cuda:0",
        "result: its library allocated it on device 1; must be 0, that of the arguments: make that device current",
        "result: the library of Array has no empty() to make it with on a GPU",
    ]
    assert "CUDA_ERROR_INVALID_HANDLE" in lines[5] or "invalid" in lines[5], lines[5]


@need_gpu_code
def test_launches_and_workspace_are_the_librarys(tmp_path: Path) -> None:
    """A split along K makes two launches on the stream and takes a workspace from the library's allocator."""
    fake, log = tmp_path / "libcuda_fake.so", tmp_path / "log"
    source = SUPPORT / "fake_libcuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", fake, source], check=True)
    program = """
made, empty = [], library.empty
library.empty = lambda shape, dtype: made.append((shape, np.dtype(dtype).name)) or empty(shape, dtype=dtype)
library.current = 0x5000
out = Array(np.zeros((3, 40), np.float32), CUDA)
got, streams = asked(lambda: nvfp4.gemm(*gpu, out=out, backend="sm80"))
size = nvfp4.info(3, 40, 65536, device=0, backend="sm80")["plan"]["workspace"]
assert size > 0 and made == [((size,), "uint8")], made
assert streams == {0x5000} and not library.exports
"""
    on_gpu(program, k=65536, NVFP4_LIBCUDA=str(fake), FAKE_LOG=str(log), CUDA_VISIBLE_DEVICES="")
    rows = [line.split() for line in log.read_text().splitlines()]
    assert [row[0].startswith(f"nvfp4_sm80_{name}") for row, name in zip(rows, ("gemm", "split_reduce"))] == [True] * 2
    assert {int(row[4], 0) for row in rows} == {0x5000}


# ---- real libraries ----


@pytest.fixture
def jax() -> Iterator[Any]:
    """JAX on the CPU: where it has a GPU, its arrays lie there, and results for them cannot be made."""
    module = pytest.importorskip("jax")
    with module.default_device(module.devices("cpu")[0]):
        yield module


def test_jax_arrays_are_inputs(jax: Any, arrays: list[np.ndarray], generator: torch.Generator) -> None:
    jnp = jax.numpy
    other = [jnp.asarray(x) for x in arrays]
    for name in ("float16", "bfloat16", "float32"):
        got = nvfp4.gemm(*other, alpha=jnp.asarray(np.float32([2])), out_dtype=getattr(jnp, name))
        assert isinstance(got, jax.Array) and got.dtype == name
        expected = nvfp4.gemm(*map(torch.from_numpy, arrays), alpha=2, out_dtype=name).float().numpy()
        assert np.asarray(got, np.float32).tobytes() == expected.tobytes()
    x = torch.randn(3, 32, generator=generator)
    data, scale = nvfp4.quantize(jnp.asarray(x.numpy(), jnp.bfloat16), scale_layout="linear")
    want = nvfp4.quantize(x.bfloat16(), scale_layout="linear")
    assert np.asarray(data).tobytes() == want[0].numpy().tobytes()
    assert np.asarray(scale).tobytes() == want[1].view(torch.uint8).numpy().tobytes()
    assert isinstance(nvfp4.dequantize(data, scale.view(jnp.float8_e4m3fn), scale_layout="linear"), jax.Array)
    out = np.full((M, N), 7, np.float16)
    assert nvfp4.gemm(*other, out=out) is out and (out == nvfp4.gemm(*arrays)).all()
    for wrong, message in (
        ({"out": jnp.zeros((M, N))}, "out: is of type ArrayImpl, which is immutable; must be writeable"),
        ({"a": jnp.zeros((M, K // 2), jnp.float4_e2m1fn)}, "a: dtype is float4_e2m1fn; must be uint8"),
    ):
        with pytest.raises(nvfp4.Error, match=f"^{message}"):
            nvfp4.gemm(**(dict(zip(("a", "b", "scale_a", "scale_b"), other)) | wrong))
    with pytest.raises(nvfp4.Error, match="Tracer; must be"):
        jax.jit(nvfp4.quantize)(jnp.zeros((2, 16)))


def test_jax_arrays_are_waited_for(jax: Any) -> None:
    """JAX's CPU computes behind its caller's back."""
    x = jax.numpy.ones((1024, 1024))
    for _ in range(8):
        x = x @ x / 1024
    data, scale = nvfp4.quantize(x, scale_layout="linear")
    assert (np.asarray(data) == 0x77).all() and len(np.unique(np.asarray(scale))) == 1


def test_arrays_of_the_standard(arrays: list[np.ndarray]) -> None:
    xp = pytest.importorskip("array_api_strict")
    other = [xp.asarray(x) for x in arrays]
    expected = nvfp4.gemm(*arrays, out_dtype="float32")
    got = nvfp4.gemm(*other, out_dtype="float32")
    assert type(got) is type(other[0]) and np.asarray(got).tobytes() == expected.tobytes()
    out = xp.zeros((M, N), dtype=xp.float32)
    assert nvfp4.gemm(*other, out=out) is out and np.asarray(out).tobytes() == expected.tobytes()
    with pytest.raises(nvfp4.Error, match="^result: from_dlpack of its library, given float16, raised TypeError: "):
        nvfp4.gemm(*other)


def test_capsules_with_negative_dimensions_give_no_result(arrays: list[np.ndarray]) -> None:
    """A product of negative sizes was allocated as a few bytes and written past its end."""
    for dims in ((-4, -8), (-1, 32), (4, -32)):
        with pytest.raises(nvfp4.Error, match="^x: dimension . is -"):
            nvfp4.quantize(Array(np.zeros((4, 32), np.float32), dims=dims))


def test_empty_arrays_have_any_strides() -> None:
    """NumPy 2.4 gives them strides of 0."""
    for rows, columns in ((0, 32), (3, 0), (0, 0)):
        x = np.lib.stride_tricks.as_strided(np.zeros((rows, columns), np.float32), strides=(0, 0))
        for given in (x, torch.from_numpy(x), Array(x)):
            data, scale = nvfp4.quantize(given, global_scale=1.0, scale_layout="linear")
            assert shape(data) == (rows, columns // 2) and shape(scale) == (rows, columns // 16)
    a, scale = np.zeros((0, 16), np.uint8), np.zeros((0, 2), np.uint8)
    a, scale = (np.lib.stride_tricks.as_strided(t, strides=(0, 0)) for t in (a, scale))
    b, scale_b = np.zeros((4, 16), np.uint8), np.zeros((4, 2), np.uint8)
    assert nvfp4.gemm(a, b, scale, scale_b, scale_layout="linear").shape == (0, 4)


def shape(x: Any) -> tuple[int, ...]:
    return tuple(x.memory.shape if isinstance(x, Array) else x.shape)
