"""The known devices with their peaks and sources, and the shares that predictions assume: the tables of docs/model-costs.md.

Run it as `python benchmarks/architectures/devices.py`.
"""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from schedc.costs.devices import DEVICES
from schedc.costs.efficiency import efficiency_of


def main() -> None:
    """Print the tables."""
    out = Console(width=132, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("device")
    for header in ("TFLOPS", "TF32", "GiB", "TB/s", "link GB/s", "group", "network GB/s"):
        table.add_column(header, justify="right")
    for name, device in DEVICES.items():
        peaks = (device.flops_per_s / 1e12, device.tf32_flops_per_s / 1e12)
        memory = (round(device.memory_mib / 1024, 1), device.memory_bytes_per_s / 1e12)
        links = (device.link_bytes_per_s / 1e9, device.group, device.network_bytes_per_s / 1e9)
        table.add_row(name, *(f"{number:g}" for number in (*peaks, *memory, *links)))
    out.print(table)
    out.print()
    for name, device in DEVICES.items():
        out.print(f"{name}: {device.title}. {device.source}", soft_wrap=True)
    out.print()
    for name in ("", *DEVICES):
        rates = efficiency_of(name)
        if not name or rates.table:
            shares = ", ".join(f"{key} {share:g}" for key, share in asdict(rates).items() if isinstance(share, float))
            out.print(f"{name}, products by its table: {shares}" if name else shares, soft_wrap=True)


if __name__ == "__main__":
    main()
