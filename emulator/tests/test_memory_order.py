"""Memory between threads: a cluster's shared memory, flags, and the async proxy's view of writes."""

from __future__ import annotations

import numpy
import pytest
from small_kernel import EmulatorError, random_of, run


def test_shared_memory_of_a_cluster() -> None:
    """Each CTA writes into the next one's memory, by .shared::cluster and by a generic address."""
    random = random_of("cluster")
    values = random.integers(0, 2**32, (4, 32, 2), dtype=numpy.uint32)
    body = """
  mov.u32 %r0, %cluster_ctarank;
  add.u32 %r1, %r0, 1;
  and.b32 %r1, %r1, 3;
  mapa.shared::cluster.u32 %r2, %smem, %r1;
  mad.lo.u32 %r3, %r0, 32, %t;
  mul.wide.u32 %d0, %r3, 8;
  add.u64 %d1, %a1, %d0;
  ld.global.v2.u32 {%r4, %r5}, [%d1];
  mad.lo.u32 %r6, %t, 8, %r2;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  st.shared::cluster.u32 [%r6], %r4;
  mov.u64 %d2, smem;
  cvta.shared.u64 %d2, %d2;
  mapa.u64 %d2, %d2, %r1;
  mul.wide.u32 %d3, %t, 8;
  add.u64 %d2, %d2, %d3;
  st.u32 [%d2+4], %r5;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mad.lo.u32 %r6, %t, 8, %smem;
  ld.shared.v2.u32 {%r4, %r5}, [%r6];
  add.u64 %d1, %a0, %d0;
  st.global.v2.u32 [%d1], {%r4, %r5};
"""
    for seed in range(4):
        got, _ = run(body, [numpy.zeros_like(values), values], grid=4, cluster=4, seed=seed)
        numpy.testing.assert_array_equal(got, numpy.roll(values, 1, axis=0))
    unready = body.replace("barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;", "", 1)
    found = 0
    for seed in range(12):
        try:
            run(unready, [numpy.zeros_like(values), values], grid=4, cluster=4, seed=seed)
        except EmulatorError as error:
            found += "barrier.cluster is missing" in str(error)
    assert found, "a CTA writes to one that may not have started"


@pytest.mark.parametrize("order", ["volatile", "relaxed.gpu", "acquire.gpu"])
def test_a_flag_between_ctas(order: str) -> None:
    body = f"""
  mov.u32 %r0, %ctaid.x;
  setp.eq.u32 %p0, %r0, 0;
  @!%p0 bra WRITER;
SPIN:
  ld.{order}.global.u32 %r1, [%a0];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra SPIN;
  fence.acq_rel.gpu;
  ld.global.u32 %r2, [%a0+4];
  st.global.u32 [%a0+8], %r2;
  ret;
WRITER:
  mov.u32 %r3, 4711;
  st.global.u32 [%a0+4], %r3;
  fence.acq_rel.gpu;
  mov.u32 %r3, 1;
  st.release.gpu.global.u32 [%a0], %r3;
"""
    for seed in range(6):
        (got,) = run(body, [numpy.zeros(3, numpy.uint32)], grid=2, block=1, seed=seed)
        assert got[2] == 4711


COPY_OUT = """
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra DONE;
  cp.async.bulk.global.shared::cta.bulk_group [%a0], [%smem], 512;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
"""


@pytest.mark.parametrize("fence", ["writer", "reader", "none", "wrong space"])
def test_writes_of_threads_reach_the_async_proxy_by_a_fence(fence: str) -> None:
    """Threads write twice; a bulk copy by thread 0 takes what a fence has published."""
    random = random_of(f"proxy {fence}")
    values = random.integers(0, 2**31, 128, dtype=numpy.uint32)
    behind = {"writer": "fence.proxy.async.shared::cta;", "wrong space": "fence.proxy.async.global;"}.get(fence, "")
    before = "  fence.proxy.async;\n" if fence == "reader" else ""
    body = f"""
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a1, %d0;
  ld.global.u32 %r0, [%d1];
  mad.lo.u32 %r1, %t, 4, %smem;
  st.shared.u32 [%r1], 7;
  fence.proxy.async;
  st.shared.u16 [%r1], %r0;
  shr.u32 %r2, %r0, 16;
  st.shared.u16 [%r1+2], %r2;
  {behind}
  bar.sync 0;
{before}{COPY_OUT}"""
    for seed in range(4):
        got, _ = run(body, [numpy.zeros(128, numpy.uint32), values], block=128, seed=seed)
        expected = values if fence in ("writer", "reader") else numpy.full_like(values, 7)
        numpy.testing.assert_array_equal(got, expected)


