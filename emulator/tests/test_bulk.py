"""Bulk copies and reductions, bulk groups, st.async, red.async, st.bulk."""

from __future__ import annotations

import numpy
import pytest
from emulate import EmulatorError
from small_kernel import Emulator, entry, load_only, module, random_of, run
from test_tma import dump, reduced, wait

INIT = """
    setp.eq.u32 %p0, %t, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%smem], 1;
    fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
CLUSTER = """
    barrier.cluster.arrive;
    barrier.cluster.wait;
"""
SEEDS = range(6)


def fill(size: int, source: str = "%a0", start: int = 1024) -> str:
    """Copies words of global memory to shared memory, through threads."""
    return f"""
    shl.b32 %r20, %t, 2;
FILL:
    setp.ge.u32 %p2, %r20, {size};
    @%p2 bra FILLED;
    cvt.u64.u32 %d0, %r20;
    add.u64 %d0, {source}, %d0;
    ld.global.u32 %r1, [%d0];
    add.u32 %r2, %r20, %smem;
    st.shared.u32 [%r2 + {start}], %r1;
    add.u32 %r20, %r20, 128;
    bra FILL;
FILLED:
    fence.proxy.async.shared::cta;
    bar.sync 0;
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("space", ["shared::cta", "shared::cluster"])
def test_load(seed: int, space: str) -> None:
    random = random_of(f"bulk load {seed}")
    size = 16 * int(random.integers(1, 200))
    data = random.integers(0, 256, size, dtype=numpy.uint8)
    policy = random.choice(["", ".L2::cache_hint"])
    body = f"""{INIT}
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {size};
    mov.b64 %d1, 0x1000000000000000;
    cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes{policy} [%smem + 1024], [%a0], {size}, [%smem]
        {", %d1" if policy else ""};
{wait()}{dump(1024, size)}"""
    _, out = run(body, [data, numpy.zeros(size, numpy.uint8)], device="sm_90", seed=seed, shared=1024 + size)
    numpy.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("seed", SEEDS)
def test_multicast(seed: int) -> None:
    random = random_of(f"bulk multicast {seed}")
    data = random.integers(0, 128, 2048, dtype=numpy.uint8)
    mask = int(random.integers(1, 16))
    body = f"""{INIT}
    mov.u32 %r5, %cluster_ctarank;
    shr.b32 %r6, {mask}, %r5;
    and.b32 %r6, %r6, 1;
    mul.lo.u32 %r6, %r6, 2048;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], %r6;
{CLUSTER}
    mov.b16 %h0, {mask};
    setp.eq.and.u32 %p3, %r5, 2, %p0;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%smem + 1024], [%a0], 2048, [%smem], %h0;
{wait()}{CLUSTER}
    mul.wide.u32 %d21, %r5, 2048;
    add.u64 %d21, %a1, %d21;
{dump(1024, 2048, "%d21")}"""
    out = run(body, [data, numpy.zeros(8192, numpy.uint8)], device="sm_90", seed=seed, shared=3072, grid=4, cluster=4)[
        1
    ].reshape(4, 2048)
    for rank in range(4):
        assert (out[rank] == (data if mask >> rank & 1 else 0xFF)).all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("masked", [False, True])
def test_store(seed: int, masked: bool) -> None:
    random = random_of(f"bulk store {seed} {masked}")
    size = 16 * int(random.integers(1, 100))
    data, old = (random.integers(0, 256, size, dtype=numpy.uint8) for _ in range(2))
    mask = int(random.integers(0, 1 << 16))
    body = f"""{fill(size)}
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    mov.u16 %h0, {mask};
    cp.async.bulk.global.shared::cta.bulk_group{".cp_mask" if masked else ""} [%a1], [%smem + 1024], {size}
        {", %h0" if masked else ""};
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:"""
    _, out = run(body, [data, old], seed=seed, shared=1024 + size + 128)
    kept = numpy.array([mask >> i % 16 & 1 for i in range(size)]) == 0 if masked else numpy.zeros(size, bool)
    numpy.testing.assert_array_equal(out, numpy.where(kept, old, data))


