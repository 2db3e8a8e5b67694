"""Time the Triton kernel on a GPU against a copy of memory and against its peers.

    python benchmarks/kernel.py                  # every part
    python benchmarks/kernel.py shapes packed    # some: shapes packed outputs call peers host

Each case is checked against float64 before it is timed, and a failed check ends the run. Times are
medians of device events with 20/80 quantiles, after the caches were overwritten. A share is the
bytes of the case, each input read and each output written once, over time, divided by the rate of
a large copy in the same run. Peers that are not installed are named.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from kernel_peers import list_peers
from kernel_streaming import stream_arrays, stream_batches

from stream_definition import define_stream
from vtaudit.kernels import Thresholds, VTrace, vtrace
from vtaudit.kernels.launches import mark_cuts
from vtaudit.kernels.stream import scan_segments
from vtaudit.kernels.targets import PackedRows

GAMMA = 0.99
TARGETS = ("value_target", "advantage")
MOST_ERROR = 8 * 2**-24
REPETITIONS = 30
FLUSH_BYTES = 256 << 20
COPY_BYTES = 2 << 30
AHEAD_CYCLES = 400_000  # the device waits so long, and the host is ahead with its launches

SHAPES = [
    (65536, 1024),
    (524288, 128),
    (16384, 4096),
    (4096, 2048),
    (16384, 512),
    (16384, 1000),
    (1024, 65536),
    (64, 1048576),
    (16, 524288),
    (16, 65536),
    (4096, 128),
]
PEER_SHAPES = [(4096, 128), (16384, 512), (4096, 2048), (65536, 1024), (16, 65536)]
OUTPUT_SHAPES = [(65536, 1024), (1024, 65536), (64, 1048576)]

Times = tuple[float, float, float]
Windows = dict[str, torch.Tensor]


def measure(function: Callable[[], object], repetitions: int = REPETITIONS) -> Times:
    """Return median, 20 % and 80 % quantile of the device time, in seconds."""
    for _ in range(3):
        function()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repetitions)
    ]
    for start, stop in events:
        flush.zero_()
        torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        function()
        stop.record()
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(stop) / 1000 for start, stop in events]
    median, low, high = np.quantile(seconds, [0.5, 0.2, 0.8]).tolist()
    return median, low, high


def measure_call(function: Callable[[], object], repetitions: int = 300) -> float:
    """Return the median time of one call on the host, in seconds, the device kept idle before."""
    for _ in range(20):
        function()
    seconds = []
    for i in range(repetitions):
        if i % 20 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return statistics.median(seconds)


def make_windows(num_envs: int, seq_len: int, seed: int = 0) -> Windows:
    """Return windows on the device: log-ratios in [-3, 3], 0.2 % ends of both kinds."""
    random = torch.Generator("cuda").manual_seed(seed)
    shape = (num_envs, seq_len)

    def draw(kind: Callable[..., torch.Tensor] = torch.randn) -> torch.Tensor:
        return kind(shape, generator=random, device="cuda")

    behavior, ends = -draw().abs(), draw(torch.rand)
    return {
        "target_log_prob": behavior + 6 * draw(torch.rand) - 3,
        "behavior_log_prob": behavior,
        "value": draw(),
        "reward": draw(),
        "ends": (ends < 0.001).to(torch.uint8) + 2 * (ends > 0.999).to(torch.uint8),
        "bootstrap_values": draw(),
    }


def define_windows(windows: Windows) -> list[torch.Tensor]:
    """Return targets and advantages in float64, and the sums that bound their errors."""
    shape = windows["value"].shape
    discount = torch.where(windows["ends"] == 1, 0.0, float(np.float32(GAMMA)))
    is_end = windows["ends"] == 2
    is_end[:, -1] = True
    log_ratio = windows["target_log_prob"] - windows["behavior_log_prob"]
    columns = (
        log_ratio,
        windows["value"],
        windows["reward"],
        discount,
        is_end,
        windows["bootstrap_values"],
    )
    return [column.reshape(shape) for column in define_stream(*(c.reshape(-1) for c in columns))]


def check(found: VTrace, defined: list[torch.Tensor], case: str) -> float:
    """Return the largest error in units of 2^-24 of its bound's sum; end the run above 8."""
    errors = []
    for actual, expected, bound in zip(found[:2], defined[:2], defined[2:], strict=True):
        errors.append(float(((actual.double() - expected).abs() / bound).nan_to_num(1).max()))
    if not max(errors) <= MOST_ERROR:
        sys.exit(
            f"{case}: error {max(errors):.3g} of the bound's sum, expected <= {MOST_ERROR:.3g}"
        )
    return max(errors) * 2**24


