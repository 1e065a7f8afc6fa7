"""Tests that the kernels for a few rows of A, sm90/gemv.cu, those of units and sm90/grouped_few.cu, have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from harness import launch
from harness.headers import Config
from harness.launch import chain, check_chain, load, timing
from harness.values import E4M3, NAN, TYPES, VALUES, rounded, stored, swizzle_scales


def every_code_and_scale(
    products: Callable[..., launch.Product], config: Config, most: int, random: numpy.random.Generator
) -> None:
    """Every pair of codes and every scale of both operands, sign bit set or not: the exact product, rounded once."""
    emulator, module = load(config, timing(random, 0))
    n, k = 256, 16 * 256
    product = products(emulator, random, most, n, k)
    a, b = numpy.zeros((1, most, k), "u1"), numpy.zeros((1, n, k), "u1")
    rows = numpy.arange(n)
    position = (rows * 16 + random.integers(0, 16, n))[random.permutation(n)]  # of the one nonzero value in a row of B
    a[0, :, position] = (rows % 16)[:, None]
    b[0, rows, position] = rows // 16
    scales_a = numpy.broadcast_to(random.permutation(256).astype("u1"), (1, most, 256))
    scales_b = random.integers(0, 256, (1, n, 256), numpy.uint8)
    scales_b[scales_b & 127 == NAN] = 0x38
    scales_a = numpy.where(scales_a & 127 == NAN, 0x38, scales_a).astype("u1")
    for array, data in zip(product.arrays[::2], (a, b)):
        array.numpy()[:] = data[..., ::2] | data[..., 1::2] << 4
    for array, scales in zip(product.arrays[1::2], (scales_a, scales_b)):
        array.numpy()[:] = swizzle_scales(scales, NAN)
    product.launch(module, config)
    exact = VALUES[rows % 16] * VALUES[rows // 16]
    exact = exact * E4M3[scales_a[0, 0, position // 16] & 127] * E4M3[scales_b[0, rows, position // 16] & 127]
    assert (product.result() == exact.astype("f4")).all()


def epilogue(
    products: Callable[..., launch.Product],
    config: Config,
    most: int,
    k: int,
    case: int,
    random: numpy.random.Generator,
) -> None:
    """alpha by value, in memory, per column; c, also aliasing out; bias; each output type; all rows or one less, with a
    guard row behind the last one of each batch. Six cases have them all."""
    emulator, module = load(config, timing(random, case))
    out_type, bias_type = TYPES[case % 3], TYPES[int(random.integers(3))]
    product = products(emulator, random, most, 133, k, l=2, out_type=out_type)
    columns, in_place = case % 2 == 1, case // 2 % 2 == 1
    alpha = random.choice([0.5, 1, -2, 4], 133 if columns else 1).astype("f4")
    bias = rounded(random.integers(-64, 65, 133), bias_type)
    c = rounded(random.integers(-64, 65, (2, most, 133)), out_type)
    product.keep(alpha, "alpha", alpha_stride=int(columns))
    product.keep(stored(bias, bias_type), "bias", bias_type=bias_type)
    product.place_c(c, -0.5, in_place)
    rows = max(1, most - case // 3 % 2)
    product.extras["m"] = rows
    print(f"K {k}, types {out_type}, {bias_type}, in place {in_place}, alpha of each column {columns}, {rows} rows")
    guard = product.out.numpy()[:, rows:].copy()
    product.launch(module, config, sms=9)
    assert (product.out.numpy()[:, rows:] == guard).all(), "a row behind the last one was written"
    expected = (alpha * product.expected()).astype("f4")
    expected = rounded(((expected - numpy.float32(0.5) * c).astype("f4") + bias).astype("f4"), out_type)
    assert (product.result() == expected)[:, :rows].all() and product.untouched()


def calls_in_a_row(
    products: Callable[..., launch.Product], config: Config, most: int, case: int, random: numpy.random.Generator
) -> None:
    """Dependent launches, each reading the previous output as c."""
    emulator, module = load(config, timing(random, case))
    calls = chain([products(emulator, random, most, 260, 1536) for _ in range(3)])
    for call in calls:
        call.launch(module, config, sms=20, wait=False)
    emulator.synchronize()
    check_chain(calls)


def place_every_code_and_scale_of_b(
    product: Any, shape: tuple[int, ...], n: int, bits: int, random: numpy.random.Generator
) -> numpy.ndarray:
    """Gives each of the n rows of B one code, 0 elsewhere, and A, of this shape, 16-bit numbers with as many bits
    behind the first. Returns the exact product."""
    m, k = shape[-2:]
    rows = numpy.arange(n)
    position = (rows * 16 + random.integers(0, 16, n))[random.permutation(n)]
    b = numpy.zeros((1, n, k), "u1")
    b[0, rows, position] = rows % 16
    scales = numpy.broadcast_to(random.permutation(256).astype("u1"), (1, n, k // 16))
    scales = numpy.where(scales & 127 == NAN, 0x38, scales).astype("u1")
    product.arrays[2].numpy()[:] = b[..., ::2] | b[..., 1::2] << 4
    product.arrays[3].numpy()[:] = swizzle_scales(scales, NAN)
    numbers = 1 + random.integers(0, 1 << bits, shape) / (1 << bits)
    product.values = random.choice([-1.0, 1.0], shape) * numbers * 2.0 ** random.integers(-14, 2, shape)
    product.place_a()
    a = product.values.reshape(m, k)
    return a[:, position] * VALUES[rows % 16] * E4M3[scales[0, rows, position // 16] & 127]
