"""The compiled part of `tasks/source_pages.py`: the items of URLs, paths and page ids that are simple.

What it makes of them is what `canonical_item` of `tasks/urls.py` makes; what it is not sure of it leaves to that function.
Bytes are compared many at a time, as vectors: one by one takes several times as long.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

BLOCK = 64  # bytes that are compared together: a bit of a uint64 for each
ALL_PARTS = 2**31 - 1
_MAX_HOST = 48  # bytes, so that most ports are in the same block
_LONGEST_EXTENSION = 6  # of an index page or a static asset, with its dot

_DOT, _SLASH, _COLON, _ZERO, _NINE, _A, _Z = (np.uint8(ord(character)) for character in "./:09AZ")
_SMALL = np.uint8(ord("a") - ord("A"))  # the bit that small letters have and capitals have not
_EXACTLY = np.uint8(0)
_HTTP, _HTTPS, _WWW, _INDEX, _DEFAULT, _PORT_80, _PORT_443 = (
    np.frombuffer(text, dtype=np.uint8)
    for text in (b"http://", b"https://", b"www.", b"index.", b"default.", b":80", b":443")
)
_NO_BITS, _ONE, _ALL_BITS, _LAST_BIT = (np.uint64(bits) for bits in (0, 1, 2**64 - 1, BLOCK - 1))
_BYTE_BITS = np.uint64(8)
_PHP = np.uint64(int.from_bytes(b"php"))  # a digit may follow
_INDEX_EXTENSIONS = np.array(
    [int.from_bytes(name) for name in b"htm html xhtml shtml php asp aspx jsp cfm cgi pl".split()], dtype=np.uint64
)
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
_inlined = numba.njit(forceinline=True, **_OPTIONS)


class Kinds(NamedTuple):
    """Which bytes of a block are what: a bit of uint64 for each, the lowest for the first.

    host: may stand in the name of a host, but for capitals as it is; clean: may stand in a path as it is.
    """

    slashes: Any
    dots: Any
    digits: Any
    colons: Any
    capitals: Any
    host: Any
    clean: Any


def _point_at(context, builder, array_type, array, place):
    made = context.make_array(array_type)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, array_type, made, [place], wraparound=False, boundscheck=False)


@intrinsic
def compare(typing_context, data, place, skipped, counted):
    """The Kinds of data[place : place + BLOCK]: without the first `skipped` bytes, and then only of those `counted`."""

    def generate(context, builder, signature, arguments):
        vector_type = ir.VectorType(ir.IntType(8), BLOCK)
        pointer = _point_at(context, builder, signature.args[0], arguments[0], arguments[1])
        block = builder.load(builder.bitcast(pointer, vector_type.as_pointer()), align=1, typ=vector_type)

        def all_of(number):
            return ir.Constant(vector_type, [number] * BLOCK)

        def between(first, last, of=block):
            beyond = builder.sub(of, all_of(ord(first)))
            return builder.icmp_unsigned("<", beyond, all_of(ord(last) + 1 - ord(first)))

        def any_of(found, characters):
            for character in characters:
                found = builder.or_(found, between(character, character))
            return found

        letters = between("a", "z", of=builder.or_(block, all_of(int(_SMALL))))
        kinds = Kinds(
            slashes=between("/", "/"),
            dots=between(".", "."),
            digits=between("0", "9"),
            colons=between(":", ":"),
            capitals=between("A", "Z"),
            host=any_of(builder.or_(letters, between("0", "9")), "-_."),
            clean=any_of(builder.or_(letters, between("&", ";")), "!$=@_~"),
        )
        bits = [builder.lshr(builder.bitcast(kind, ir.IntType(BLOCK)), arguments[2]) for kind in kinds]
        return context.make_tuple(builder, signature.return_type, [builder.and_(bit, arguments[3]) for bit in bits])

    answer = types.NamedUniTuple(types.uint64, len(Kinds._fields), Kinds)
    return answer(data, types.int64, types.uint64, types.uint64), generate


@intrinsic
def move(typing_context, data, start, items, place, size):
    """items[place : place + size] = data[start : start + size]"""

    def generate(context, builder, signature, arguments):
        source, target = (
            _point_at(context, builder, signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2)
        )
        cgutils.raw_memcpy(builder, target, source, arguments[4], 1)
        return context.get_dummy_value()

    return types.void(data, types.int64, items, types.int64, types.int64), generate


@intrinsic
def count_low_zeros(typing_context, bits):
    """Of uint64; 64 of 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@_inlined
