"""Makes a backend's name known to torch before 2.14 without registering the backend.

In torch before 2.14, a registered plugin changes the composite backends of programs without
dlslime: with any plugin, "cpu:gloo,cuda:gloo" gets the default type "undefined". So the name is
announced only, and the backend is registered at the first use of its name, as torch 2.14 does by
itself. Every use of a backend's name, alone or in a composite, reads the attribute of the same name
of torch's class `Backend`.
"""

from collections.abc import Callable
from typing import Any


class _NameOnUse:
    """A class attribute whose first read registers the backend."""

    def __init__(self, name: str, register: Callable[[], None]) -> None:
        self._name = name
        self._register: Callable[[], None] | None = register

    def __get__(self, instance: object, owner: type | None = None) -> str:
        register, self._register = self._register, None
        if register is not None:
            register()
        return self._name


class _PluginKey(str):
    """The key of a plugin; equal to the name in upper and in lower case.

    To decide the default type of a composite backend, torch before 2.14 looks for the upper-case
    key among lower-case names, and so never finds a plain string.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __hash__(self) -> int:
        return str.__hash__(self)


class _Plugins(dict[str, Any]):
    """torch's table of plugins; a look-up of the backend's key registers the backend.

    Before the first look-up the table lacks the key: torch counts keys to decide the default type
    of a composite backend.
    """

    def __init__(self, plugins: dict[str, Any], key: str, register: Callable[[], None]) -> None:
        super().__init__(plugins)
        self._key = key
        self._register = register

    def _ask_for(self, key: object) -> None:
        if key == self._key and not super().__contains__(key):
            self._register()

    def __contains__(self, key: object) -> bool:
        self._ask_for(key)
        return super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        self._ask_for(key)
        if super().__contains__(key):
            return super().__getitem__(key)
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._ask_for(key)
        return super().get(key, default)


def announce(name: str, devices: list[str], register: Callable[[], None]) -> None:
    """Put a backend's name into torch's tables without registering the backend.

    Args:
        name: of the backend, in lower case.
        devices: device types that the backend supports, such as "cpu".
        register: registers the backend; called at the first use of the name.
    """
    from torch.distributed.distributed_c10d import Backend, ProcessGroup

    if name in Backend.backend_list:
        return
    setattr(Backend, name.upper(), _NameOnUse(name, register))
    Backend._plugins = _Plugins(Backend._plugins, name.upper(), register)
    Backend.backend_list.append(name)
    Backend.backend_capability[name] = list(devices)
    Backend.backend_type_map[name] = ProcessGroup.BackendType.CUSTOM


def put_first(name: str) -> None:
    """Move the registered plugin `name` to the front of torch's table.

    torch considers the first plugin for the default type of a composite backend.
    """
    from torch.distributed.distributed_c10d import Backend

    plugin = Backend._plugins.pop(name.upper())
    others = dict(Backend._plugins)
    Backend._plugins.clear()
    Backend._plugins[_PluginKey(name.upper())] = plugin
    Backend._plugins.update(others)
