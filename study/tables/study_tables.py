"""Tables of what `study bench startup`, `profile` and `precision` wrote. A file that is missing has no table."""

from collections.abc import Iterator

from study import results
from study.bench.cases import SETTINGS
from study.bench.floor import H200, NOTHING, floor_parts
from study.bench.results import Row, case_of
from study.tables.bench_tables import heading, line

SHOWN = 12  # kernels of a profile
PARTS = {  # how the names of our kernels begin: what of the floor they are for
    "forward": "forward", "statistics": "forward", "join": "forward", "pool": "forward", "cotangent": "backward",
    "before": "backward", "weight": "backward", "patch": "backward", "data": "backward", "head": "head",
    "combination": "updates",
}  # fmt: skip


def startup(name: str) -> Iterator[str]:
    content = results.read_if_there(name)
    rows = [row for row in content["rows"] if "cold_seconds" in row]
    if rows:
        yield results.caption(content)
        yield from heading("setting", "method", "cold, s", "warm, s", "process, cold", "process, warm", words=2)
    for row in rows:
        times = (row[f"{cache}_{kind}"] for kind in ("seconds", "process_seconds") for cache in ("cold", "warm"))
        yield line(row["setting"], case_of(row).method_label, *(f"{seconds:.1f}" for seconds in times))


def profile(name: str) -> Iterator[str]:
    content = results.read_if_there(name)
    rows = [row for row in content["rows"] if "busy_ms" in row]
    if rows:
        yield results.caption(content)
    for row in rows:
        busy = f"busy for {row['busy_ms']:.2f} ({row['busy_ms'] / row['ms']:.0%}), {row['launches']:,.0f} calls"
        yield f"\n**{row['setting']}, {case_of(row).method_label}, {row['steps']} steps**: {row['ms']:.2f} ms, {busy}\n"
        if "H200" in content["device"] and row["setting"] in SETTINGS:
            yield from against_floor(row)
        yield from kernels(row)


def kernels(row: Row) -> Iterator[str]:
    yield from heading("kernel", "calls", "ms", "share")
    for kernel in row["kernels"][:SHOWN]:
        yield line(
            f"`{kernel['name'] or 'without a name'}`",
            f"{kernel['calls']:,.0f}",
            f"{kernel['ms']:.3f}",
            f"{kernel['share']:.1%}",
        )


def against_floor(row: Row) -> Iterator[str]:
    """Compare what the kernels of each part take with the least that they need."""
    case = case_of(row)
    least = floor_parts(case.setting, case.method, case.steps, case.window, case.tasks)
    taken: dict[str, float] = {}
    for kernel in row["kernels"]:
        part = PARTS.get(kernel["name"].split("_")[0], "episodes, Adam")
        taken[part] = taken.get(part, 0.0) + kernel["ms"]
    yield from heading("part", "ms", "floor, ms", "floor / measured")
    for part, ms in taken.items():
        bound = max(least.get(part, NOTHING).milliseconds(H200))
        name = "all else (episodes, Adam)" if part == "episodes, Adam" else part
        yield line(name, f"{ms:.3f}", f"{bound:.3f}", f"{bound / ms:.0%}" if ms else "")
    yield ""


def precision(name: str) -> Iterator[str]:
    content = results.read_if_there(name)
    rows = [row for row in content["rows"] if row.get("relative_error") is not None]
    if not rows:
        return
    precisions = list(dict.fromkeys(row["precision"] for row in rows))
    found = {(row["start"], case_of(row).method_label, row["precision"]): row for row in rows}
    yield results.caption(content)
    yield from heading("start", "method", *precisions, "halves of a batch", words=2)
    for start, method in dict.fromkeys(key[:2] for key in found):
        these = [found.get((start, method, one)) for one in precisions]
        apart = next(row["halves_difference"] for row in these if row)
        yield line(start, method, *(_error(row) for row in these), f"{apart:.2f}")


def _error(row: Row | None) -> str:
    return f"{row['relative_error']:.1e} ({row['cosine']:.5f})" if row else ""
