"""`Patches`: changes to classes of transformers that can be undone without undoing those of other libraries."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from threading import RLock
from types import MethodType
from typing import Any

import transformers

from lz_penalty.errors import BackendUnavailableError

__all__ = ["Change", "Patches"]

Change = tuple[type, str, Callable[..., Any]]  # a class, its method, and a function from the method to the changed one
_ABSENT = object()


class _Wrapped:
    """A method that we have wrapped.

    Attributes:
        before: the class's own attribute of this name; `_ABSENT` if it inherits the method.
        wrapper: our function in its place.
        active: whether the wrapper calls the changed method; else it calls the original. An inactive wrapper also calls the
            changed method if it is the class's method while all changes are in effect: then another library had replaced
            it and has put it back.
    """

    def __init__(self, owner: type, name: str, change: Callable[..., Any], is_made: Callable[[], bool]) -> None:
        self.before = vars(owner).get(name, _ABSENT)
        self.active = False

        def is_on() -> bool:
            return self.active or (is_made() and vars(owner).get(name) is self.wrapper)

        original = getattr(owner, name)
        changed = change(original)
        self.wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def wait(*args: Any, **kwargs: Any) -> Any:
                return await (changed if is_on() else original)(*args, **kwargs)

            self.wrapper = wait
        else:

            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                return (changed if is_on() else original)(*args, **kwargs)

            self.wrapper = call


class Patches:
    """Wraps methods, and sets class attributes to `None`, until `undo`. Any number of threads may use it.

    Another library may wrap our wrapper, or replace it. Its function is never taken away: `undo` then only makes our
    wrapper call the original.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.made = False
        self._wrapped: dict[tuple[type, str], _Wrapped] = {}
        self._fields: dict[tuple[type, str], Any] = {}  # what the class had before

    def make(self, changes: Iterable[Change], fields: Iterable[tuple[type, str]] = ()) -> None:
        """Make all these changes, or none of them and raise. A change that is in effect is not made again.

        Raises:
            BackendUnavailableError: this version of transformers does not have one of the methods.
        """
        with self.lock:
            wanted = list(changes)
            _check(wanted)
            new = {
                (owner, name): _Wrapped(owner, name, change, lambda: self.made)
                for owner, name, change in wanted
                if not self._is_reached(owner, name)
            }
            new_fields = {
                (owner, name): vars(owner).get(name, _ABSENT)
                for owner, name in fields
                if (owner, name) not in self._fields
            }
            try:
                for (owner, name), patch in new.items():
                    setattr(owner, name, patch.wrapper)
                for owner, name in new_fields:
                    setattr(owner, name, None)
            except BaseException:
                for place, patch in new.items():
                    _put_back(place, patch.wrapper, patch.before)
                for place, before in new_fields.items():
                    _put_back(place, None, before)
                raise
            for place in new.keys() & self._wrapped.keys():
                self._wrapped[place].active = False  # another library has replaced this one; it may put it back
            self._wrapped |= new
            self._fields |= new_fields
            self.made = True
            for patch in self._wrapped.values():
                patch.active = True

    def undo(self) -> None:
        """Undo all changes."""
        with self.lock:
            self.made = False
            for patch in self._wrapped.values():
                patch.active = False
            for place, patch in list(self._wrapped.items()):
                if _put_back(place, patch.wrapper, patch.before):
                    del self._wrapped[place]
            for place, before in list(self._fields.items()):
                _put_back(place, None, before)
                del self._fields[place]

    def _is_reached(self, owner: type, name: str) -> bool:
        """Return whether a call of this method reaches our wrapper."""
        patch = self._wrapped.get((owner, name))
        return patch is not None and _leads_to(getattr(owner, name), patch.wrapper)


def _check(changes: Iterable[Change]) -> None:
    missing = [f"{owner.__name__}.{name}" for owner, name, _ in changes if not hasattr(owner, name)]
    if missing:
        raise BackendUnavailableError(
            f"transformers {transformers.__version__} has no {', '.join(missing)}: nothing was changed. Use a version of "
            "transformers that lz-penalty knows, such as 5.23, or a newer lz-penalty."
        )


def _put_back(place: tuple[type, str], ours: Any, before: Any) -> bool:
    """Restore a class's attribute if it is still ours; return whether it was."""
    owner, name = place
    if vars(owner).get(name, _ABSENT) is not ours:
        return False
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
    return True


def _leads_to(function: Any, wrapper: Any) -> bool:
    """Return whether a function is the wrapper, or wraps it by `__wrapped__`, a partial or its closure, at any depth."""
    seen, left = set(), [function]
    while left:
        one = left.pop()
        if one is wrapper:
            return True
        if id(one) in seen or not callable(one):
            continue
        seen.add(id(one))
        left.append(inspect.getattr_static(one, "__wrapped__", None))
        if isinstance(one, (functools.partial, functools.partialmethod)):
            left += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, MethodType):
            left.append(one.__func__)
        for cell in getattr(one, "__closure__", None) or ():
            try:
                left.append(cell.cell_contents)
            except ValueError:  # still empty
                continue
    return False