def low_bits(count):
    return (_ONE << np.uint64(count)) - _ONE if count < BLOCK else _ALL_BITS


@_inlined
def look(data, start, end):
    """The Kinds of data[start:end], of the first BLOCK of them if there are more; start < end."""
    place = min(start, len(data) - BLOCK)  # none is read beyond the last
    return compare(data, place, np.uint64(start - place), low_bits(end - start))  # type: ignore[call-arg]  # numba gives one


@_inlined
def check(data, start, end):
    """(Whether all bytes are clean, whether a part of the path begins with a dot, whether there is a colon)."""
    unclean, dot_parts, colons, before = _NO_BITS, _NO_BITS, _NO_BITS, _NO_BITS
    for place in range(start, end, BLOCK):
        kinds = look(data, place, end)
        unclean |= ~kinds.clean & low_bits(end - place)
        dot_parts |= kinds.dots & ((kinds.slashes << _ONE) | before)
        before = kinds.slashes >> _LAST_BIT
        colons |= kinds.colons
    return unclean == _NO_BITS, dot_parts != _NO_BITS, colons != _NO_BITS


@_inlined
def copy(data, start, end, items, size):
    """Write data[start:end] behind the first `size` bytes of items; how many they are then."""
    move(data, start, items, size, end - start)  # type: ignore[call-arg]
    return size + end - start


@_inlined
def byte_at(data, place):
    return data[np.uint64(place)]  # numba wraps negative numbers


@_inlined
def begins_with(data, start, end, text, ignored):
    """Whether data[start:end] begins with a text that has the bits `ignored`, which need not be in the data."""
    if end - start < len(text):
        return False
    differs = False
    for i in range(len(text)):
        differs |= (byte_at(data, start + i) | ignored) != text[i]
    return not differs


@_inlined
def ends_in_extension(data, start, end):
    """Whether there is a dot where the extension of an index page or a static asset has it."""
    return start < end and look(data, max(start, end - _LONGEST_EXTENSION), end).dots != _NO_BITS


@_inlined
def find_host(data, start, end):
    """Where the host of a URL begins; `start` for other texts."""
    if begins_with(data, start, end, _HTTPS, _EXACTLY):
        return start + len(_HTTPS)
    return start + len(_HTTP) if begins_with(data, start, end, _HTTP, _EXACTLY) else start


@_inlined
def strip_slashes(data, start, end):
    """Where data[start:end] ends without the slashes at its end."""
    while end > start and byte_at(data, end - 1) == _SLASH:
        end -= 1
    return end


@_inlined
def drop_index(data, start, end):
    """Where a clean path of a URL ends without the slashes and index pages at its end."""
    while True:
        end = strip_slashes(data, start, end)
        if not ends_in_extension(data, start, end):
            return end
        part = end
        while byte_at(data, part - 1) != _SLASH:
            part -= 1
        extension = part + len(_INDEX)
        if not begins_with(data, part, end, _INDEX, _SMALL):
            extension = part + len(_DEFAULT)
            if not begins_with(data, part, end, _DEFAULT, _SMALL):
                return end
        if not is_of_index(data, extension, end):
            return end
        end = part - 1


@_inlined
def is_of_index(data, start, end):
    """Whether a clean extension, without its dot, is that of an index page."""
    if end - start >= _LONGEST_EXTENSION:
        return False
    last, number = np.uint64(0), np.uint64(0)
    for i in range(start, end):
        last = np.uint64(byte_at(data, i) | _SMALL)
        number = number << _BYTE_BITS | last
    is_one = number >> _BYTE_BITS == _PHP and last >= np.uint64(_ZERO) and last <= np.uint64(_NINE)
    for known in _INDEX_EXTENSIONS:
        is_one |= number == known
    return is_one


