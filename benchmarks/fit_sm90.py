"""The model of times of the sm90 kernels (csrc/kernels/sm90/model.h) on each measured card, and its constants.

    python benchmarks/fit_sm90.py                       for each card: how far off the model is, and what plans lose
    python benchmarks/fit_sm90.py CARD --measure --fit  on a Hopper GPU: both of the next steps, some minutes
    python benchmarks/fit_sm90.py CARD --measure        times the plans: results/sm90_plans_CARD.csv (hopper_plans.py)
    python benchmarks/fit_sm90.py CARD --fit            fits: csrc/kernels/sm90/CARD.def, with what plans lose then
    python benchmarks/fit_sm90.py --csv FILE            what plans lose on each card, as a table
    python benchmarks/fit_sm90.py --predict             modelled times on other GPUs

CARD is a short name in lower case, such as h20. A new one is a row of csrc/kernels/sm90/cards.c too, and its fit begins
with the constants of the nearest card. The regret of a product is by how much the plan that is chosen takes longer than
the fastest measured one, in a CUDA graph, or by single calls where no graph was measured.

A fit changes one constant after the other, in steps that become smaller, and keeps what makes hopper_loss of c_model.c
smaller. It leaves those of KEPT, which are measured by themselves or divide work, and those of kernels that the table
does not have. Needs gcc; to measure, torch and nvfp4 built for the GPU.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import c_model
import hopper_plans
import recorded
from c_model import Struct
from hopper_plans import CARDS, GATED, Outcome, Product, Times

FOLDER = c_model.CSRC / "kernels/sm90"
MEASURE_SECONDS = 900.0
PREDICTED = (*CARDS, "gh200", "h20")
PREDICTED_M = (1, 16, 64, 128, 256, 2048)
KEPT = {
    "clock_ghz",  # measured by themselves
    "dram_tb_s",
    "dequant_tb_s",
    "l2_bytes",
    "l2_tb_s",  # no measured plan reaches them
    "ingress_b_clk",
    "min_worker",  # by these stream-K divides its work: a fit to times would move them
    "fixup_b_clk",
    "partial_b_clk",
    "worker_us",
    "unaligned_split",
    "activation_least_us",  # a layer decides, not a product
}
UNFITTED = ("nn_",)  # of products that the tables do not have
OF_GROUPS = ("grouped_", "group_", "activation_")  # constants that no other product depends on
OF_A16 = ("a16_fixed_us", "units_a16_loss", "bf16_loss", "prefill_bf16_loss")  # no NVFP4 A


class FitError(Exception):
    """A file of constants or of times that does not fit."""


# ---- files of constants ----


def path_of(card: str) -> Path:
    return FOLDER / f"{card}.def"


def read_constants(path: Path) -> dict[str, float]:
    """The constants of a card's file, which must have all that model.h has and no other."""
    found = {name: float(value) for name, value in re.findall(r"^CONSTANT\((\w+), ([^)]+)\)$", path.read_text(), re.M)}
    known = [constant.name for constant in c_model.constants_of("sm90")]
    for what, names in (("lacks", set(known) - set(found)), ("has, which model.h lacks:", set(found) - set(known))):
        if names:
            raise FitError(f"{path.name}: {what} {', '.join(sorted(names))}; must have the constants of this version")
    return found


def write_constants(card: str, on: Struct, constants: Struct, times: Times) -> None:
    name = card.upper()
    others = [key for key in constants.members() if key not in KEPT and not is_fitted(key, times)]
    text = [
        f"/* The constants of sm90/model.h on an NVIDIA {name}, fitted by `benchmarks/fit_sm90.py {card} --fit` to",
        f" * benchmarks/results/sm90_plans_{card}.csv. By how much chosen plans are slower than the fastest:",
        *(f" *   {describe(row)}" for row in lost(times, constants, on)),
        *textwrap.wrap(
            "These belong to products that the file lacks: " + ", ".join(others) + ".",
            initial_indent=" * ",
            subsequent_indent=" * ",
            width=118,
        ),
        " */",
        f'CARD("{name}", {on.sm_count}, {on.clock_mhz}, {on.memory_gb_s})',
        *(f"CONSTANT({key}, {value:.8g})" for key, value in constants.members().items()),
    ]
    path_of(card).write_text("\n".join(text) + "\n")


