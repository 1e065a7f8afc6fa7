"""The definition of an NVFP4 product, in plain torch: slow, short, and the same on a CPU and a GPU.

An operand is `data` [(L,) rows, K/2], two e2m1 values in a byte with the even element in the low nibble, and `scale`,
one e4m3 for every 16 values along K, in one of two layouts:

  "linear"  [(L,) rows, K/16]
  "128x4"   row r, scale column s at byte ((r//128)*ceil(S/4) + s//4)*512 + (r%32)*16 + (r%128//32)*4 + s%4,
            S = K/16, padded to whole blocks of 512 bytes

`gemm`, `quantize`, `amax_scale`, `dequantize` and `swizzle` define what the functions of these names in `nvfp4` return.
`generate_input`, `ref_kernel` and `check_implementation` do the same for `nvfp4.custom_kernel` with its views, which
put the batch last, and `load_task` reads the shapes of the competition's tasks from task.yml and nvfp4/task_gemv.yml.

Products of operands are multiples of 2^-20 and at most 6*448*6*448 < 2^22.8, so the fp64 sums here are exact up to
K = 1184 whatever the scales, and for integer scales at any K that fits in memory; beyond, they are off by 2^-53 a
step, far below the fp32 that they are rounded to.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

BLOCK = 16  # values that share a scale
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_NAN = 0x7F
LAYOUTS = ("128x4", "linear")

# --- the two number formats ---------------------------------------------------------------------------------------


def e2m1_table() -> torch.Tensor:
    """Values of the 16 codes: bit 3 is the sign, then 2 exponent bits of bias 1 and 1 mantissa bit."""

    def magnitude(code: int) -> float:
        exponent, mantissa = code >> 1, code & 1
        return mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)

    return torch.tensor([(-1 if code & 8 else 1) * magnitude(code & 7) for code in range(16)])


def e4m3_table() -> torch.Tensor:
    """Values of the 256 scale bytes: 4 exponent bits of bias 7, 3 mantissa bits, 0x7F is NaN; bit 7 is ignored."""

    def value(code: int) -> float:
        exponent, mantissa = code >> 3, code & 7
        if code == E4M3_NAN:
            return math.nan
        return mantissa / 8 * 2.0**-6 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8)

    return torch.tensor([value(byte & 0x7F) for byte in range(256)])


def decode_e2m1(data: torch.Tensor) -> torch.Tensor:
    """[..., K/2] bytes to [..., K] fp32."""
    nibbles = e2m1_table().to(data.device)
    byte = torch.arange(256, device=data.device)
    pairs = torch.stack([nibbles[byte & 15], nibbles[byte >> 4]], dim=-1)
    return pairs[as_bytes(data).int()].flatten(-2)


def decode_e4m3(scale: torch.Tensor) -> torch.Tensor:
    """Scale bytes to fp32, of the same shape."""
    return e4m3_table().to(scale.device)[as_bytes(scale).int()]


def nearest_even(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Codes of the entries of an ascending table that are nearest to x >= 0; a tie goes to the even code."""
    midpoints = (table[1:] + table[:-1]) / 2
    below = torch.searchsorted(midpoints, x.contiguous(), right=False)  # midpoints < x
    up_to = torch.searchsorted(midpoints, x.contiguous(), right=True)  # midpoints <= x
    return torch.where(below % 2 == 0, below, up_to).to(torch.uint8)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.uint8 else x.view(torch.uint8)


# --- the two scale layouts ----------------------------------------------------------------------------------------


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def swizzled_bytes(rows: int, columns: int) -> int:
    """Size of the 128x4 layout of one batch."""
    return ceil_div(rows, 128) * ceil_div(columns, 4) * 512


