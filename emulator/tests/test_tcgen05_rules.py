"""tcgen05.mma, cp, shift and commit: results of programs that do not wait, and messages for wrong ones."""

from __future__ import annotations

import re

import numpy
import pytest
from tensor_core import (
    A_AT,
    B_AT,
    COMMIT,
    FORMATS,
    IMAGE,
    LANES,
    SFA_COLUMN,
    SFB_COLUMN,
    TENSOR_COLUMNS,
    EmulatorError,
    descriptor,
    place_k_major,
    random_of,
    row_bytes,
    run_tensor_core,
)

# ---- time ------------------------------------------------------------------------------------------------------------


def bf16_operands(random: numpy.random.Generator) -> tuple[numpy.ndarray, numpy.ndarray, str]:
    """Shared memory, the product, and PTX for a 128 x 64 x 16 product of bf16 to column 0."""
    (a_codes, a), (b_codes, b) = (FORMATS["bf16"].draw(random, (rows, 16)) for rows in (128, 64))
    shared = numpy.zeros(IMAGE, numpy.uint8)
    place_k_major(shared, A_AT, row_bytes(a_codes, "bf16"), "128", 16, 1024)
    place_k_major(shared, B_AT, row_bytes(b_codes, "bf16"), "128", 16, 1024)
    body = descriptor("%d0", 0x4000404000010000, A_AT) + descriptor("%d1", 0x4000404002000000, B_AT)
    body += """
  mov.u32 %t1, 0x08100490;
  setp.ne.u32 %q, %thread, %thread;
  tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %t1, %q;
"""
    return shared, (a @ b.T).astype(numpy.float32).view(numpy.uint32), body


OVERWRITE = """
  mov.u32 %i, 0;
overwrite:
  add.u32 %at, %data, %i;
  st.shared.u32 [%at], 0x3f803f80;
  add.u32 %i, %i, 4;
  setp.lt.u32 %p, %i, 16384;
  @%p bra overwrite;
  fence.proxy.async.shared::cta;
"""


def test_operands_must_stay_until_the_commit() -> None:
    random = random_of("overwritten")
    shared, product, body = bf16_operands(random)
    image, outcomes = numpy.zeros((LANES, 64), numpy.uint32), set()
    for seed in range(12):
        early = run_tensor_core(body + OVERWRITE, shared, image, seed=seed)[0]
        outcomes.add(bool((early == product).all()))
        in_time = run_tensor_core(body, shared, image, seed=seed, warps="")[0]
        numpy.testing.assert_array_equal(in_time, product)
    assert outcomes == {False, True}


def outcome(*arguments, **settings) -> numpy.ndarray | None:
    """None: it was reported."""
    try:
        return run_tensor_core(*arguments, **settings)[0]
    except EmulatorError:
        return None


def test_d_must_not_be_read_before_the_commit_arrives() -> None:
    random = random_of("read early")
    shared, product, body = bf16_operands(random)
    image, wrong = numpy.zeros((LANES, 64), numpy.uint32), 0
    for seed in range(12):
        arrive = "mbarrier.arrive.shared::cta.b64 _, [%mbar];"  # where the commit should be
        early = outcome(body, shared, image, seed=seed, commit=arrive, fences="hardware")
        wrong += early is None or not (early == product).all()
    assert wrong


def test_a_commit_waits_for_its_own_thread_only() -> None:
    random = random_of("other thread")
    shared, product, body = bf16_operands(random)
    image, wrong = numpy.zeros((LANES, 64), numpy.uint32), 0
    warps = "setp.ne.u32 %p, %thread, 1;\n@%p bra others;\n" + COMMIT[1] + "\nothers:\n"
    warps += "wait_again:\nmbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 1;\n@!%wait bra wait_again;\n"
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%mbar];"
    for seed in range(12):
        early = outcome(body, shared, image, seed=seed, commit=arrive, warps=warps, fences="hardware")
        wrong += early is None or not (early == product).all()
    assert wrong


def test_shared_memory_needs_a_proxy_fence() -> None:
    random = random_of("proxy")
    shared, product, body = bf16_operands(random)
    image = numpy.zeros((LANES, 64), numpy.uint32)
    stores = OVERWRITE.replace("fence.proxy.async.shared::cta;", "FENCE") + body
    unfenced = run_tensor_core(stores.replace("FENCE", ""), shared, image, seed=1)[0]
    fenced = run_tensor_core(stores.replace("FENCE", "fence.proxy.async.shared::cta;"), shared, image, seed=1)[0]
    numpy.testing.assert_array_equal(unfenced, product)  # the tensor core still sees what was published
    assert not (fenced == product).all()


