"""The open questions that only a GPU can answer, and the line that each gets.

docs/cuda.md says, question by question, what is to be done with each answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Answers = dict[str, Any]
NOT_ANSWERED = "not answered"
SETTINGS = [f"{loading}.{queues}" for loading in ("LAZY", "EAGER") for queues in ("1", "8")]
COLUMNS = ("event_query", "write_value", "copy", "batch")


def _yes(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value))  # type: ignore[call-overload]


def _remap(a: Answers) -> str:
    ids, handles = a["driver.remap.buffer_id_differs"], a["driver.remap.handle_differs"]
    return f"by buffer id: {_yes(ids)}; by handle: {_yes(handles)}"


def _reuse(a: Answers) -> str:
    same = a["driver.reuse.same_address"]
    return _yes(a["driver.reuse.buffer_id_differs"]) + ("" if same else " (another address)")


def _small(a: Answers) -> str:
    if a["driver.ipc_small.peer_open"] != "ok":
        return f"it can't be opened: {a['driver.ipc_small.peer_open']}"
    where = a["driver.ipc_small.peer_opened_offset_in_range"]
    right = _yes(a["driver.ipc_small.peer_buffer_is_at_the_opened_address"])
    return f"at {where} of its range; the buffer is at the opened address: {right}"


def _twice(a: Answers) -> str:
    again = a["driver.ipc_twice.open_again"]
    freed = a.get("driver.ipc_freed.open_of_the_new", NOT_ANSWERED)
    return f"again: {again}; of what was allocated where other was freed: {freed}"


def _segments(a: Answers) -> str:
    names = ("descriptor", "fabric", "legacy_ipc", "piece_bytes")
    return ", ".join(f"{name} {a[f'driver.expandable.{name}']}" for name in names)


def _descriptors(a: Answers) -> str:
    scope = a["driver.descriptor.ptrace_scope"]
    return f"{a['driver.descriptor.pidfd_getfd']} (ptrace_scope {scope})"


def _batches(a: Answers) -> str:
    def one(count: int) -> str:
        ended = a.get(f"driver.batch_{count}.ended")
        if ended:
            return f"{count}: {ended}"
        right = a[f"driver.batch_{count}.right"]
        each = a[f"driver.batch_{count}.us_per_copy"]
        result = a[f"driver.batch_{count}.result"]
        return f"{count}: {f'{each} us each' if right else result}"

    return "; ".join(one(count) for count in (1024, 8192, 60000))


def _registered(a: Answers) -> str:
    if a["driver.registered.register"] != "ok":
        return f"no: {a['driver.registered.register']}"
    return f"yes; a stream's write is seen: {_yes(a['driver.registered.host_sees_it'])}"


def _blocked(a: Answers, setting: str) -> str:
    """Which calls of ours are held up, by which calls of the program."""
    prefix = f"lock.{setting}."
    rows = {key[len(prefix) :]: row for key, row in a.items() if key.startswith(prefix)}
    told = []
    for name, row in rows.items():
        held = [
            column for column in COLUMNS if isinstance(row, dict) and row.get(column) == "blocked"
        ]
        if held:
            told.append(f"{name} holds up {'+'.join(held)}")
        elif isinstance(row, dict) and ("error" in row or "rescued" in row):
            told.append(f"{name}: {row.get('error', 'let go from outside')}")
    if not rows:
        return NOT_ANSWERED
    return "; ".join(told) or "nothing is held up"


def _stops(loading: str) -> Callable[[Answers], str]:
    def answer(a: Answers) -> str:
        texts = {queues: _blocked(a, f"{loading}.{queues}") for queues in ("8", "1")}
        if set(texts.values()) == {NOT_ANSWERED}:
            return NOT_ANSWERED
        return "; ".join(f"{queues} queues: {text}" for queues, text in texts.items())

    return answer


def _shared_queues(a: Answers) -> str:
    found = {setting: a.get(f"lock.{setting}.streams") for setting in SETTINGS}
    told = [f"{name} {one['move']} of {one['of']}" for name, one in found.items() if one]
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
        return f"{len(found)} patterns, all end" if not bad else "; ".join(bad)

    return answer


def _cost(a: Answers) -> str:
    prefix = "committed.cost.committed."
    names = ("calls.isend_us", "calls.recv_wait_us", "calls.send_wait_us")
    host = ", ".join(f"{name[6:-3]} {a[prefix + name]}" for name in names)
    stream = a[prefix + "calls.stream_us_per_message"]
    plain = a[prefix + "plain.stream_us_per_copy"]
    trips = ", ".join(
        f"{way} {a[f'committed.cost.{way}.large_one_way.us_64_kib']}"
        for way in ("committed", "host")
    )
    return f"us: host {host}; stream {stream} (a copy alone {plain}); 64 KiB one way {trips}"


def _processors(a: Answers) -> str:
    if a["busy.proved"]:
        return "no"
    parts = ("small_message_moves", "large_message_moves", "kernel_still_spins")
    return "not shown: " + ", ".join(f"{part} {a[f'busy.{part}']}" for part in parts)


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
        return f"{a[f'{prefix}a_us']} us + {a[f'{prefix}ns_per_page']} ns"

    return (
        f"kernel {one('plain', 'ours')}; copies {one('copies', 'ours')}; "
        f"torch's gather {one('plain', 'gather')}"
    )


def _profile(a: Answers) -> str:
    seen = a["profile.receiver"]
    return f"kernels {seen['kernels'] or 'none'}, waits {seen['host_waits'] or 'none'}"


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
