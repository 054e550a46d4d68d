"""Makes torch before 2.14 know a backend's name without registering it.

There, a registered plugin changes what composite backends of *other* programs become: with any
plugin present, "cpu:gloo,cuda:gloo" gets the default type "undefined". So the name is announced,
and registered when somebody first names it, as torch 2.14 does by itself. Every use of a backend's
name, alone or in a composite, reads the attribute of that name on torch's `Backend` class.
"""

from collections.abc import Callable
from typing import Any


class _NameOnUse:
    """A class attribute that registers the backend when it is read."""

    def __init__(self, name: str, register: Callable[[], None]) -> None:
        self._name = name
        self._register: Callable[[], None] | None = register

    def __get__(self, instance: object, owner: type | None = None) -> str:
        register, self._register = self._register, None
        if register is not None:
            register()
        return self._name


class _PluginKey(str):
    """The key of a plugin, equal to its name in either case.

    torch before 2.14 looks the upper-case key up among lower-case names when it decides the default
    type of a composite backend, and so never finds it.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.upper() == other.upper()

    def __hash__(self) -> int:
        return str.__hash__(self)


class _Plugins(dict[str, Any]):
    """torch's table of plugins, which registers the backend when somebody asks for it by its key.

    Until then the key is not in it: torch counts keys to decide what a composite backend becomes.
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
    """Put `name` into torch's tables; `register` runs at its first use."""
    from torch.distributed.distributed_c10d import Backend, ProcessGroup

    if name in Backend.backend_list:
        return
    setattr(Backend, name.upper(), _NameOnUse(name, register))
    Backend._plugins = _Plugins(Backend._plugins, name.upper(), register)
    Backend.backend_list.append(name)
    Backend.backend_capability[name] = list(devices)
    Backend.backend_type_map[name] = ProcessGroup.BackendType.CUSTOM


def put_first(name: str) -> None:
    """Make `name` the plugin that torch considers for a composite backend's default type."""
    from torch.distributed.distributed_c10d import Backend

    plugin = Backend._plugins.pop(name.upper())
    others = dict(Backend._plugins)
    Backend._plugins.clear()
    Backend._plugins[_PluginKey(name.upper())] = plugin
    Backend._plugins.update(others)