@pytest.mark.parametrize("seed", range(8))
def test_groups(seed: int) -> None:
    """wait_group.read 1 lets the newest of two groups go on: the first one's source may be overwritten, and its
    destination is there after wait_group."""
    random = random_of(f"groups {seed}")
    data = random.integers(0, 128, 1024, dtype=numpy.uint8)
    body = f"""{fill(1024)}
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    add.u64 %d1, %a1, 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%a1], [%smem + 1024], 256;
    cp.async.bulk.global.shared::cta.bulk_group [%a1 + 256], [%smem + 1280], 256;
    cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%d1], [%smem + 1536], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 1;
    mov.u32 %r3, 0;
OVER:
    add.u32 %r4, %r3, %smem;
    st.shared.u32 [%r4 + 1024], 0;
    add.u32 %r3, %r3, 4;
    setp.lt.u32 %p3, %r3, 512;
    @%p3 bra OVER;
    fence.proxy.async.shared::cta;
    cp.async.bulk.wait_group 1;
    ld.global.u32 %r5, [%a1];
    st.global.u32 [%a2], %r5;
    cp.async.bulk.wait_group.read 0;
DONE:"""
    _, out, first = run(
        body,
        [data, numpy.zeros(1024, numpy.uint8), numpy.zeros(1, numpy.uint32)],
        device="sm_90",
        seed=seed,
        shared=2048,
    )
    numpy.testing.assert_array_equal(out, data)
    assert first[0] == data.view(numpy.uint32)[0]


def test_a_missing_read_wait_shows() -> None:
    data = numpy.arange(1024, dtype=numpy.uint8)
    body = f"""{fill(1024)}
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    cp.async.bulk.global.shared::cta.bulk_group [%a1], [%smem + 1024], 1024;
    cp.async.bulk.commit_group;
    st.shared.u32 [%smem + 1024], 0x7f7f7f7f;
    fence.proxy.async.shared::cta;
    cp.async.bulk.wait_group 0;
DONE:"""
    outs = [
        run(body, [data, numpy.zeros(1024, numpy.uint8)], device="sm_90", seed=seed, shared=2048)[1]
        for seed in range(12)
    ]
    assert any((out != data).any() for out in outs)


REDUCTIONS = [
    ("add", "u32", "u4"), ("add", "s32", "i4"), ("add", "u64", "u8"), ("add", "f32", "f4"), ("add", "f64", "f8"),
    ("add.noftz", "f16", "f2"), ("min", "s64", "i8"), ("max", "u32", "u4"), ("min", "f16", "f2"), ("inc", "u32", "u4"),
    ("dec", "u32", "u4"), ("and", "b64", "u8"), ("or", "b32", "u4"), ("xor", "b32", "u4"),
]  # fmt: skip


def draw(random: numpy.random.Generator, count: int, dtype: str) -> numpy.ndarray:
    if dtype[0] == "f":
        return random.standard_normal(count).astype(dtype)
    return numpy.where(
        random.integers(0, 2, count), random.integers(0, 6, count), random.integers(0, 1 << 62, count)
    ).astype(dtype)


@pytest.mark.parametrize(("operation", "kind", "dtype"), REDUCTIONS)
def test_reduce_to_global(operation: str, kind: str, dtype: str) -> None:
    random = random_of(f"bulk reduce {operation} {kind}")
    count = 512 // numpy.dtype(dtype).itemsize
    new, old = draw(random, count, dtype), draw(random, count, dtype)
    body = f"""{fill(512)}
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}.{kind} [%a1], [%smem + 1024], 512;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:"""
    _, out = run(body, [new, old], device="sm_90", seed=int(random.integers(100)), shared=2048)
    numpy.testing.assert_array_equal(out, reduced(operation[:3] if "." in operation else operation, old, new))