# Every warp loads column 0; one thread then overwrites it, and all wait for its commit.
OVERWRITTEN = """
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%where];
  tcgen05.wait::ld.sync.aligned;
  {before}
  {early}
  bar.sync 1;
  setp.ne.u32 %p, %thread, 32;
  @%p bra overwritten;
  {after}
  {write}
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];
overwritten:
  mbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 1;
  @!%wait bra overwritten;
  tcgen05.fence::after_thread_sync;
"""
AFTER, BEFORE = "tcgen05.fence::after_thread_sync;", "tcgen05.fence::before_thread_sync;"
CP = "tcgen05.cp.cta_group::1.32x128b.warpx4 [%taddr], %d0;"
WRITES = {
    "mma": "",  # of bf16_operands
    "cp": descriptor("%d0", 0x0000400800000000, A_AT) + CP,
    "shift": "tcgen05.shift.cta_group::1.down [%taddr];",
}


def overwritten(write: str, seed: int, before: str = BEFORE, early: str = "", after: str = AFTER, **settings) -> None:
    shared, _, multiply = bf16_operands(random_of("overwritten in tensor memory"))
    body = OVERWRITTEN.format(before=before, early=early, after=after, write=WRITES[write] or multiply)
    run_tensor_core("", shared, numpy.zeros((LANES, 64), numpy.uint32), seed=seed, warps=body, **settings)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_behind_a_load_needs_both_fences(write: str) -> None:
    """PTX ISA 9.7.16.6.4.4, example 1."""
    found = {"before": 0, "after": 0}
    for seed in range(12):
        overwritten(write, seed)
        for missing in found:
            overwritten(write, seed, **{missing: ""}, fences="hardware")
            try:
                overwritten(write, seed, **{missing: ""})
            except EmulatorError as error:
                found[missing] += 1
                text = str(error).replace("\n", " ")
                assert re.search(
                    rf"has read in line .*tcgen05.ld.* no tcgen05.fence::{missing}_thread_sync since", text
                )
    assert found["before"] == 12 and found["after"] > 6, found


def test_a_fence_ahead_of_the_synchronisation_orders_nothing() -> None:
    found = 0
    for seed in range(20):
        try:
            overwritten("mma", seed, early=AFTER, after="")
        except EmulatorError as error:
            assert "fence::after_thread_sync" in str(error)
            found += 1
    assert found


# The accumulator of thread 32 is overwritten by another thread, once the commit has arrived.
ISSUED_BY_ANOTHER = """
  bar.sync 1;
  setp.ne.u32 %p, %thread, 32;
  @%p bra skip_issue;
  {multiply}
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];
skip_issue:
  mbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 1;
  @!%wait bra skip_issue;
  bar.sync 1;
  {after}
  {write}
  bar.sync 1;
  tcgen05.fence::after_thread_sync;
"""
ISSUED_BY_ANOTHER_WRITES = {
    "st": "tcgen05.st.sync.aligned.32x32b.x1.b32 [%where], {%thread}; tcgen05.wait::st.sync.aligned;",
    "mma": "setp.eq.u32 %p, %thread, 64;\n@%p tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %t1, %q;",
    "cp": "setp.eq.u32 %p, %thread, 64;\n@%p " + CP,
}


@pytest.mark.parametrize("write", ISSUED_BY_ANOTHER_WRITES)
def test_a_write_behind_an_mma_of_another_thread_needs_the_fence(write: str) -> None:
    """9.7.16.6.4.4, example 2. The commit is the fence on the mma's side."""
    shared, _, multiply = bf16_operands(random_of("handed over"))
    *lines, issue = multiply.strip().splitlines()
    operands = "\n".join(lines) + "\n"
    if write == "cp":
        operands, issue = operands.replace("%d0", "%d2"), issue.replace("%d0", "%d2")
        operands += descriptor("%d0", 0x0000400800000000, A_AT)
    text = ISSUED_BY_ANOTHER_WRITES[write]
    if write != "st":  # and this is waited for too
        text += (
            "\n@%p tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];\n"
            "rewritten:\nmbarrier.try_wait.parity.shared::cta.b64 %wait, [%mbar], 0;\n@!%wait bra rewritten;"
        )
    image = numpy.zeros((LANES, 64), numpy.uint32)
    for seed in range(8):
        for after, fences in ((AFTER, "text"), ("", "hardware"), ("", "text")):
            body = operands + ISSUED_BY_ANOTHER.format(multiply=issue, after=after, write=text)
            if after or fences == "hardware":
                run_tensor_core("", shared, image, seed=seed, warps=body, fences=fences)
                continue
            with pytest.raises(EmulatorError, match="written in line .*tcgen05.mma.*fence::after_thread_sync since"):
                run_tensor_core("", shared, image, seed=seed, warps=body, fences=fences)


