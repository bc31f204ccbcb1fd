"""Measure the links between the ranks of a job, and write them as a topology that jobs name.

    torchrun --nproc-per-node 4 -m schedc.runtime.links -o topology.toml --plan plan.json

Every pair of ranks whose link is wanted sends messages of several sizes to and fro; a line through their times is the link's
latency and bandwidth, each way. Rank 0 alone reads the plan, prints and writes. Run it where the training will run, and while
nothing else does; then `[topology] path = "topology.toml"` in the job.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput, SchedcError, Unsupported
from schedc.formats.links import links_toml
from schedc.formats.plan.plan_file import read_plan
from schedc.io.outputs import check_outputs, write_atomically
from schedc.ir import Link
from schedc.runtime.common.failure import TransferFailed
from schedc.runtime.common.groups import make_default_group
from schedc.runtime.profiling.pairs import Agenda, LinkMeasurement, measure_links
from schedc.units import format_bytes, format_duration_ns, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


DEFAULT_SIZES = "4 KiB, 64 KiB, 1 MiB, 4 MiB, 16 MiB"
LARGE_RESIDUAL = 0.2
"""From here on a line does not describe the link, and a person should know."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except SchedcError as error:
        rank = os.environ.get("RANK", "0")
        print(f"schedc.runtime.links, rank {rank}: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="schedc.runtime.links", description="Measure the links between the ranks of a job.")
    parser.add_argument("-o", "--output", required=True, metavar="TOPOLOGY", help="where rank 0 writes the topology (TOML)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plan", metavar="PLAN", help="measure the links that this plan uses, with the sizes of its messages too")
    which.add_argument(
        "--pairs", choices=("neighbours", "all"), default="neighbours", help="without a plan: neighbours on the ring"
    )
    parser.add_argument("--sizes", default=DEFAULT_SIZES, help="message sizes, separated by commas (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="messages of each size, each way (default: %(default)s)")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="what carries the messages")
    parser.add_argument("--sites", metavar="N,N", help="ranks per datacenter, as the topology is to have them: 4,4")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds that a rank may be silent (default: %(default)s)")
    return parser


def _run(options: argparse.Namespace) -> None:
    if options.backend == "nccl" and not torch.cuda.is_available():
        raise Unsupported("--backend nccl: found no GPU in this process; use --backend gloo")
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    owns = not dist.is_initialized()
    try:
        if owns:
            make_default_group(options.timeout)
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout))
    except ValueError as error:
        raise InvalidInput(f"no process group: {error}; start with torchrun") from error
    except RuntimeError as error:
        raise TransferFailed(f"a rank meets the others: one has failed or did not come in {options.timeout:g} s") from error
    try:
        agenda = _agreed(options, control)
        links = measure_links(agenda, control=control, backend=options.backend, device=device, timeout_s=options.timeout)
        if control.rank() == 0:
            _report(links, agenda, options)
    finally:
        if owns:
            dist.destroy_process_group()


def _agreed(options: argparse.Namespace, control: dist.ProcessGroup) -> Agenda:
    """What rank 0 says there is to do; its refusal is everybody's."""
    task = [_agenda_or_refusal(options, control.size()) if control.rank() == 0 else None]
    try:
        dist.broadcast_object_list(task, src=0, group=control)
    except RuntimeError as error:
        raise TransferFailed("receiving what to measure: rank 0 has ended or failed, and its own message says why") from error
    (agreed,) = task
    assert agreed is not None
    if isinstance(agreed, SchedcError):
        raise agreed
    return agreed


def _agenda_or_refusal(options: argparse.Namespace, ranks: int) -> Agenda | SchedcError:
    """What rank 0 has found there is to do; or why not."""
    try:
        check_outputs({"-o": Path(options.output)}, () if options.plan is None else (Path(options.plan),))
        if options.repeats < 1:
            raise InvalidInput(f"--repeats: found {options.repeats}, expected at least 1")
        try:
            sizes = set(map(parse_bytes, options.sizes.split(",")))
        except ValueError as error:
            raise InvalidInput(f"--sizes: found {options.sizes!r}, {error}, and others after commas") from error
        _sites(options, ranks)
        if options.plan is None:
            ring = ((rank, (rank + 1) % ranks) for rank in range(ranks))
            used = {*(ring if options.pairs == "neighbours" else combinations(range(ranks), 2))}
        else:
            problem = read_plan(options.plan).problem
            if problem.ranks != ranks:
                raise InvalidInput(f"{options.plan}: is for {problem.ranks} ranks, this job has {ranks}; start as many")
            used = {(link.source, link.destination) for link in problem.links}
            messages = {size for stage in problem.stages for size in (stage.message_bytes, stage.gradient_message_bytes)}
            sizes |= messages - {0}
        pairs = sorted({(min(pair), max(pair)) for pair in used if pair[0] != pair[1]})
        if not pairs:
            raise InvalidInput("there is no link to measure: found one rank, or a plan without transfers between ranks")
        if len(sizes) < 2:
            raise InvalidInput(f"--sizes: found {options.sizes!r}, expected two sizes or more, as a line goes through two points")
    except SchedcError as error:
        return error
    return Agenda(pairs=tuple(pairs), sizes=tuple(sorted(sizes)), repeats=options.repeats)


def _sites(options: argparse.Namespace, ranks: int) -> tuple[int, ...]:
    if options.sites is None:
        return ()
    try:
        sites = tuple(int(part) for part in options.sites.split(","))
    except ValueError:
        sites = ()
    if not sites or min(sites) < 1 or sum(sites) != ranks:
        raise InvalidInput(f"--sites: found {options.sites!r}, expected ranks per datacenter that add up to {ranks}, as in 4,4")
    return sites


def _report(links: Sequence[LinkMeasurement], agenda: Agenda, options: argparse.Namespace) -> None:
    """Print what was found and write the file."""
    print(f"{'link':>9} {'latency':>12} {'bandwidth':>14} {'residual':>9}  worst size", flush=True)
    for link in links:
        fit, (size, error) = link.fit, link.fit.worst
        bandwidth = "–" if fit.bytes_per_second is None else f"{fit.bytes_per_second / 1e9:.4g} GB/s"
        print(
            f"{link.source:>4} → {link.destination:<2} {format_duration_ns(fit.latency_ns):>12} {bandwidth:>14}"
            f" {fit.residual:>9.1%}  {error:+.1%} at {format_bytes(size)}"
        )
        if fit.residual > LARGE_RESIDUAL:
            print("          a line does not describe this link well: measure with --sizes around those of your messages")
    halved = [link for link in links if not link.one_clock]
    notes = [
        f"Measured by schedc.runtime.links: {options.backend}, ping-pong, median of {agenda.repeats}, messages of"
        f" {', '.join(map(format_bytes, agenda.sizes))}.",
        "A link's note is the root mean square of the line's relative errors over the sizes.",
    ]
    if halved:
        notes.append("Where a note says so, the latency is half of the round trip's: there is no common clock.")
    content = links_toml(
        [
            (
                Link(
                    source=link.source,
                    destination=link.destination,
                    latency_ns=link.fit.latency_ns,
                    bytes_per_second=link.fit.bytes_per_second,
                ),
                f"residual {link.fit.residual:.1%}" + ("" if link.one_clock else ", latency halved"),
            )
            for link in links
        ],
        sites=_sites(options, dist.get_world_size()),
        notes=notes,
    )
    write_atomically(options.output, content)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    sys.exit(main())