def show(case: str, times: Times, count: int, rate: float, note: str = "") -> None:
    median, low, high = times
    print(
        f"{case:46} {median * 1e3:9.4f} ms [{low * 1e3:.4f}, {high * 1e3:.4f}]"
        f"  share of copy {count / median / rate:.3f}  {note}",
        flush=True,
    )


def time_shapes(rate: float) -> None:
    print("\nwindows, targets and advantages, 25 bytes a row")
    for shape in SHAPES:
        windows = make_windows(*shape)
        defined = define_windows(windows)

        def run(windows: Windows = windows) -> VTrace:
            return vtrace(**windows, gamma=GAMMA, outputs=TARGETS)

        case = f"{shape[0]} x {shape[1]}"
        error = check(run(), defined, case)
        del defined
        rows = shape[0] * shape[1]
        source = torch.empty(rows * 25 // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copied, _, _ = measure(lambda source=source, target=target: target.copy_(source))
        note = f"error {error:.1f}, a copy of these bytes {25 * rows / copied / rate:.3f}"
        show(case, measure(run), 25 * rows, rate, note)


def draw_lengths(total: int) -> np.ndarray:
    """Return log-normal lengths of 1 to 20,000 rows, about `total` in all."""
    random = np.random.default_rng(1)
    drawn = np.exp(random.normal(5, 1.2, 600_000)).round().clip(1, 20_000).astype(np.int64)
    return drawn[: int(np.searchsorted(drawn.cumsum(), total)) + 1]


def time_packed(rate: float) -> None:
    print("\npacked segments as a stream, 24 bytes a row and 4 a segment; cuts marked before")
    cases = {
        "log-normal, 64 M rows": draw_lengths(64_000_000),
        "3.2 M segments of 20 rows": np.full(3_200_000, 20),
        "one segment of 67 M rows": np.array([1 << 26]),
    }
    for case, lengths in cases.items():
        offsets = np.concatenate([[0], lengths.cumsum()])
        count = int(offsets[-1])
        is_end = torch.zeros(count, dtype=torch.bool, device="cuda")
        is_end[torch.from_numpy(offsets[1:] - 1).cuda()] = True
        rows = PackedRows(
            log_ratio=6 * torch.rand(count, device="cuda") - 3,
            value=torch.randn(count, device="cuda"),
            reward=torch.randn(count, device="cuda"),
            discount=torch.full((count,), GAMMA, device="cuda"),
            bootstrap_value=torch.randn(len(lengths), device="cuda"),
        )
        bootstrap = torch.zeros(count, device="cuda")
        bootstrap[is_end] = rows.bootstrap_value
        start = time.perf_counter()
        cuts = mark_cuts(offsets, "cuda")
        torch.cuda.synchronize()
        marked = time.perf_counter() - start

        def run(rows: PackedRows = rows, cuts: object = cuts) -> VTrace:
            return scan_segments(rows, cuts, Thresholds(), torch.float32, frozenset(TARGETS))

        defined = define_stream(*rows[:4], is_end, bootstrap)
        error = check(run(), list(defined), case)
        del defined, bootstrap
        note = f"error {error:.1f}, cuts marked in {marked * 1e3:.0f} ms on the host"
        show(case, measure(run), 24 * count + 4 * len(lengths), rate, note)


def time_outputs(rate: float) -> None:
    print("\nmore outputs, all of them with clip counts, and float64 arithmetic")
    counts = torch.zeros(3, dtype=torch.int64, device="cuda")
    asked = (*TARGETS, "rho", "c", "pg_rho", "trace_length")
    infinite = {"rho_bar": float("inf"), "outputs": TARGETS}
    cases: dict[str, tuple[int, dict[str, Any]]] = {
        "rho, c, pg_rho, trace, counts": (41, {"outputs": asked, "clip_counts": counts}),
        "everything": (53, {"clip_counts": counts}),
        "rho_bar infinite": (25, infinite),
    }
    for shape in OUTPUT_SHAPES:
        windows = make_windows(*shape)
        defined = define_windows(windows)
        for name, (size, options) in cases.items():

            def run(windows: Windows = windows, options: dict[str, Any] = options) -> VTrace:
                return vtrace(**windows, gamma=GAMMA, **options)

            if name != "rho_bar infinite":
                check(run(), defined, name)
            case = f"{shape[0]} x {shape[1]}, {name}"
            show(case, measure(run), size * shape[0] * shape[1], rate, f"{size} bytes a row")


@triton.jit
def do_nothing(a, b, c, d, e, f, g, h, i, j, k, n):  # type: ignore[no-untyped-def]
    pass


def time_call() -> None:
    print("\none call at 4096 x 128, on the host")
    windows = make_windows(4096, 128)
    pointers = [*windows.values()] * 2

    def launch_nothing() -> None:
        do_nothing[(1024,)](*pointers[:11], 524288)

    def launch_as_the_kernel() -> None:
        launch_alike(windows)

    def run() -> VTrace:
        return vtrace(**windows, gamma=GAMMA, outputs=TARGETS)

    launch_alike = make_alike()
    launch_alike(windows)
    call, alike, nothing = (measure_call(f) for f in (run, launch_as_the_kernel, launch_nothing))
    print(f"vtrace {call * 1e6:.1f} us; the same arguments to an empty kernel {alike * 1e6:.1f} us")
    print(f"ratio {call / alike:.2f}; to an empty kernel of 12 arguments {nothing * 1e6:.1f} us")


def make_alike() -> Callable[[Windows], object]:
    """Return a launch of an empty kernel with the arguments that `vtrace` gives the kernel."""
    from vtaudit.kernels import dense, stream

    names = stream.vtrace_stream_kernel.arg_names
    constants = names[names.index("M") :]
    parameters = ", ".join(f"{n}: tl.constexpr" if n in constants else n for n in names)
    folder = tempfile.mkdtemp()  # Triton reads the source of a kernel from its file
    Path(folder, "empty_kernel.py").write_text(
        "import triton\nimport triton.language as tl\n"
        "from vtaudit.kernels.triton_stream import NUMBERS\n"
        f"@triton.jit(do_not_specialize=NUMBERS)\ndef empty({parameters}):\n    pass\n"
    )
    sys.path.insert(0, folder)
    import empty_kernel

    recorded: list[tuple[object, tuple[object, ...], dict[str, object]]] = []
    kernel = stream.vtrace_stream_kernel

    class Recorder:
        def __getitem__(self, grid: object) -> Callable[..., object]:
            return lambda *args, **options: recorded.append((grid, args, options))

    def forget() -> None:
        dense._plan_call.cache_clear()
        stream.set_up.cache_clear()

    def launch(windows: Windows) -> object:
        if not recorded:
            forget()
            stream.vtrace_stream_kernel = Recorder()
            vtrace(**windows, gamma=GAMMA, outputs=TARGETS)
            stream.vtrace_stream_kernel = kernel
            forget()
        grid, args, options = recorded[0]
        return empty_kernel.empty[grid](*args, **options)

    return launch


def time_peers(rate: float) -> None:
    peers, missing = list_peers()
    print("\npeers: device time, and the host's time of one call; targets checked")
    print("not installed:", ", ".join(missing) or "none")
    for shape in PEER_SHAPES:
        windows = make_windows(*shape)
        defined = define_windows(windows)

        def run(windows: Windows = windows) -> VTrace:
            return vtrace(**windows, gamma=GAMMA, outputs=TARGETS)

        check(run(), defined, "vtrace")
        ours, call = measure(run), measure_call(run)
        show(
            f"{shape[0]} x {shape[1]} vtaudit",
            ours,
            25 * shape[0] * shape[1],
            rate,
            f"call {call * 1e6:.0f} us",
        )
        for name, prepare in peers.items():
            peer = prepare(windows, GAMMA)
            if shape[1] > peer.most_steps:
                print(f"{'':8}{name:40} not timed: it takes a launch or more for each step")
                continue
            target = peer.run()
            error = float(((peer.read(target).double() - defined[0]).abs() / defined[2]).max())
            if not error <= 1e-3:
                sys.exit(f"{name}: error {error:.3g}, expected <= 0.001")
            times, peer_call = peer.measure(measure), measure_call(peer.run, 100)
            print(
                f"{'':8}{name:40} {times[0] * 1e3:9.4f} ms, {times[0] / ours[0]:6.2f} times ours;"
                f" call {peer_call * 1e6:7.0f} us, {peer_call / call:6.2f} times ours",
                flush=True,
            )


def time_arrays() -> None:
    """NumPy arrays to NumPy arrays, as `vtaudit process` calls the kernel; a call a thread."""
    print("\nNumPy arrays through the device, float64 arithmetic, 24 bytes a row in and out")
    for threads in (1, 2, 4, 8):
        rates = [stream_arrays(4_000_000, 200, threads, backend) for backend in ("triton", "numba")]
        print(
            f"{threads} threads: {rates[0] / 1e6:.0f} M rows/s, {24 * rates[0] / 1e9:.1f} GB/s;"
            f" numba on the CPU {rates[1] / 1e6:.0f} M rows/s"
        )


def time_host() -> None:
    """Stream batches from pinned memory through the kernel and back; compare with the copies."""
    print("\nhost to host, batches of packed rows in pinned memory, 24 bytes a row in and out")
    for count in (4_000_000, 16_000_000):
        with_kernel, copies, flow = stream_batches(count, 200, 24)
        columns = [column.cuda() for column in flow.batch]
        is_end = torch.zeros(count, dtype=torch.bool, device="cuda")
        is_end[199::200] = True
        bootstrap = torch.zeros(count, device="cuda")
        bootstrap[is_end] = columns[4]
        defined = list(define_stream(*columns[:4], is_end, bootstrap))
        for slot in flow.slots:
            found = VTrace(*(column.cuda() for column in slot.results), *[None] * 7)
            check(found, defined, "host to host")
        print(
            f"{count / 1e6:.0f} M rows a batch: {with_kernel / 1e9:.1f} GB/s, the copies alone"
            f" {copies / 1e9:.1f} GB/s, ratio {with_kernel / copies:.3f}"
        )


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: torch finds none")
    parts = sys.argv[1:] or ["shapes", "packed", "outputs", "call", "peers", "host"]
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    median, low, high = measure(lambda: target.copy_(source))
    rate = 2 * COPY_BYTES / median
    print(f"copy of 2 GiB: {rate / 1e12:.3f} TB/s [{low * 1e3:.3f}, {high * 1e3:.3f} ms]")
    timed = {
        "shapes": time_shapes,
        "packed": time_packed,
        "outputs": time_outputs,
        "peers": time_peers,
    }
    for part in parts:
        if part in timed:
            timed[part](rate)
        elif part == "call":
            time_call()
        else:
            time_host()
            time_arrays()
        torch.cuda.empty_cache()
    again, _, _ = measure(lambda: target.copy_(source))
    print(f"\ncopy of 2 GiB at the end: {2 * COPY_BYTES / again / 1e12:.3f} TB/s")


if __name__ == "__main__":
    main()