# ---- the fit ----


def timed_plans(times: Times, constants: Struct, on: Struct, of_groups: bool) -> c_model.TimedProducts:
    """The measured plans, as the C program takes them. A plan that the planners no longer list is left out."""
    kinds: dict[str, dict[str, float]] = {}
    listed = {product: hopper_plans.ranked(product, constants, on) for product in times}
    for product, plans in listed.items():
        for name, plan in plans.items():
            settings = {key: getattr(plan, key) for key in ("backend", "kernel", "swap_ab", "split_k", "tile_n")}
            kinds[name] = settings | {"fused": int(product.operation == GATED and name.endswith("/1"))}
    return c_model.TimedProducts(
        [
            (
                product.traits(),
                product.operation == GATED,
                [
                    kinds[plan] | {"single_us": timed.single or 0.0, "graph_us": timed.graph or 0.0}
                    for plan, timed in plans.items()
                    if plan in kinds
                ],
            )
            for product, plans in times.items()
            if bool(product.groups) == of_groups
        ]
    )


def is_fitted(name: str, times: Times) -> bool:
    """Whether the times of some product depend on this constant."""
    if name.startswith(OF_GROUPS):
        return any(product.groups for product in times)
    return not name.startswith(UNFITTED) and (
        name not in OF_A16 or any(product.a != "nvfp4" and not product.groups for product in times)
    )


def fit(constants: Struct, on: Struct, times: Times) -> Struct:
    made = constants.copy()
    for of_groups in (False, True):
        products = timed_plans(times, constants, on, of_groups)
        if not len(products.products):
            continue
        names = [
            name
            for name in made.members()
            if name not in KEPT and is_fitted(name, times) and name.startswith(OF_GROUPS) == of_groups
        ]
        descend(made, on, products, names)
    return made


def descend(constants: Struct, on: Struct, products: c_model.TimedProducts, names: Sequence[str]) -> None:
    shares = {constant.name for constant in c_model.constants_of("sm90") if constant.unit == "share"}
    best, step = products.loss(constants, on), 0.1
    while step > 0.004:
        before = best
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                old = getattr(constants, name)
                setattr(constants, name, min(float(f"{old * factor:.4g}"), 1.0 if name in shares else math.inf))
                now = products.loss(constants, on)
                if now < best:
                    best = now
                    break
                setattr(constants, name, old)
        print(f"loss {best:.4f} with steps of {step:.1%}", file=sys.stderr)
        if before - best < 0.003 * best:
            step /= 2


# ---- reports ----


def kinds_of(times: Times) -> dict[str, list[Product]]:
    found: dict[str, list[Product]] = {}
    for product in times:
        found.setdefault(f"{product.operation}, {product.a} A", []).append(product)
    return found


def off_by(times: Times, constants: Struct, on: Struct) -> float:
    """Root of the mean square of the model's relative errors of single calls."""
    errors = []
    for product, plans in times.items():
        modelled = hopper_plans.ranked(product, constants, on)
        for plan, timed in plans.items():
            if timed.single and plan in modelled:
                errors.append(math.log(modelled[plan].single_us / timed.single) ** 2)
    return math.sqrt(statistics.fmean(errors))


def lost(times: Times, constants: Struct, on: Struct) -> list[list[str]]:
    """A row for each kind of product: products, by what, mean and largest regret in per cent, the worst one."""
    rows = []
    for kind, products in kinds_of(times).items():
        for single in (False, True):
            found = hopper_plans.outcomes({product: times[product] for product in products}, constants, on, single)
            if not found:
                continue
            mean, worst = statistics.fmean(o.regret for o in found), found[0]
            size = "x".join(map(str, (worst.product.m, worst.product.n, worst.product.k)))
            above = sum(o.regret > 0.05 for o in found)
            figures = [f"{100 * mean:.2f}", f"{100 * worst.regret:.1f}", size, str(above)]
            rows.append([kind, "single calls" if single else "graphs", str(len(found)), *figures])
    return rows