@pytest.mark.parametrize("group", [1, 2])
def test_a_dealloc_needs_the_fences_of_those_who_used_it(group: int) -> None:
    """9.7.16.6: another CTA may own the columns next. Warps 1 to 3 have loaded them, warp 0 frees them."""
    shared, image = numpy.zeros((group, 4), numpy.uint8), numpy.zeros((group, LANES, 32), numpy.uint32)
    body = f"tcgen05.shift.cta_group::{group}.down [%taddr];"
    for seed in range(4):
        run_tensor_core(body, shared, image, group, seed=seed)
        run_tensor_core(body, shared, image, group, seed=seed, publish="", fences="hardware")
        with pytest.raises(EmulatorError) as error:
            run_tensor_core(body, shared, image, group, seed=seed, publish="")
        text = str(error.value).replace("\n", " ")
        used = r"frees column 0 of .*, which warp 1 of CTA . has read in line .*tcgen05.ld.*before_thread_sync since"
        assert re.search(used, text)


def test_pairs_commit_to_both() -> None:
    """A commit without multicast reaches one barrier only: the other CTA waits for ever."""
    random = random_of("pair")
    image = random.integers(0, 2**32, (2, LANES, 32), dtype=numpy.uint32)
    body = "tcgen05.shift.cta_group::2.down [%taddr];"
    single = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%mbar];"
    generic = (
        "cvta.shared.u64 %d9, smem;\ntcgen05.commit.cta_group::2.mbarrier::arrive::one.multicast::cluster.b64 [%d9], 3;"
    )
    run_tensor_core(body, numpy.zeros((2, 4)), image, 2, commit=generic)
    with pytest.raises(EmulatorError, match="(?i)deadlock"):
        run_tensor_core(body, numpy.zeros((2, 4)), image, 2, commit=single)


# ---- rules -----------------------------------------------------------------------------------------------------------


def product_body(kind: str, instruction: int, a: int, b: int, scaled: str = "", more: str = "", group: int = 1) -> str:
    body = descriptor("%d0", a, A_AT) + descriptor("%d1", b, B_AT) + more
    scales = f"[%taddr + {SFA_COLUMN}], [%taddr + {SFB_COLUMN}], " if scaled else ""
    return (
        body
        + f"""
  mov.u32 %t1, {instruction:#x};
  tcgen05.mma.cta_group::{group}.kind::{kind}{scaled} [%taddr], %d0, %d1, %t1, {scales}1;"""
    )


GOOD = 0x4000404000010000
DENSE = product_body("f16", 0x08200490, GOOD, GOOD)
MXF4NVF4 = ("mxf4nvf4", 0x08200480, GOOD, GOOD, ".block_scale.block16")


def fails(message: str, *arguments, group: int = 1, columns: int = TENSOR_COLUMNS, **settings) -> None:
    body = arguments[0] if len(arguments) == 1 else product_body(*arguments, group=group)
    shared, image = numpy.zeros((group, IMAGE), numpy.uint8), numpy.zeros((group, LANES, columns), numpy.uint32)
    with pytest.raises(EmulatorError, match=message):
        run_tensor_core(body, shared, image, group, **settings)


@pytest.mark.parametrize("kind, bits, message", [
    ("f16", 0x08200490 | 1 << 2, r"sparsity \(bits 2-2\) is 1"),
    ("f16", 0x08200490 | 1 << 3, r"saturation, for integers, \(bits 3-3\) is 1"),
    ("f16", 0x08200490 | 2 << 4, r"type of D \(bits 4-5\) is 3"),
    ("f16", 0x08200490 & ~0x10, r"type of D \(bits 4-5\) is 0.*bf16"),
    ("f16", 0x08200490 | 1 << 6, r"reserved bit \(bits 6-6\) is 1"),
    ("f16", 0x08200490 | 2 << 7, r"type of A \(bits 7-9\) is 3"),
    ("f16", 0x08200490 | 4 << 10, r"type of B \(bits 10-12\) is 5"),
    ("f16", 0x08200490 | 1 << 23, r"bits 23-23"),
    ("f16", 0x08200490 | 1 << 29, r"bits 29-29"),
    ("f16", 0x08200490 | 1 << 30, r"the shift of .ws"),
    ("f16", 0x08000490, r"N \(bits 17-22, times 8\) is 0"),
    ("f16", 0x08000490 | 40 << 17, r"N \(bits 17-22, times 8\) is 320"),
    ("f16", 0x10200490, r"M \(bits 24-28, times 16\) is 256"),
    ("f16", 0x06200490, r"M \(bits 24-28, times 16\) is 96"),
    ("tf32", 0x08200490, r"type of A \(bits 7-9\) is 1"),
    ("tf32", 0x08200900, r"type of D \(bits 4-5\) is 0"),
    ("f8f6f4", 0x08200010 | 2 << 7, r"type of A \(bits 7-9\) is 2"),
    ("f8f6f4", 0x08200010 | 5 << 7 | 1 << 15, r"K-major only"),
    ("f8f6f4", 0x08000010 | 3 << 17 | 1 << 16, r"multiples of 16 where an 8-bit B is transposed"),
    ("i8", 0x08200010, r"type of D \(bits 4-5\) is 1"),
    ("i8", 0x08200020 | 1 << 13, r"negation"),
    ("i8", 0x08000020 | 5 << 17, r"multiples of 16 above 32"),
])  # fmt: skip
def test_instruction_descriptor(kind: str, bits: int, message: str) -> None:
    fails(f"instruction descriptor {bits:#010x}: .*{message}", kind, bits, GOOD, GOOD)