def swizzle(scale: torch.Tensor, padding: int = 0) -> torch.Tensor:
    """[(L,) rows, columns] to contiguous [L, row blocks, column blocks, 32, 4, 4]; padding is a byte."""
    rows, columns = scale.shape[-2:]
    batch = math.prod(scale.shape[:-2])
    row_blocks, column_blocks = ceil_div(rows, 128), ceil_div(columns, 4)
    shape = (batch, row_blocks * 128, column_blocks * 4)
    padded = torch.full(shape, padding, dtype=torch.uint8, device=scale.device)
    padded[:, :rows, :columns] = as_bytes(scale).reshape(batch, rows, columns)
    blocks = padded.view(batch, row_blocks, 4, 32, column_blocks, 4).permute(0, 1, 4, 3, 2, 5)
    return blocks.contiguous().view(scale.dtype)


def unswizzle(swizzled: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The linear [L, rows, columns] scales of any contiguous tensor in the 128x4 layout."""
    row_blocks, column_blocks = ceil_div(rows, 128), ceil_div(columns, 4)
    size = swizzled_bytes(rows, columns)
    batch = swizzled.numel() // size if size else 1
    blocks = as_bytes(swizzled).reshape(batch, row_blocks, column_blocks, 32, 4, 4).permute(0, 1, 4, 3, 2, 5)
    linear = blocks.reshape(batch, row_blocks * 128, column_blocks * 4)[:, :rows, :columns]
    return linear.contiguous().view(swizzled.dtype)


def scale_rows(scale: torch.Tensor, rows: int, columns: int, scale_layout: str) -> torch.Tensor:
    """Either layout to linear [L, rows, columns]."""
    if scale_layout == "128x4":
        return unswizzle(scale, rows, columns)
    if scale_layout == "linear":
        return scale.reshape(math.prod(scale.shape[:-2]), rows, columns)
    raise ValueError(f'scale_layout: must be "128x4" or "linear", got {scale_layout!r}')


# --- quantize and dequantize --------------------------------------------------------------------------------------


def operand(data: torch.Tensor, scale: torch.Tensor | None, scale_layout: str) -> torch.Tensor:
    """value * scale, [L, rows, K] fp32: exact, since e2m1 has 2 significant bits and e4m3 has 4. Without scales the
    values themselves, [(L,) rows, K] in float16 or bfloat16."""
    if scale is None:
        return data.float().reshape(math.prod(data.shape[:-2]), *data.shape[-2:])
    rows, k = data.shape[-2], data.shape[-1] * 2
    values = decode_e2m1(data).reshape(math.prod(data.shape[:-2]), rows, k)
    scales = decode_e4m3(scale_rows(scale, rows, k // BLOCK, scale_layout))
    return values * scales.repeat_interleave(BLOCK, dim=-1)


def dequantize(
    data: torch.Tensor,
    scale: torch.Tensor,
    *,
    global_scale: float | torch.Tensor = 1.0,
    scale_layout: str = "128x4",
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """value * scale * global_scale (a number, or one a row) in fp32, rounded once more to out_dtype."""
    x = operand(data, scale, scale_layout)
    x = x * by_rows(as_fp32(global_scale, data.device), x)
    return x.to(out_dtype).reshape(*data.shape[:-1], data.shape[-1] * 2)


def quantize(
    x: torch.Tensor,
    *,
    global_scale: float | torch.Tensor = 1.0,
    scale_layout: str = "128x4",
    block_scale: str = "amax6",
    importance: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[(L,) rows, K] to data [(L,) rows, K/2] and scales, uint8, in fp32 steps; g is a number, or one a row:

    scale = e4m3(amax / 6 / g), value = e2m1(x / (scale * g)); both to nearest, ties to even, saturating at 448 and 6.
    A block of zeros has scale 0, one with a NaN has scale NaN; where the scale is 0 or NaN the codes are 0, and so is
    the code of a quotient that is NaN. Other codes keep the sign of x, that of a zero too.

    "four_over_six": also with scale = e4m3(amax / 4 / g), and blocks take what has the smaller squared_error.
    "search": also with the 13 scales around e4m3(amax / 6 / g), see searched. importance [K]: weights of the errors.
    """
    g = by_rows(as_fp32(global_scale, x.device), x)
    blocks = x.float().unflatten(-1, (x.shape[-1] // BLOCK, BLOCK))
    amax = blocks.abs().amax(-1)
    scale, code = encode(blocks, amax / as_fp32(E2M1_MAX, x.device) / g, g)
    if block_scale == "four_over_six":
        scale_4, code_4 = encode(blocks, amax / 4 / g, g)
        better = squared_error(blocks, scale_4, code_4, g) < squared_error(blocks, scale, code, g)
        scale, code = scale_4.where(better, scale), code_4.where(better.unsqueeze(-1), code)
    if block_scale == "search":
        weight = torch.ones_like(blocks) if importance is None else relative(importance.unflatten(0, (-1, BLOCK)))
        least = torch.full_like(amax, torch.inf)
        for other in searched(scale):
            other_code = encode_under(blocks, other, g)
            error = squared_error(blocks, other, other_code, g, weight)
            better = (error < least) & (amax > 0)
            least, scale = error.where(better, least), other.where(better, scale)
            code = other_code.where(better.unsqueeze(-1), code)
    code = code.flatten(-2)
    data = code[..., 0::2] | code[..., 1::2] << 4
    return data, swizzle(scale) if scale_layout == "128x4" else scale


def by_rows(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A global scale for x, or one for each of its rows beside their values."""
    return g if g.numel() == 1 else g.reshape(*x.shape[:-1], 1)


def encode(blocks: torch.Tensor, wanted: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales nearest to `wanted`, of blocks [.., 16], and the codes under them."""
    scale = nearest_even(wanted, e4m3_table()[:E4M3_NAN].to(wanted.device))
    scale = torch.where(wanted.isnan(), E4M3_NAN, scale).where(blocks.abs().amax(-1) != 0, 0).to(torch.uint8)
    return scale, encode_under(blocks, scale, g)


def encode_under(blocks: torch.Tensor, scale: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The codes of blocks [.., 16] under given scales [..]."""
    quotient = blocks / (decode_e4m3(scale) * g).unsqueeze(-1)
    code = nearest_even(quotient.abs(), e2m1_table()[:8].to(blocks.device)) | quotient.signbit().byte() << 3
    no_code = ((scale == 0) | (scale == E4M3_NAN)).unsqueeze(-1) | quotient.isnan()
    return code.where(~no_code, 0)


def searched(scale: torch.Tensor) -> list[torch.Tensor]:
    """The codes of scales that a search tries, in its order: 5 below to 7 above a code, within 1 .. 126. The first with
    the least error is taken, and the given code where no error is finite, or where amax is 0 or NaN."""
    return [(scale.int() + offset).clamp(1, 126).to(torch.uint8) for offset in range(-5, 8)]


def relative(importance: torch.Tensor) -> torch.Tensor:
    """Importance of blocks [.., 16] times the normalizer of its largest; ones where all 16 are 0."""
    most = importance.amax(-1, keepdim=True)
    return (importance * normalizer(most)).where(most > 0, 1.0)


def normalizer(x: torch.Tensor) -> torch.Tensor:
    """The power of two that brings x >= 0 to [1, 2), or the nearest from 2^-126 to 2^126."""
    exponent = torch.frexp(x).exponent - 1
    power = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), -exponent.clamp(-126, 126)).float()
    return power.where(x.isfinite(), 2.0**-126)


def gptq_block(
    x: torch.Tensor, u: torch.Tensor, global_scale: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step of GPTQ for 16 columns x [N, 16] under the factor u [16, 16], in fp32 steps: data [N, 8], scales [N, 1],
    errors [N, 16]. Each row takes the scale of `searched` with the least sum of squared errors; an error is
    (t - value * (scale * g)) * (1 / u_jj), and the columns behind are reduced by error * u_jk, each by one fma."""
    g = as_fp32(global_scale, x.device).flatten().expand(len(x))
    nearest, _ = encode(x, x.abs().amax(-1) / as_fp32(E2M1_MAX, x.device) / g, g)
    best = round_columns(x, u, nearest, g)
    least = torch.full_like(g, torch.inf)
    for scale in searched(nearest):
        tried = round_columns(x, u, scale, g)
        better = (tried[3] < least) & (x.abs().amax(-1) > 0)
        least = tried[3].where(better, least)
        best = [new.where(better.reshape(-1, *[1] * (new.ndim - 1)), old) for new, old in zip(tried, best)]
    scale, code, error, _ = best
    return code[:, 0::2] | code[:, 1::2] << 4, scale[:, None], error


def round_columns(x: torch.Tensor, u: torch.Tensor, scale: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
    """The columns of gptq_block under one scale a row: the scale, codes, errors, and the sums of their squares."""
    t, unit, total = list(x.unbind(1)), decode_e4m3(scale) * g, torch.zeros_like(g)
    codes, errors = [], []
    for j in range(BLOCK):
        code = encode_under(t[j][:, None], scale, g)[:, 0]
        error = fma(-e2m1_table().to(x.device)[code.int()], unit, t[j]) * (1 / u[j, j])
        total = fma(error, error, total)
        for k in range(j + 1, BLOCK):
            t[k] = fma(-error, u[j, k].expand_as(error), t[k])
        codes.append(code)
        errors.append(error)
    return [scale, torch.stack(codes, 1), torch.stack(errors, 1), total]


def squared_error(
    blocks: torch.Tensor,
    scale: torch.Tensor,
    code: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """The squares of x - value * (scale * g), added in order: fp32, each difference and each sum an fma. Everything is
    first multiplied by the power of two that brings amax to [1, 2), or the nearest from 2^-126 to 2^126, so that the
    squares neither overflow nor vanish. weight [.., 16]: a difference times it, rounded, is the other factor."""
    power = normalizer(blocks.abs().amax(-1))
    unit, values = decode_e4m3(scale) * g * power, e2m1_table().to(code.device)[code.int()]
    total = torch.zeros_like(unit)
    for i in range(BLOCK):
        difference = fma(-values[..., i], unit, blocks[..., i] * power)
        total = fma(difference if weight is None else difference * weight[..., i], difference, total)
    return total


def amax_scale(x: torch.Tensor, *, block_scale: str = "amax6", by_row: bool = False) -> torch.Tensor:
    """amax(|x|) over the largest value times the largest scale that a block may get, in fp64, rounded once to fp32 [1];
    1 where that is 0, NaN or infinite. With "four_over_six" scales are up to 256 * 6 / 4. by_row: [rows], of each."""
    amax = torch.nn.functional.pad(x.double().abs(), (0, 1)).amax(-1).flatten()  # of no values it is 0
    amax = amax if by_row else torch.nn.functional.pad(amax, (0, 1)).amax().reshape(1)
    scale = (amax / (E2M1_MAX * {"amax6": E4M3_MAX, "four_over_six": 256.0, "search": E4M3_MAX}[block_scale])).float()
    return torch.where((scale > 0) & scale.isfinite(), scale, 1.0)


# --- what a layer does before it quantizes --------------------------------------------------------------------------


def as_dtype(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """fp32 values rounded to the dtype of x."""
    return values.to(x.dtype).float()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, round_steps: bool = False) -> torch.Tensor:
    """(x * (1 / sqrt(mean of squares + eps))) * weight in fp32. Squares are added by fma to 256 sums, of the blocks of
    16 values j, j + 256, ... each; then sums are added to the sums 128, 64, ... 1 before them. round_steps: both
    products are rounded to the dtype of x."""
    h, k = x.float(), x.shape[-1]
    chunks = torch.nn.functional.pad(h, (0, -k % 4096)).unflatten(-1, (-1, 256, BLOCK))
    sums = torch.zeros(*x.shape[:-1], 256, device=x.device)
    for i in range(chunks.shape[-3]):
        for j in range(BLOCK):
            sums = fma(chunks[..., i, :, j], chunks[..., i, :, j], sums)
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    mean = sums / as_fp32(k, x.device) + as_fp32(eps, x.device)
    root = mean.double().sqrt().float()  # correctly rounded; in fp32 torch is up to an ulp off on a CPU
    normalized = h * (torch.ones_like(mean) / root)
    if round_steps:
        return as_dtype(as_dtype(normalized, x) * weight.float(), x)
    return normalized * weight.float()


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)) of fp32 numbers from -86, each operation rounded; see csrc/common/exponential.h."""

    def constant(value: str) -> torch.Tensor:
        return torch.full_like(x, float.fromhex(value))

    m, shift, over_ln_2 = torch.where(x < 87, x, 87.0), constant("0x1.8p23"), constant("-0x1.715476p0")
    n = fma(m, over_ln_2, shift) - shift
    r = fma(m, over_ln_2, -n)
    p = constant("0x1.5bb9fcp-10")
    for c in ("0x1.3cea9ep-7", "0x1.c6b754p-5", "0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p0"):
        p = fma(p, r, constant(c))
    return 1 / fma(p, torch.ldexp(torch.ones_like(n), n.int()), constant("0x1p0"))


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x) of fp32 numbers; -86 stands for those below."""
    x = torch.where(x < -86, -86.0, x)
    return x * sigmoid(x)


def rms_norm_quantize(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    global_scale: float | torch.Tensor = 1.0,
    scale_layout: str = "128x4",
    round_steps: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """quantize(rms_norm(h)); h is x, or x + residual rounded to their dtype, which is written to the residual."""
    h = x
    if residual is not None:
        h = residual.copy_(x.float() + residual.float())
    y = rms_norm(h, weight, eps, round_steps)
    return quantize(y, global_scale=global_scale, scale_layout=scale_layout)


def silu_mul_quantize(
    gate_up: torch.Tensor, *, global_scale: float | torch.Tensor = 1.0, scale_layout: str = "128x4"
) -> tuple[torch.Tensor, torch.Tensor]:
    """quantize(silu(gate) * up) of [(L,) rows, 2K], whose first K columns are the gates."""
    gate, up = gate_up.float().tensor_split(2, dim=-1)
    return quantize(silu(gate) * up, global_scale=global_scale, scale_layout=scale_layout)


# --- the steps around experts -------------------------------------------------------------------------------------


def gated(
    gate: torch.Tensor,
    up: torch.Tensor | None = None,
    activation: str = "silu",
    *,
    limit: float | None = None,
    alpha: float = 1.702,
    out_dtype: torch.dtype | None = None,
    round_steps: bool = False,
) -> torch.Tensor:
    """A gated activation of fp32 numbers, each operation rounded; see csrc/common/gating.h. round_steps: the activation
    and its product with up are rounded to the dtype of gate."""
    g, u = gate.float(), torch.ones((), device=gate.device) if up is None else up.float()
    if limit is not None:
        most = as_fp32(limit, gate.device)
        g, u = torch.where(g > most, most, g), u if up is None else u.clamp(-most, most)
    if activation == "relu2":
        g = torch.where(g < 0, 0.0, g)
        y = g * g
    elif activation == "gelu_tanh":
        g = torch.where(g < as_fp32(-9.94, g.device), -9.94, g)
        b, a = (torch.full_like(g, float.fromhex(x)) for x in ("0x1.2444f2p-4", "0x1.988454p0"))
        y = g * sigmoid(g * fma(b, g * g, a))
        y = (as_dtype(y, gate) if round_steps else y) * u
    elif activation == "swiglu":
        scale = as_fp32(alpha, g.device)
        g = torch.maximum(g, as_fp32(-86.0, g.device) / scale)
        y = g * sigmoid(scale * g) * (u + 1)
    else:
        y = silu(g)
        y = (as_dtype(y, gate) if round_steps else y) * u
    if round_steps:
        y = as_dtype(y, gate)
    return y.to(out_dtype or gate.dtype)


def moe_route(
    ids: torch.Tensor, E: int, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The token of each place, the end of each expert's places, and the place of each choice; see nvfp4.moe_route."""
    expert, here = ids.long().flatten(), torch.arange(E) if expert_map is None else expert_map.long()
    known = (expert >= 0) & (expert < len(here))
    expert = torch.where(known, here[expert.where(known, 0)] if len(here) else -1, -1)
    expert = torch.where((expert >= 0) & (expert < E), expert, E)
    order = expert.sort(stable=True).indices
    ends = expert.bincount(minlength=E + 1)[:E].cumsum(0)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    rows = torch.where(torch.arange(len(order)) < ends[-1], order // max(ids.shape[1], 1), 0)
    return rows.int(), ends.int(), place.where(expert < E, -1).int().view(ids.shape)


def moe_combine(
    y: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The sums by fma over each token's choices, in their order, of fp32 numbers; see nvfp4.moe_combine."""
    known = torch.cat([y.float(), torch.full((1, y.shape[1]), math.nan)])
    sums = torch.zeros(len(places), y.shape[1])
    for j in range(places.shape[1]):
        place = places[:, j].long()
        weight = torch.ones(len(places)) if weights is None else weights[:, j].float()
        added = fma(weight[:, None], known[place.clamp(0, len(y))], sums)
        sums = torch.where((place >= 0)[:, None], added, sums)
    return sums.to(out_dtype or y.dtype)


def as_fp32(value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float32, device=device)


# --- the product --------------------------------------------------------------------------------------------------


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor,
    *,
    alpha: float | torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    beta: float = 0.0,
    out_dtype: torch.dtype = torch.float16,
    scale_layout: str = "128x4",
    transpose_b: bool = True,
) -> torch.Tensor:
    """[(L,) M, K/2] and [(L,) N, K/2] to [(L,) M, N]. A may be float16 or bfloat16 [(L,) M, K], without scale_a; then
    transpose_b=False gives A . B, [(L,) M, N] and [(L,) N, K/2] to [(L,) M, K]."""
    y = operand(b, scale_b, scale_layout).double()
    sums = operand(a, scale_a, scale_layout).double() @ (y.mT if transpose_b else y)
    sums = sums.float() + 0.0  # sums start from +0, so that no sum is -0
    out = epilogue(sums, alpha=alpha, bias=bias, c=c, beta=beta, out_dtype=out_dtype)
    return out.reshape(*a.shape[:-1], y.shape[-2 if transpose_b else -1])


def epilogue(
    sums: torch.Tensor,
    *,
    alpha: float | torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    c: torch.Tensor | None = None,
    beta: float = 0.0,
    out_dtype: torch.dtype = torch.float16,
) -> torch.Tensor:
    """fp32 sums [L, M, N] to results: v = alpha * sum, v = fma(beta, c, v), v = v + bias, one rounding to out_dtype.
    alpha is one number, [N] or [L, N], and bias [N] or [L, N]."""
    v = sums if alpha is None else for_rows(as_fp32(alpha, sums.device)) * sums
    if c is not None and beta != 0.0:
        v = fma(as_fp32(beta, v.device), c.float().reshape(v.shape), v)
    if bias is not None:
        v = v + for_rows(bias.float())
    return v.to(out_dtype)


def for_rows(x: float | torch.Tensor) -> torch.Tensor:
    """alpha or bias as every row of [L, M, N] takes it: that of batches, [L, N] or [L, 1], as [L, 1, N]."""
    x = torch.as_tensor(x)
    return x[:, None] if x.ndim == 2 else x


def fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x * y + z of fp32 numbers with one rounding.

    The product is exact in fp64. The sum is rounded to odd, that is, its last bit is set if anything was lost, and so
    the rounding to fp32 that follows sees on which side of a tie it is.
    """
    product, z = x.double() * y.double(), z.double()
    total = product + z
    from_z = total - product
    lost = (product - (total - from_z)) + (z - from_z)
    to_odd = (lost != 0) & total.isfinite() & (total.view(torch.int64) % 2 == 0)
    odd = torch.nextafter(total, torch.where(lost > 0, math.inf, -math.inf).double())
    return torch.where(to_odd, odd, total).float()


def sums_are_exact(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether fp32 sums of the operands' products are exact in every order, so that results must be equal bit for bit.

    With integer scales 2*a and 2*b are integers: every partial sum is a multiple of 1/4, and exact while the products'
    absolute values sum to no more than 2^22. Scales 0..3 give this for all data up to K = 12945.
    """
    if a.numel() == 0 or b.numel() == 0:
        return True
    if not all(torch.equal(2 * x, (2 * x).round()) for x in (a, b)):
        return False
    if a.shape[-1] * float(a.abs().max()) * float(b.abs().max()) <= 2.0**22:
        return True
    return float((a.double().abs() @ b.double().abs().mT).max()) <= 2.0**22


# --- the competition's form of the problem ------------------------------------------------------------------------

SCALE_SETS = {
    "contest": (0x00, 0x38, 0x40, 0x44),  # 0, 1, 2, 3
    "finite": tuple(range(E4M3_NAN)),
    "extreme": (0x01, 0x7E),  # 2^-9 and 448
    "zero": (0x00,),
    "nan": (*range(0, E4M3_NAN, 2), E4M3_NAN),  # one scale in 65
}
RTOL = ATOL = 1e-3
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def generate_input(
    m: int,
    n: int,
    k: int,
    l: int,  # noqa: E741 (the problem's name for the batch)
    seed: int,
    *,
    b_rows: int | None = None,
    scales: str = "contest",
    padding: int = E4M3_NAN,
    device: torch.device | str | None = None,
    drawn_on: torch.device | str = "cpu",
) -> Data:
    """(a, b, sfa_ref, sfb_ref, sfa_permuted, sfb_permuted, c) with uniformly random bytes in a and b.

    a             [m, k/2, l] float4_e2m1fn_x2, in memory (l, m, k/2); b the same with n rows
    sfa_ref       [m, k/16, l] float8_e4m3fn, in memory (l, m, k/16), drawn from SCALE_SETS[scales]
    sfa_permuted  the same scales in the 128x4 layout: [32, 4, row blocks, 4, column blocks, l], in memory
                  (l, row blocks, column blocks, 32, 4, 4); bytes of padding are `padding`
    c             [m, n, l] float16, in memory (l, m, n): where the result goes; holds NaN

    With `b_rows`, b and sfb_ref have that many rows, of which only the first n, as many as c has columns, count: the
    others hold random values and scales of `padding`, by default NaN.

    The same arguments give the same bytes on every device; the default is the GPU where there is one. `drawn_on` a GPU
    random numbers are others, and there sooner.
    """
    b_rows = n if b_rows is None else b_rows
    if b_rows < n:
        raise ValueError(f"b_rows: b cannot have {b_rows} rows if {n} of them count")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    generator = torch.Generator(drawn_on).manual_seed(seed)

    def values(rows: int) -> torch.Tensor:
        byte = torch.randint(0, 256, (l, rows, k // 2), dtype=torch.uint8, generator=generator, device=drawn_on)
        return byte.to(device).permute(1, 2, 0).view(torch.float4_e2m1fn_x2)

    def scale_pair(rows: int, rows_that_count: int) -> tuple[torch.Tensor, torch.Tensor]:
        choices = torch.tensor(SCALE_SETS[scales], dtype=torch.uint8, device=drawn_on)
        index = torch.randint(0, len(choices), (l, rows, k // BLOCK), generator=generator, device=drawn_on)
        linear = choices[index].to(device)
        linear[:, rows_that_count:] = padding
        swizzled = swizzle(linear, padding).permute(3, 4, 1, 5, 2, 0)
        return linear.permute(1, 2, 0).view(torch.float8_e4m3fn), swizzled.view(torch.float8_e4m3fn)

    a, b = values(m), values(b_rows)
    (sfa, sfa_permuted), (sfb, sfb_permuted) = scale_pair(m, m), scale_pair(b_rows, n)
    c = torch.full((l, m, n), math.nan, dtype=torch.float16, device=device).permute(1, 2, 0)
    return a, b, sfa, sfb, sfa_permuted, sfb_permuted, c


def batch_first(data: Data) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b and the linear scales as `gemm` takes them: uint8 and [l, rows, ...], without b's rows that do not count."""
    a, b, sfa, sfb = (as_bytes(x).permute(2, 0, 1) for x in data[:4])
    n = data[6].shape[1]
    return a, b[:, :n], sfa, sfb[:, :n]


def ref_kernel(data: Data) -> torch.Tensor:
    """The result for the data's seven tensors, in a new tensor laid out as c."""
    a, b, sfa, sfb = batch_first(data)
    return gemm(a, b, sfa, sfb, scale_layout="linear").permute(1, 2, 0)


def check_implementation(
    data: Data, output: torch.Tensor, *, exact: bool = False, rtol: float = RTOL, atol: float = ATOL
) -> tuple[bool, str]:
    """(whether output is right, a message that says why not or how near it is).

    The competition's rule is |output - expected| <= atol + rtol * |expected|. `exact` asks for the same bits instead,
    and raises ValueError for data whose sums are not exact in fp32, where nobody could promise them.
    """
    if exact:
        a, b, sfa, sfb = batch_first(data)
        if not sums_are_exact(operand(a, sfa, "linear"), operand(b, sfb, "linear")):
            raise ValueError("data: fp32 sums of these products depend on their order, so equal bits are not defined")
    return compare(output, ref_kernel(data), exact=exact, rtol=rtol, atol=atol)


def compare(
    output: torch.Tensor, expected: torch.Tensor, *, exact: bool = False, rtol: float = RTOL, atol: float = ATOL
) -> tuple[bool, str]:
    """Does the work of check_implementation for an expected result at hand. A NaN equals a NaN of any payload."""
    if output.shape != expected.shape or output.dtype != expected.dtype:
        got, want = (f"{x.dtype} of shape {tuple(x.shape)}" for x in (output, expected))
        return False, f"output is {got}, expected {want}"
    output = output.to(expected.device)
    if exact:
        wrong = (output != expected) | (output.signbit() != expected.signbit())
    else:
        wrong = ~((output.double() - expected.double()).abs() <= atol + rtol * expected.double().abs())
        wrong &= output != expected  # equal infinities
    wrong &= ~(output.isnan() & expected.isnan())
    count = int(wrong.sum())
    if count == 0:
        return True, "every bit is equal" if exact else f"within {atol:g} + {rtol:g} * |expected|"
    at = tuple(wrong.nonzero()[0].tolist())
    first = f"the first at {list(at)}: {output[at].item()}, expected {expected[at].item()}"
    return False, f"{count} of {expected.numel()} values are wrong, {first}"


# --- the competition's tasks --------------------------------------------------------------------------------------

TASKS = {"nvfp4_gemm": "task.yml", "nvfp4_gemv": "task_gemv.yml"}


def load_task(task: str | Path = "nvfp4_gemm") -> dict[str, Any]:
    """A task by its name in TASKS, or a file of that form, as a dict; "tests" and "benchmarks" are lists of arguments
    for generate_input.

    Reads the part of YAML that the files use: comments, `key: scalar`, and `key:` followed by `- {key: scalar, ...}`.
    """
    path = task_file(TASKS[task]) if task in TASKS else Path(task)
    content: dict[str, Any] = {}
    section: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("- {") and text.endswith("}"):
            pairs = (pair.partition(":") for pair in text[3:-1].split(","))
            section.append({key.strip(): scalar(value) for key, _, value in pairs})
        elif text:
            key, _, value = text.partition(":")
            section = []
            content[key] = scalar(value) if value else section
    return content


def task_file(name: str) -> Path:
    """Beside this file; in a checkout, where this file lies above the package and the package links to it, within."""
    beside = Path(__file__).with_name(name)
    return beside if beside.exists() else beside.parent / "nvfp4" / name


def scalar(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip()