@pytest.mark.parametrize(
    ("operation", "kind", "dtype"),
    [("", "", "u4"), ("add", "u64", "u8"), ("min", "s32", "i4"), ("inc", "u32", "u4"), ("xor", "b32", "u4")],
)
@pytest.mark.parametrize("seed", range(4))
def test_to_another_cta(operation: str, kind: str, dtype: str, seed: int) -> None:
    """CTA 0 copies (or reduces) its shared memory into that of CTA 1, whose mbarrier is told."""
    random = random_of(f"bulk cluster {operation} {seed}")
    count = 512 // numpy.dtype(dtype).itemsize
    new, old = draw(random, count, dtype), draw(random, count, dtype)
    opcode = "cp.reduce.async" if operation else "cp.async"
    suffix = f".{operation}.{kind}" if operation else ""
    body = f"""
    mov.u32 %r5, %cluster_ctarank;
    setp.eq.u32 %p5, %r5, 0;
    selp.b64 %d5, %a0, %a1, %p5;
{INIT}{fill(512, "%d5")}
    not.pred %p7, %p5;
    and.pred %p7, %p7, %p0;
    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 512;
{CLUSTER}
    mapa.shared::cluster.u32 %r6, %smem, 1;
    add.u32 %r7, %r6, 1024;
    and.pred %p6, %p0, %p5;
    @%p6 {opcode}.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{suffix}
        [%r7], [%smem + 1024], 512, [%r6];
    @%p5 bra DONE;
{wait()}{dump(1024, 512, "%a2")}
DONE:{CLUSTER}"""
    out = run(body, [new, old, numpy.zeros(count, dtype)], device="sm_90", seed=seed, shared=2048, grid=2, cluster=2)[2]
    numpy.testing.assert_array_equal(out, reduced(operation, old, new) if operation else new)


@pytest.mark.parametrize("seed", range(4))
def test_async_stores(seed: int) -> None:
    """Every thread of CTA 0 stores vectors into CTA 1 and reduces into a word there; the mbarrier counts the bytes."""
    random = random_of(f"st.async {seed}")
    data = random.integers(0, 2**31, 32 * 4, dtype=numpy.uint32)
    body = f"""{INIT}
    mov.u32 %r5, %cluster_ctarank;
    setp.eq.u32 %p5, %r5, 1;
    and.pred %p6, %p0, %p5;
    @%p6 st.shared.u32 [%smem + 16], 7;
    @%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], {32 * (16 + 8 + 4)};
{CLUSTER}
    @%p5 bra READ;
    mapa.shared::cluster.u32 %r6, %smem, 1;
    shl.b32 %r7, %t, 4;
    add.u32 %r8, %r6, %r7;
    mul.wide.u32 %d0, %t, 16;
    add.u64 %d0, %a0, %d0;
    ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d0];
    mov.b64 %d1, {{%r10, %r11}};
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r8 + 1024], {{%r10, %r11, %r12, %r13}}, [%r6];
    mad.lo.u32 %r9, %t, 8, %r6;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%r9 + 1536], %d1, [%r6];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r6 + 16], %t, [%r6];
    bra DONE;
READ:
{wait()}
    ld.shared.u32 %r14, [%smem + 16];
    st.global.u32 [%a2], %r14;
{dump(1024, 768)}
DONE:{CLUSTER}"""
    _, out, total = run(
        body,
        [data, numpy.zeros(192, numpy.uint32), numpy.zeros(1, numpy.uint32)],
        device="sm_90",
        seed=seed,
        shared=2048,
        grid=2,
        cluster=2,
    )
    numpy.testing.assert_array_equal(out[:128], data)
    numpy.testing.assert_array_equal(out[128:], data.reshape(32, 4)[:, :2].reshape(-1))
    assert total[0] == 7 + sum(range(32))


