"""The open questions that only a GPU can answer, and a line for each answer.

docs/cuda.md says, question by question, the consequences of each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu.committed.waits import PATTERNS

Answers = dict[str, Any]
NOT_ANSWERED = "not answered"
KINDS = {"8": "a stream of its own", "legacy": "the default stream", "1": "one hardware queue"}
COLUMNS = ("event_query", "write_value", "copy", "batch")


def _yes(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value))  # type: ignore[call-overload]


def _remap(a: Answers) -> str:
    names = {"buffer_id": "buffer id", "block_id": "block id", "handle": "handle"}
    told = [f"by {text}: {_yes(a[f'driver.remap.{name}_differs'])}" for name, text in names.items()]
    return "; ".join(told)


def _reuse(a: Answers) -> str:
    same = a["driver.reuse.same_address"]
    return _yes(a["driver.reuse.buffer_id_differs"]) + ("" if same else " (another address)")


def _small(a: Answers) -> str:
    if a["driver.ipc_small.peer_open"] != "ok":
        return f"it can't be opened: {a['driver.ipc_small.peer_open']}"
    where = a["driver.ipc_small.peer_opened_offset_in_range"]
    found = a["driver.ipc_small.peer_buffer_offset_in_range"]
    return f"opened at {where} of its range, in which the buffer is at {found}"


def _twice(a: Answers) -> str:
    again = a["driver.ipc_twice.open_again"]
    freed = a.get("driver.ipc_freed.open_of_the_new", NOT_ANSWERED)
    return f"again: {again}; of what was allocated where other was freed: {freed}"


def _segments(a: Answers) -> str:
    names = ("descriptor", "fabric", "legacy_ipc", "piece_bytes")
    return ", ".join(f"{name} {a[f'driver.expandable.{name}']}" for name in names)


def _descriptors(a: Answers) -> str:
    scope = a["driver.descriptor.ptrace_scope"]
    fetched = a["driver.descriptor.pidfd_getfd"]
    imported = a.get("driver.descriptor.imported", "not tried")
    right = _yes(a.get("driver.descriptor.right", False))
    return f"{fetched}; imported: {imported}; right bytes: {right} (ptrace_scope {scope})"


def _batches(a: Answers) -> str:
    def one(count: int) -> str:
        prefix = f"driver.batch_{count}."
        if f"{prefix}ended" in a:
            return f"{count}: {a[f'{prefix}ended']}"
        if f"{prefix}result" not in a:
            return f"{count}: {NOT_ANSWERED}"
        for part in ("result", "settled"):
            if a[f"{prefix}{part}"] != "ok":
                return f"{count}: {a[f'{prefix}{part}']}"
        if not a[f"{prefix}right"]:
            return f"{count}: wrong bytes"
        return f"{count}: {a[f'{prefix}us_per_copy']} us each"

    if not any(key.startswith("driver.batch_") for key in a):
        return NOT_ANSWERED
    return "; ".join(one(count) for count in (1024, 8192, 60000))


def _registered(a: Answers) -> str:
    if a["driver.registered.register"] != "ok":
        return f"no: {a['driver.registered.register']}"
    return f"yes; a stream's write is seen: {_yes(a['driver.registered.host_sees_it'])}"


def _row(name: str, row: Answers) -> str:
    """Return a text on a row of the lock matrix; "" if the row held nothing up."""
    held = [column for column in COLUMNS if row.get(column) == "blocked"]
    wrong = [f"{column} {row[column]}" for column in COLUMNS if _is_error(row.get(column))]
    notes = [row["error"]] if "error" in row else []
    notes += ["let go from outside"] if "rescued" in row else []
    notes += [f"{', '.join(row['stuck'])} stuck"] if "stuck" in row else []
    told = [f"holds up {'+'.join(held)}"] if held else []
    return " ".join([name, *told, *wrong, *notes]) if told or wrong or notes else ""


def _is_error(value: object) -> bool:
    return isinstance(value, str) and value != "blocked"


def _blocked(a: Answers, setting: str) -> str:
    """Return a text on dlslime's calls held up, and the program's calls that hold up."""
    prefix = f"lock.{setting}."
    found = {key[len(prefix) :]: row for key, row in a.items() if key.startswith(prefix)}
    error = found.pop("error", None)
    found.pop("streams", None)
    told = [text for name, row in found.items() if (text := _row(name, row))]
    told += [error] if error else []
    if not found:
        return error or NOT_ANSWERED
    return f"of {len(found)} calls " + ("; ".join(told) or "none holds ours up")


def _stops(loading: str) -> Callable[[Answers], str]:
    def answer(a: Answers) -> str:
        texts = {kind: _blocked(a, f"{loading}.{kind}") for kind in ("8", "legacy", "1")}
        told = {kind: text for kind, text in texts.items() if text != NOT_ANSWERED}
        lines = [f"{KINDS[kind]}: {text}" for kind, text in told.items()]
        return " | ".join(lines) or NOT_ANSWERED

    return answer


def _shared_queues(a: Answers) -> str:
    told = []
    for key, one in a.items():
        if key.startswith("lock.") and key.endswith(".streams") and "move" in one:
            fast = f"{one['high_priority_move']} of {one['of_high_priority']} of high priority"
            name = key.removeprefix("lock.").removesuffix(".streams")
            told.append(f"{name} {one['move']} of {one['of']} and {fast}")
    return "; ".join(told) or NOT_ANSWERED


def _patterns(way: str) -> Callable[[Answers], str]:
    def answer(a: Answers) -> str:
        prefix = f"committed.pattern.{way}."
        found = {key[len(prefix) :]: one for key, one in a.items() if key.startswith(prefix)}
        bad = [
            f"{name} {setting}: {outcome}"
            for name, one in found.items()
            for setting, outcome in one.items()
            if outcome != "ok"
        ]
        if not found:
            return NOT_ANSWERED
        return f"{len(found)} of {len(PATTERNS)} patterns run: {'; '.join(bad) or 'all end'}"

    return answer


def _us(a: Answers, key: str) -> str:
    return str(a.get(key, "?"))


def _cost(a: Answers) -> str:
    prefix = "committed.cost.committed."
    if not any(key.startswith(prefix) for key in a):
        return NOT_ANSWERED
    names = ("calls.isend_us", "calls.recv_wait_us", "calls.send_wait_us")
    host = ", ".join(f"{name[6:-3]} {_us(a, prefix + name)}" for name in names)
    stream = _us(a, prefix + "calls.stream_us_per_message")
    plain = _us(a, prefix + "plain.stream_us_per_copy")
    trips = ", ".join(
        f"{way} {_us(a, f'committed.cost.{way}.large_one_way.us_64_kib')}"
        for way in ("committed", "words", "host")
    )
    return f"us: host {host}; stream {stream} (a copy alone {plain}); 64 KiB one way {trips}"


def _processors(a: Answers) -> str:
    if a["busy.proved"]:
        return "no"
    ours = ("small_message_moves", "large_message_moves", "kernel_still_spins")
    told = ", ".join(f"{part} {a[f'busy.{part}']}" for part in ours)
    if a.get("busy.plain_copy_moves") is False and not a["busy.large_message_moves"]:
        return f"as the driver's own copy within this GPU, which needs them: {told}"
    return f"not shown: {told}"


def _message(a: Answers) -> str:
    def one(way: str) -> str:
        prefix = f"fit.bandwidth.plain.{way}."
        if f"{prefix}a_us" not in a:
            return f"{way} not measured"
        return f"{way} {a[f'{prefix}a_us']} us + {a[f'{prefix}gb_per_s']} GB/s"

    if "fit.bandwidth.plain.ours.a_us" not in a:
        return NOT_ANSWERED
    return "; ".join(one(way) for way in ("ours", "ipc", "copy"))


def _pages(a: Answers) -> str:
    def one(variant: str, way: str) -> str:
        prefix = f"fit.pages.{variant}.{way}."
        return f"{_us(a, f'{prefix}a_us')} us + {_us(a, f'{prefix}ns_per_page')} ns"

    if not any(key.startswith("fit.pages.") for key in a):
        return NOT_ANSWERED
    return (
        f"kernel {one('plain', 'ours')}; copies {one('copies', 'ours')}; "
        f"torch's gather {one('plain', 'gather')}"
    )


def _profile(a: Answers) -> str:
    seen = a["profile.receiver"]
    waits = seen["host_waits"] or "none"
    return f"kernels {seen['kernels'] or 'none'}, waits of the host {waits}"


QUESTIONS: list[tuple[str, Callable[[Answers], str]]] = [
    ("Does another piece at the same address show?", _remap),
    ("Has memory that lies where other was freed another buffer id?", _reuse),
    ("Where does a peer find a small cudaMalloc?", _small),
    ("What does opening an IPC handle again give?", _twice),
    ("How can torch's expandable segments be shared?", _segments),
    ("Does pidfd_getfd give a peer the descriptor of a piece?", _descriptors),
    ("How large may a batch of copies be?", _batches),
    ("Can words in memory of two processes be registered?", _registered),
    ("What does a stream that waits stop, with kernels loaded late?", _stops("LAZY")),
    ("What does a stream that waits stop, with kernels loaded early?", _stops("EAGER")),
    ("How many of 40 streams move beside one that waits?", _shared_queues),
    ("Do committed waits end in every pattern?", _patterns("committed")),
    ("Do waits for a processor's copy (DLSLIME_STREAM_WAITS=on) end?", _patterns("words")),
    ("What do committed waits cost?", _cost),
    ("Do messages need the GPU's processors?", _processors),
    ("What does a message cost?", _message),
    ("What does a page of a batch cost?", _pages),
    ("What does a profiler see in exchanges?", _profile),
]


def answered(found: dict[str, Any]) -> list[dict[str, str]]:
    """Return each question with its line, as far as the answers go."""
    lines = []
    for question, answer in QUESTIONS:
        try:
            text = answer(found["answers"])
        except (KeyError, TypeError):
            text = NOT_ANSWERED
        lines.append({"question": question, "answer": text})
    return lines