HEADER = ["card", "products", "times of", "count", "mean, %", "most, %", "worst", "above 5 %"]


def describe(row: Sequence[str]) -> str:
    kind, by, count, mean, most, worst, above = row
    return f"{kind}, {count} by {by}: {mean} % on average, at most {most} % ({worst}), {above} above 5 %"


def report(card: str, times: Times, constants: Struct, on: Struct, most: int) -> None:
    print(f"{card}: {c_model.sm90_name(on)}; single calls are off by {off_by(times, constants, on):.1%} (rms)")
    for row in lost(times, constants, on):
        print(f"  {describe(row)}")
    for o in hopper_plans.outcomes(times, constants, on)[:most]:
        print(f"    {o.product}: {line_of(o)}")


def line_of(o: Outcome) -> str:
    unmeasured = f"; first, not measured: {o.unmeasured}" if o.unmeasured else ""
    return f"{o.us:.2f} us, {o.chosen}; best {o.best_us:.2f}, {o.best}; {o.regret:.1%}{unmeasured}"


def predict() -> None:
    """Prints the predicted times of the first plan of each shape."""
    print("m,n,k," + ",".join(PREDICTED))
    for m in PREDICTED_M:
        for n, k in hopper_plans.RANKED:
            plans = [
                c_model.candidates(c_model.sm90_on(on), on, c_model.traits(m, n, k))
                for on in map(c_model.device, PREDICTED)
            ]
            print(f"{m},{n},{k}," + ",".join(f"{min(each.single_us for each in found):.1f}" for found in plans))


# ---- the command ----


def gpu_name(card: str) -> str:
    """The name of this GPU, which must be of the kind that the card's name says."""
    import torch

    return checked_name(card, torch.cuda.get_device_name(), "card: is {card} but this GPU is an {name}")


def checked_name(card: str, name: str, error: str) -> str:
    """The name of a GPU, which must have the card's as a word."""
    if card.upper() not in name.upper().split():
        raise FitError(error.format(card=card, name=name) + f"; must be a GPU with the word {card.upper()} in its name")
    return name


def times_of(card: str) -> Times:
    path = hopper_plans.path_of(card)
    if not path.exists():
        raise FitError(f"card: is {card}, of which there is no {path.name}; measure it with --measure")
    checked_name(card, recorded.head(path)["card"], f"{path.name}: is of an {{name}}")
    return hopper_plans.read(card)


def run(arguments: argparse.Namespace) -> None:
    card = arguments.card
    if (arguments.measure or arguments.fit) and not card:
        raise FitError("card: is missing; must be given with --measure and --fit")
    if arguments.measure:
        gpu_name(card)
        hopper_plans.measure(hopper_plans.path_of(card), MEASURE_SECONDS)
    if arguments.fit:
        times, on = times_of(card), hopper_plans.device_of(card)
        before = c_model.sm90_on(on)
        report(f"{card} before", times, before, on, 0)
        made = fit(before, on, times)
        report(f"{card} after", times, made, on, arguments.most)
        write_constants(card, on, made, times)
    elif arguments.predict:
        predict()
    elif arguments.csv:
        rows = [[each, *row] for each in CARDS for row in lost(times_of(each), *on_card(each))]
        cards = ", ".join(recorded.head(hopper_plans.path_of(each))["card"] for each in CARDS)
        recorded.write(arguments.csv, [HEADER, *rows], cards)
    elif not arguments.measure:
        for each in [card] if card else CARDS:
            read_constants(path_of(each))
            report(each, times_of(each), *on_card(each), arguments.most)


def on_card(card: str) -> tuple[Struct, Struct]:
    on = hopper_plans.device_of(card)
    return c_model.sm90_on(on), on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", nargs="?", help="such as h200")
    parser.add_argument("--measure", action="store_true", help="time the plans on this GPU")
    parser.add_argument("--fit", action="store_true", help="fit the constants to the card's times")
    parser.add_argument("--predict", action="store_true", help="print modelled times of several GPUs")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write what plans lose on each card")
    parser.add_argument("--most", type=int, default=10, metavar="N", help="how many of the worst plans to print")
    try:
        run(parser.parse_args())
    except FitError as error:
        print(f"fit_sm90.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
