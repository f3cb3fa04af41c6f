"""Values of nested records by dotted names: of objects, lists, and lists of keys and values.

{"context": {"page": {"url": "/a"}}}                                    context.page.url
{"events": [{"aid": 1, "ts": 10}, {"aid": 2, "ts": 20}]}                events.aid, events.ts: two values each
{"event_params": [{"key": "page", "value": {"string_value": "/a"}}]}    event_params.page
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

MAX_DEPTH = 20  # of objects and lists in each other


def list_fields(value: Any, name: str = "", in_list: bool = False, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the dotted name of each value in a record that is not too deep, and whether it is in a list."""
    value = _as_object(value)
    start = f"{name}." if name else ""
    if isinstance(value, dict | list) and depth == MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from list_fields(inner, f"{start}{key}", in_list, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from list_fields(inner, name, True, depth + 1)
    else:
        yield name, in_list


def find(value: Any, name: str) -> Any:
    """Return the value with this dotted name, None without one, or for a field of objects in a list all its values."""
    if not isinstance(value, dict):
        value = _as_object(value)
    if isinstance(value, list):
        found = [find(inner, name) for inner in value]
        return [leaf for inner in found for leaf in (inner if isinstance(inner, list) else [inner])]
    if not isinstance(value, dict):
        return None
    if name in value:
        return _as_object(value[name])
    at = name.find(".")
    while at >= 0:
        if name[:at] in value and (found := find(value[name[:at]], name[at + 1 :])) is not None:
            return found
        at = name.find(".", at + 1)
    return None


def _as_object(value: Any) -> Any:
    """Return a list of keys and values, as analytics exports and Arrow's maps have them, as an object."""
    if isinstance(value, list) and value:
        if all(isinstance(pair, tuple) for pair in value):
            return dict(value)
        if all(isinstance(pair, dict) and "key" in pair and pair.keys() <= {"key", "value"} for pair in value):
            return {str(pair["key"]): _only_value(pair.get("value")) for pair in value}
    return value


def _only_value(value: Any) -> Any:
    """Return the one value of an object with a field for each type."""
    return next((inner for inner in value.values() if inner is not None), None) if isinstance(value, dict) else value


def make_example(column_type: pa.DataType) -> Any:
    """Return a value of a type with all of its objects and lists, as those of the first records may be null."""
    if pa.types.is_struct(column_type):
        return {field.name: make_example(field.type) for field in column_type.fields}
    is_list = hasattr(column_type, "value_type") and not pa.types.is_dictionary(column_type)
    inner = make_example(column_type.value_type) if is_list else None
    is_pair = isinstance(inner, dict) and inner.keys() == {"key", "value"}
    return [] if is_pair or pa.types.is_map(column_type) else [inner] if is_list else None