@pytest.mark.parametrize("kind, vector, bits, message", [
    ("mxf4nvf4", "block16", 0x08200480 | 1 << 31, "K = 96"),
    ("mxf4nvf4", "block16", 0x08200480 | 1 << 12, "type of B"),
    ("mxf4nvf4", "block16", 0x08200480 | 1 << 15, r"transposition \(bits 15-16\) is 1"),
    ("mxf4nvf4", "block16", 0x08200480 | 2 << 29, r"id \(bits 29-30\) is 2.*0 with 4X"),
    ("mxf4nvf4", "block16", 0x08200480 | 1 << 4, r"id \(bits 4-5\) is 1.*0 with 4X"),
    ("mxf4nvf4", "block32", 0x08200480 | 1 << 23 | 3 << 29, "0 and 2 with 2X"),
    ("mxf4nvf4", "block32", 0x08200480, "ue4m3 scales with blocks of 16"),
    ("mxf4nvf4", "block16", 0x08200480 | 1 << 24, "bits 24-26"),
    ("mxf4nvf4", "block16", 0x08200480 & ~0x80, "type of A"),
    ("mxf4nvf4", "block16", 0x10200480, "128 with cta_group::1"),
    ("mxf4", "block32", 0x08200480, r"type of scales \(bits 23-23\) is 0, which must be 1"),
    ("mxf8f6f4", "block32", 0x08200000, r"type of scales"),
    ("mxf8f6f4", "block32", 0x08a00008, r"bits 3-3"),
])  # fmt: skip
def test_scaled_instruction_descriptor(kind: str, vector: str, bits: int, message: str) -> None:
    fails(f"instruction descriptor {bits:#010x}: .*{message}", kind, bits, GOOD, GOOD, f".block_scale.{vector}")


@pytest.mark.parametrize("bits, message", [
    (GOOD & ~(1 << 46), r"b-desc .* has 0 in bits 46-48, which must be 1"),
    (GOOD | 1 << 49, "base offset 1"),
    (GOOD | 1 << 52, "absolute leading dimension"),
    (GOOD | 1 << 55, "bits 53-60"),
    (GOOD | 1 << 14, "bits 14-15"),
    (GOOD | 1 << 30, "bits 30-31"),
    (GOOD | 1 << 61, "layout 3"),
    (GOOD + 8, "middle of the swizzle's pattern of 1024 bytes"),
    (GOOD + (0x2000 << 32), "outside the CTA's"),
])  # fmt: skip
def test_matrix_descriptor(bits: int, message: str) -> None:
    fails(message, "f16", 0x08200490, GOOD, bits)


def test_advancing_along_k_inside_a_swizzled_row() -> None:
    """K steps of 32 bytes add 2 to the start field."""
    random = random_of("advance")
    codes, values = FORMATS["bf16"].draw(random, (2, 128, 64))
    shared, image = numpy.zeros(IMAGE, numpy.uint8), numpy.zeros((LANES, 128), numpy.uint32)
    place_k_major(shared, A_AT, codes[0].astype("<u2").view(numpy.uint8).reshape(128, 128), "128", 16, 1024)
    place_k_major(shared, B_AT, codes[1].astype("<u2").view(numpy.uint8).reshape(128, 128), "128", 16, 1024)
    body = descriptor("%d0", GOOD, A_AT) + descriptor("%d1", GOOD, B_AT) + "mov.u32 %t1, 0x08200490;\n"
    for step in range(4):
        body += f"tcgen05.mma.cta_group::1.kind::f16 [%taddr], %d0, %d1, %t1, {int(step > 0)};\n"
        body += "add.u64 %d0, %d0, 2;\nadd.u64 %d1, %d1, 2;\n"
    for seed in range(8):
        after = run_tensor_core(body, shared, image, seed=seed)[0].view(numpy.float32)
        numpy.testing.assert_array_equal(after, values[0] @ values[1].T)