def test_global_writes_reach_the_async_proxy_by_a_fence() -> None:
    """A bulk load of bytes that this grid's threads have written sees the old ones without a fence."""
    random = random_of("global proxy")
    old = random.integers(0, 2**32, 128, dtype=numpy.uint32)
    offset = 4 * random.permutation(128).astype(numpy.uint32)[:96]

    def body(fence: str) -> str:
        return f"""
  setp.ne.u32 %p0, %t, 0;
  @%p0 bra WRITE;
  mbarrier.init.shared.b64 [%smem+1024], 1;
  fence.mbarrier_init.release.cluster;
WRITE:
  bar.sync 0;
  setp.ge.u32 %p1, %t, 96;
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a2, %d0;
  @!%p1 ld.global.u32 %r0, [%d1];
  cvt.u64.u32 %d2, %r0;
  add.u64 %d2, %d2, %a1;
  @!%p1 st.global.u16 [%d2], %t;
  {fence}
  bar.sync 0;
  @%p0 bra WAIT;
  mbarrier.arrive.expect_tx.shared.b64 _, [%smem+1024], 512;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%smem], [%a1], 512, [%smem+1024];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p2, [%smem+1024], 0;
  @!%p2 bra WAIT;
  mad.lo.u32 %r2, %t, 4, %smem;
  ld.shared.u32 %r3, [%r2];
  add.u64 %d3, %a0, %d0;
  st.global.u32 [%d3], %r3;
"""

    new = old.copy()
    new.view(numpy.uint16)[offset // 2] = numpy.arange(96)
    for seed in range(4):
        for fence, expected in (("", old), ("fence.proxy.async;", new), ("fence.proxy.async.global;", new)):
            got, memory, _ = run(body(fence), [numpy.zeros(128, numpy.uint32), old, offset], block=128, seed=seed)
            numpy.testing.assert_array_equal(memory, new)
            numpy.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("cluster", "fences"), [(1, "text"), (2, "text"), (1, "hardware")])
@pytest.mark.parametrize("proxy_fence", ["writer", "reader"])
@pytest.mark.parametrize(
    ("release", "scope"),
    [
        ("", "none"),
        ("fence.acq_rel.cluster;", "cluster"),
        ("fence.acq_rel.gpu;", "gpu"),
        ("fence.sc.sys;", "gpu"),
        ("membar.gl;", "gpu"),
        ("red", "gpu"),
        ("atom", "gpu"),
        ("st", "gpu"),
        ("another thread", "gpu"),
        ("before the fence", "before"),
    ],
)
def test_other_clusters_need_a_release(release: str, scope: str, proxy_fence: str, cluster: int, fences: str) -> None:
    """CTA 1 writes, fences and raises a flag; a bulk copy of CTA 0 reads the old bytes without a release that reaches
    it. In one cluster, and on hardware, it needs none."""
    random = random_of(f"release {release} {proxy_fence} {cluster} {fences}")
    block = 32 if release == "before the fence" else 64  # a fence by one warp may release what another one has fenced
    old, new = random.integers(0, 2**32, (2, block), dtype=numpy.uint32)
    fence = "fence.proxy.async.global;"
    behind = fence if proxy_fence == "writer" else ""
    flag = {
        "red": "red.release.gpu.global.add.u32 [%a3], 1;",
        "atom": "atom.acq_rel.gpu.global.add.u32 %r2, [%a3], 1;",
        "st": "st.release.sys.global.u32 [%a3], 1;",
    }.get(release, "red.relaxed.gpu.global.add.u32 [%a3], 1;")
    by_fence = release if release.startswith(("fence", "membar")) else ""
    if release == "another thread":
        by_fence = "fence.acq_rel.gpu;"
    body = f"""
  mov.u32 %r0, %ctaid.x;
  setp.eq.u32 %p0, %r0, 0;
  setp.ne.u32 %p1, %t, 0;
  @%p0 bra READER;
  mul.wide.u32 %d0, %t, 4;
  add.u64 %d1, %a2, %d0;
  ld.global.u32 %r1, [%d1];
  add.u64 %d1, %a1, %d0;
  st.global.u32 [%d1], %r1;
  {"fence.acq_rel.gpu;" if release == "before the fence" else ""}
  {behind}
  {by_fence if release != "another thread" else ""}
  bar.sync 0;
  @%p1 bra DONE;
  {by_fence if release == "another thread" else ""}
  {flag}
  bra DONE;
READER:
  @%p1 bra DONE;
  mbarrier.init.shared.b64 [%smem+1024], 1;
  fence.mbarrier_init.release.cluster;
SPIN:
  ld.acquire.gpu.global.u32 %r1, [%a3];
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra SPIN;
  {fence if proxy_fence == "reader" else ""}
  mbarrier.arrive.expect_tx.shared.b64 _, [%smem+1024], {4 * block};
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%smem], [%a1], {4 * block}, [%smem+1024];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p2, [%smem+1024], 0;
  @!%p2 bra WAIT;
  cp.async.bulk.global.shared::cta.bulk_group [%a0], [%smem], {4 * block};
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
DONE:
"""
    # after the reader's fence a release before the writer's is enough, and the writer has none
    reaches = cluster == 2 or fences == "hardware" or scope == "gpu" or (scope == "before" and proxy_fence == "reader")
    for seed in range(4):
        arrays = [numpy.zeros(block, numpy.uint32), old, new, numpy.zeros(1, numpy.uint32)]
        got, memory, _, _ = run(body, arrays, grid=2, cluster=cluster, block=block, seed=seed, fences=fences)
        numpy.testing.assert_array_equal(memory, new)
        numpy.testing.assert_array_equal(got, new if reaches else old)