def test_async_release_to_global() -> None:
    body = """
    mul.wide.u32 %d0, %t, 4;
    add.u64 %d0, %a0, %d0;
    st.async.release.gpu.global.u32 [%d0], %t;
    red.async.release.gpu.global.add.u32 [%a1], %t;
    """
    out, total = run(body, [numpy.zeros(32, numpy.uint32), numpy.zeros(1, numpy.uint32)], seed=1)
    numpy.testing.assert_array_equal(out, numpy.arange(32))
    assert total[0] == sum(range(32))


@pytest.mark.parametrize("size", [8, 4096, 1528])
def test_st_bulk(size: int) -> None:
    body = f"""
    setp.eq.u32 %p0, %t, 0;
    mov.b64 %d1, {size};
    @%p0 st.bulk.weak.shared::cta [%smem + 1024], %d1, 0;
    bar.sync 0;
{dump(1024, 4104, "%a0")}"""
    (out,) = run(body, [numpy.zeros(4104, numpy.uint8)], shared=1024 + 4104)
    numpy.testing.assert_array_equal(out, numpy.where(numpy.arange(4104) < size, 0, 255))


ONE = INIT + "    @!%p0 bra DONE;\n"
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
FAULTS = {
    "size": (f"{LOAD} [%smem + 1024], [%a0], 24, [%smem];", "multiple of 16"),
    "source unaligned": (f"{LOAD} [%smem + 1024], [%a0 + 8], 16, [%smem];", "must be a multiple of 16"),
    "destination unaligned": (f"{LOAD} [%smem + 1032], [%a0], 16, [%smem];", "must be a multiple of 16"),
    "source too short": (f"{LOAD} [%smem + 1024], [%a0], 2048, [%smem];", "the source has 2048 bytes"),
    "destination outside": (f"{LOAD} [%smem + 4096], [%a0], 16, [%smem];", "outside of the shared memory"),
    "no barrier": (f"{LOAD} [%smem + 1024], [%a0], 16, [%smem + 8];", "no mbarrier"),
    "over the barrier": (
        f"mbarrier.expect_tx.shared::cta.b64 [%smem], 16; {LOAD} [%smem], [%a0], 16, [%smem];",
        "an mbarrier is in use",
    ),
    "too many bytes": (
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 48;"
        f"{LOAD} [%smem + 1024], [%a0], 64, [%smem]; W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%smem], 0;"
        "@!%p1 bra W; X: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%smem], 1; @!%p1 bra X;",
        "deadlock",
    ),
    "st.async without a cluster": (
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%smem + 1024], %t, [%smem];",
        "only in a cluster",
    ),
    "the CTA's own": (
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%smem + 1024], [%smem + 2048], 16, [%smem];",
        "must be in another CTA",
    ),
    "exit with a load under way": (f"{LOAD} [%smem + 1024], [%a0], 64, [%smem];", "exited while 1 asynchronous"),
    "st.bulk": ("mov.b64 %d1, 12; st.bulk.shared::cta [%smem + 1024], %d1, 0;", "multiple of 8"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str) -> None:
    body, message = FAULTS[name]
    with pytest.raises(EmulatorError, match=message):
        run(ONE + body + "\nDONE:", [numpy.zeros(64, numpy.uint8)], seed=1)


@pytest.mark.parametrize(
    "body",
    [
        f"{LOAD.replace('shared::cta', 'shared')}.fast [%smem], [%a0], 16, [%smem];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%a0], [%smem], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%a0], [%smem], 16;",
        "cp.async.bulk.wait_group %r0;",
        "st.bulk.shared::cta [%smem], 16, 1;",
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.f32 [%smem], %r0, [%smem];",
    ],
)
def test_rejected(body: str) -> None:
    with pytest.raises(EmulatorError):
        load_only(body)


# ---- clusters -------------------------------------------------------------------------------------------------------