@_inlined
def cut(data, start, end, depth):
    """Where a path ends of which `depth` parts are kept."""
    if depth == ALL_PARTS:
        return end
    parts = 0
    for i in range(start, end):
        if byte_at(data, i) == _SLASH:
            if parts == depth:
                end = i
                break
            parts += 1
    return strip_slashes(data, start, end)


@_inlined
def write_url(data, start, host, end, depth, items, size):
    """`write_item` of a URL, whose host begins at data[host]."""
    if host == end:
        return size
    kinds = look(data, host, end)
    length: int = count_low_zeros(~kinds.host)  # type: ignore[call-arg]
    if length == 0 or length > _MAX_HOST or byte_at(data, host + length - 1) == _DOT:
        return size
    stop = path = port_end = host + length
    if stop < end and byte_at(data, stop) == _COLON:
        path += 1 + count_low_zeros(~(kinds.digits >> np.uint64(length + 1)))
        if path > stop + 1 and byte_at(data, stop + 1) == _ZERO:
            return size
        own = _PORT_80 if host - start == len(_HTTP) else _PORT_443
        if path > stop + 1 and not (path - stop == len(own) and begins_with(data, stop, path, own, _EXACTLY)):
            port_end = path
    if path < end and byte_at(data, path) != _SLASH:
        return size
    is_clean, has_dot_part, _ = check(data, path, end)
    if not is_clean or has_dot_part:
        return size
    end = drop_index(data, path, end)
    if depth != ALL_PARTS:
        end = drop_index(data, path, cut(data, path, end, depth))
    name = copy(data, start, host, items, size)
    dots = kinds.dots & low_bits(length)
    while begins_with(data, host, stop, _WWW, _SMALL) and dots >> np.uint64(len(_WWW)) != _NO_BITS:
        host += len(_WWW)
        dots >>= np.uint64(len(_WWW))
    made = copy(data, host, port_end, items, name)
    if kinds.capitals & low_bits(length) != _NO_BITS:
        for i in range(np.uint64(name), np.uint64(made)):
            if items[i] >= _A and items[i] <= _Z:
                items[i] |= _SMALL
    if end == path:
        items[np.uint64(made)] = _SLASH
        return made + 1
    return copy(data, path, end, items, made)


@_inlined
def write_item(data, start, end, depth, items, size):
    """Write the item of data[start:end], if it is simple, behind the first `size` bytes of items; how many they are then."""
    host = find_host(data, start, end)
    if host > start:
        return write_url(data, start, host, end, depth, items, size)
    is_clean, has_dot_part, has_colon = check(data, start, end)
    if start == end or not is_clean:
        return size
    if byte_at(data, start) != _SLASH:
        return size if has_colon else copy(data, start, end, items, size)
    return size if has_dot_part else copy(data, start, max(start + 1, cut(data, start, end, depth)), items, size)


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def write_items(data, bounds, depth, items, ends):
    """The items of the texts data[bounds[i] : bounds[i + 1]], one behind the other; no byte of those that are not simple.

    data uint8[BLOCK or more], bounds int64[n + 1]; depth: how many parts of a path are kept, ALL_PARTS of pages. Written are
    ends int64[n + 1] and items uint8[bounds[n] - bounds[0] + n], enough for a slash more each: item i is
    items[ends[i] : ends[i + 1]].
    """
    size = np.int64(0)
    ends[0] = size
    for i in range(len(ends) - 1):
        size = write_item(data, bounds[i], bounds[i + 1], depth, items, size)
        ends[i + 1] = size


@numba.njit(nogil=True, cache=True, **_OPTIONS)
def find_extensions(data, bounds, has_extension):
    """Write to has_extension bool[n] which of the texts, as of `write_items`, may end in the extension of a static asset."""
    for i in range(len(has_extension)):
        has_extension[i] = ends_in_extension(data, bounds[i], bounds[i + 1])
