"""A progress bar on a terminal, for measurements that take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def shown(steps: Sequence[str]) -> Iterator[str]:
    """Yield the names of steps, with a bar on stderr that names the current one.

    Without a terminal nothing is shown. The bar is drawn once a second: the processors are for the
    measurements.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=1,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=len(steps))
        for step in steps:
            bar.update(task, description=step)
            yield step
            bar.advance(task)