def test_mapa() -> None:
    body = """
    mov.u32 %r0, %cluster_ctarank;
    setp.ne.u32 %p0, %t, 0;
    @%p0 bra DONE;
    mov.u32 %r1, 0;
    mul.wide.u32 %d9, %r0, 64;
    add.u64 %d9, %a0, %d9;
    cvt.u64.u32 %d0, %smem;
    cvta.shared.u64 %d1, %d0;
LOOP:
    mapa.shared::cluster.u32 %r2, %smem, %r1;
    mapa.u64 %d2, %d1, %r1;
    cvt.u32.u64 %r3, %d2;
    xor.b32 %r3, %r3, %r2;
    getctarank.shared::cluster.u32 %r4, %r2;
    getctarank.u64 %r5, %d2;
    st.global.v4.u32 [%d9], {%r2, %r3, %r4, %r5};
    add.u64 %d9, %d9, 16;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 4;
    @%p1 bra LOOP;
DONE:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    """
    out = run(body, [numpy.zeros(64, numpy.uint32)], device="sm_90", grid=4, cluster=4)[0].reshape(4, 4, 4)
    offset = out[0, 0, 0] & 0xFFFFFF
    for of in range(4):
        for rank in range(4):
            assert out[of, rank].tolist() == [rank << 24 | int(offset), 0, rank, rank]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cluster", [1, 2])
def test_cancelled_clusters(seed: int, cluster: int) -> None:
    """A persistent kernel takes over clusters that have not started: every one is worked on exactly once."""
    multicast = ".multicast::cluster::all" if cluster > 1 else ""
    body = f"""{INIT}
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ctaid.y;
    mov.u32 %r9, %cluster_ctarank;
    mov.u32 %r2, 0;      // parity
{CLUSTER}
AGAIN:
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 16;
    setp.eq.u32 %p3, %r9, 0;
    @%p3 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128
        [%smem + 16], [%smem];
    mad.lo.u32 %r3, %r1, 8, %r0;
    mul.wide.u32 %d0, %r3, 4;
    add.u64 %d0, %a0, %d0;
    atom.global.add.u32 %r4, [%d0], 1;
{wait("%r2")}
    ld.shared.b128 %q0, [%smem + 16];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q0;
    @!%p4 bra DONE;
    clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r0, %r1, _, _}}, %q0;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r5, %q0;
    add.u32 %r0, %r0, %r9;
    add.u32 %r0, %r0, %r5;
    xor.b32 %r2, %r2, 1;
    fence.proxy.async.shared::cta;
{CLUSTER}
    bra AGAIN;
DONE:{CLUSTER}"""
    (out,) = run(body, [numpy.zeros(40, numpy.uint32)], seed=seed, grid=(8, 5), cluster=cluster)
    assert (out == 1).all()


def test_query_of_a_failed_request() -> None:
    body = f"""{INIT}
    @!%p0 bra DONE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%smem + 16], [%smem];
{wait()}
    ld.shared.b128 %q0, [%smem + 16];
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, %q0;
DONE:"""
    with pytest.raises(EmulatorError, match="none was cancelled"):
        run(body, [])


def test_mapa_outside_of_the_cluster() -> None:
    with pytest.raises(EmulatorError, match="CTA 4 of a cluster of 2"):
        body = "mapa.shared::cluster.u32 %r0, %smem, 4; ld.shared::cluster.u32 %r1, [%r0];"
        run(body, [], device="sm_90", grid=2, cluster=2)


def test_trace_of_operations(tmp_path) -> None:
    """A load shows up in the timeline with its bytes."""
    path = tmp_path / "trace.json"
    emulator = Emulator("sm_90", 3, trace=str(path))
    body = f"""{INIT}
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem], 64;
    {LOAD} [%smem + 1024], [%a0], 64, [%smem];
{wait()}"""
    kernel = emulator.load(module(entry(body), "sm_90"))["run"]
    emulator.launch(kernel, args=[emulator.array(numpy.zeros(64, numpy.uint8)), 0, 0, 0, 0, 0], shared=2048)
    assert '"bulk load"' in path.read_text() and '"bytes": 64' in path.read_text()