def test_copies_of_scales_must_agree() -> None:
    image = numpy.zeros((LANES, TENSOR_COLUMNS), numpy.uint32)
    image[70, SFB_COLUMN + 1] = 0x100
    body = product_body(*MXF4NVF4)
    with pytest.raises(
        EmulatorError, match=f"scale factors of B, row 38, in column {SFB_COLUMN + 1}: lane 6 .* lane 70"
    ):
        run_tensor_core(body, numpy.zeros(IMAGE), image)


@pytest.mark.parametrize("body, message", [
    ("add.u32 %taddr, %taddr, 0x100000;\n" + DENSE, "begins at lane 16"),
    ("add.u32 %taddr, %taddr, 400;\n" + DENSE, "D: lanes .* do not exist"),
    ("tcgen05.shift.cta_group::1.down [%taddr + 0x30000];", "multiple of 32"),
    ("tcgen05.shift.cta_group::2.down [%taddr];", "cta_group::1 already"),
    (descriptor("%d0", 1 << 46, 0) + "tcgen05.cp.cta_group::1.128x128b [%taddr + 0x100000], %d0;", "do not exist"),
    ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%data];", "mbarrier"),
    (DENSE.replace("kind::f16", "kind::f16.collector::a::use"), "nothing was filled"),
])  # fmt: skip
def test_operands(body: str, message: str) -> None:
    fails(message, body)


def test_collector() -> None:
    first = product_body("f16", 0x08200490, GOOD, GOOD).replace("kind::f16", "kind::f16.collector::a::fill")
    second = first[first.rindex("tcgen05.mma") :].replace("::fill", "::lastuse")
    run_tensor_core(first + second, numpy.zeros(IMAGE), numpy.zeros((LANES, 128)))
    fails("nothing was filled", first + second + second)


MMA = "tcgen05.mma.cta_group::1.kind::"


@pytest.mark.parametrize("instruction, message", [
    (MMA + "mxf4nvf4.block_scale [%taddr], %d0, %d1, %t1, [%t2], [%t2], 1;", "size of the scale"),
    (MMA + "mxf4nvf4.block_scale.scale_vec::1X [%taddr], %d0, %d1, %t1, [%t2], [%t2], 1;", "1X"),
    (MMA + "mxf4.block_scale.scale_vec::4X [%taddr], %d0, %d1, %t1, [%t2], [%t2], 1;", "4X"),
    (MMA + "mxf8f6f4.block_scale.block16 [%taddr], %d0, %d1, %t1, [%t2], [%t2], 1;", "block16"),
    (MMA + "f16 [%taddr], %d0, %d1, %t1, {%t2, %t2}, 1;", "disable-output-lane has 2 words"),
    (MMA + "f16.ashift [%taddr], %d0, %d1, %t1, 1;", "ashift"),
    (MMA + "f16 [%taddr], %d0, %d1, %t1, 1, 16;", "scale-input-d is 16"),
    (MMA + "i8 [%taddr], %d0, %d1, %t1, 1, 1;", "scale-input-d"),
    ("tcgen05.mma.sp.cta_group::1.kind::f16 [%taddr], %d0, %d1, [%t2], %t1, 1;", "sparse"),
    ("tcgen05.mma.ws.cta_group::1.kind::f16 [%taddr], %d0, %d1, %t1, 1, %d2;", "zero-column mask"),
    ("tcgen05.mma.ws.cta_group::2.kind::f16 [%taddr], %d0, %d1, %t1, 1;", "ws needs"),
    (MMA + "f4 [%taddr], %d0, %d1, %t1, 1;", "needs a .kind"),
    ("tcgen05.cp.cta_group::1.32x128b [%taddr], %d0;", "warpx4"),
    ("tcgen05.cp.cta_group::1.64x128b [%taddr], %d0;", "warpx2"),
    ("tcgen05.cp.cta_group::1.128x128b.b8x16 [%taddr], %d0;", "b4x16_p64"),
    ("tcgen05.commit.cta_group::1.shared::cluster.b64 [%mbar];", "mbarrier::arrive::one"),
    ("tcgen05.fence::between;", "fence::between"),
])  # fmt: skip
def test_rejections_at_load(instruction: str, message: str) -> None:
    fails(message, instruction, columns=32)
