"""Parse the attributes of an instruction.

Details are always read: called computations, aliasing, sharding. Facts are read on request: cycle estimates,
permutations, scalar constants, comparisons, trip counts. Metadata is resolved to an operation and a source line of the
program: newer modules have tables of files, locations and stack frames, and the metadata refers to a frame; in older
modules the metadata contains the file and the line.

Source: ``xla/hlo/ir/hlo_module_metadata``, ``stack_frame_index`` of ``hlo.proto``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fastindex.hlo.grammar import integer

Path = tuple[int, ...]
#: (path in the output, operand number, path in that operand)
Alias = tuple[Path, int, Path]
#: Extracts a fact from the operand and attribute texts of an instruction; None if there is none.
FactReader = Callable[[bytes, bytes], object]

_METADATA = re.compile(rb'[ ,]metadata=\{([^"}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"}]*+)*+)\}', re.DOTALL)
_OWN_METADATA = re.compile(rb"[ ,]metadata=\{")
_INDEX = re.compile(rb"\bindex=(\d+)")
_PARAMETER = re.compile(rb"(?:\s|/\*.*?\*/)*(\d+)(?:\s|/\*.*?\*/)*", re.DOTALL)
_FIRST_INDEX = re.compile(rb", index=(\d+)")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_CALLS = re.compile(rb"\bcalls=%?([\w.\-]+)")
_TO_APPLY = re.compile(rb"\bto_apply=%?([\w.\-]+)")
_CONDITION = re.compile(rb"\bcondition=%?([\w.\-]+)")
_BODY = re.compile(rb"\bbody=%?([\w.\-]+)")
_BRANCHES = re.compile(rb"\bbranch_computations=\{([^{}]*)\}")
_TRUE = re.compile(rb"\btrue_computation=%?([\w.\-]+)")
_FALSE = re.compile(rb"\bfalse_computation=%?([\w.\-]+)")
_ON_HOST = re.compile(rb'custom_call_target="HostExecute".*?called_computations=\{%?([\w.\-]+)\}', re.DOTALL)
_ALIASING = re.compile(rb"output_to_operand_aliasing=\{((?:[^{}]|\{[^{}]*\})*)\}")
_ALIAS = re.compile(rb"\{([\d,\s]*)\}\s*:\s*\(\s*(\d+)\s*,\s*\{([\d,\s]*)\}")
_KIND = re.compile(rb"\bkind=k(\w+)")
#: List of operands and results that share memory, in the TPU compiler's ``backend_config``, mostly at its end.
SHARED = b'"aliasing_operands":{"lists":['
_SHARES_NOTHING = b'"aliasing_operands":{"lists":[]}}'
_INDICES = re.compile(rb'"indices":\[([^\]]*)\]')
_QUOTED_NUMBER = re.compile(rb'"(\d+)"')
#: The usual beginning of a fusion's attributes, as XLA prints them.
_KIND_AND_CALLS = re.compile(rb", kind=k(\w+), calls=%?([\w.\-]+)")
_SLICES = re.compile(
    rb"\b(offset_dims|slice_sizes|update_window_dims|inserted_window_dims|input_batching_dims)=\{([\d,\s]*)\}"
)
_SHARDING = re.compile(rb"\bsharding=(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})")
_SDY_SHARDING = re.compile(rb'\bxla\.sdy\.sharding="((?:[^"\\]|\\.)*)"')

_CYCLES = b'"estimated_cycles":"'
_DIMENSIONS = re.compile(rb"\bdimensions=\{([\d,\s]*)\}")
_INTEGER = re.compile(rb"(?:\s|/\*.*?\*/)*(?:[a-z]\w*\[\]\S*\s+)?(-?\d+)(?:\s|/\*.*?\*/)*", re.DOTALL)
_DIRECTION = re.compile(rb"\bdirection=(\w+)")
#: As JSON, or as JSON escaped within a string.
_TRIPS = re.compile(rb'"known_trip_count\\?"\s*:\s*\{\s*\\?"n\\?"\s*:\s*\\?"(\d+)')
#: Longer constants are not loop counters.
_LONGEST_CONSTANT = 64


class Details(NamedTuple):
    """The attributes of an instruction that affect the data flow.

    Attributes
    ----------
    callees : tuple of str
        Computations that run as part of the instruction; for a while, its condition and its body.
    aliases : tuple of Alias
        ``output_to_operand_aliasing``.
    kind : str
        Of a fusion: "Loop", "Input", "Output", "Custom". Of a custom call of the TPU compiler: "ConcatBitcast",
        "HostExecute", or "Estimated" if its cost is given. Of a copy-start that the previous run of the program has
        done already: "CrossProgram".
    number : int
        Number of a parameter; index of a get-tuple-element.
    sharding : str
        Of an entry parameter: its sharding, as written.
    shared : tuple of tuple of int, or None
        Groups of operands and results that share memory, as the TPU compiler lists them: results are numbered after the
        operands. None if the text has no such list.
    slices : pair of tuples of int
        Of a gather: ``offset_dims`` and ``slice_sizes``. Of a scatter: ``update_window_dims``, and the dimensions of
        the operand that are not in them.
    """

    callees: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()
    kind: str = ""
    number: int = -1
    sharding: str = ""
    shared: tuple[tuple[int, ...], ...] | None = None
    slices: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


NO_DETAILS = Details()
_NOTHING_SHARED = Details(shared=())
_WHOLE_OF_OPERANDS = Details(kind="ConcatBitcast")
_CROSS_PROGRAM = Details(kind="CrossProgram")
#: Shared objects for small numbers: a module has very many parameters and tuple elements.
_NUMBERED = tuple(Details(number=number) for number in range(256))
#: Details of parameters without attributes, by their text.
BARE_PARAMETERS = {b"%d" % number: details for number, details in enumerate(_NUMBERED)}


def metadata_of(attributes: bytes) -> bytes:
    r"""Return the metadata text between its braces, or b"".

    Examples
    --------
    >>> metadata_of(b', index=0, metadata={op_name="add" source_line=3}, sharding={replicated}')
    b'op_name="add" source_line=3'
    >>> metadata_of(b', frontend_attributes={kernel_metadata={}}, metadata={op_name="add"}')
    b'op_name="add"'
    """
    begin = attributes.find(b"metadata={") - 1
    if begin < 0:
        return b""
    if attributes[begin] not in b" ," or attributes.count(b"{", 0, begin) != attributes.count(b"}", 0, begin):
        # That of a sharding, or kernel_metadata={ within frontend_attributes.
        own = _searched(_OWN_METADATA, attributes)
        if own is None:
            return b""
        begin = own.start()
    text = attributes[begin + 11 : attributes.find(b"}", begin)]
    if text.count(b'"') & 1 or b"\\" in text:
        # A closing brace inside a string does not end the metadata.
        whole = _METADATA.search(attributes, begin)
        return whole.group(1) if whole else text
    return text


def aliases_in(text: bytes) -> tuple[Alias, ...]:
    """Parse an aliasing list such as ``{0}: (1, {})``."""
    return tuple((_path(output), integer(operand), _path(path)) for output, operand, path in _ALIAS.findall(text))


def _path(text: bytes) -> Path:
    return tuple(integer(part) for part in text.split(b",")) if text.strip() else ()


def output_aliases(attributes: bytes) -> tuple[Alias, ...]:
    """Parse ``output_to_operand_aliasing``; empty if absent."""
    found = _ALIASING.search(attributes) if b"aliasing" in attributes else None
    return aliases_in(found.group(1)) if found else ()


def shared_in(attributes: bytes) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of operands and results that share memory; None if the text does not say.

    Examples
    --------
    >>> shared_in(b', backend_config={"aliasing_operands":{"lists":[{"indices":["0","9"]},{"indices":["2","11"]}]}}')
    ((0, 9), (2, 11))
    >>> shared_in(b', backend_config={"aliasing_operands":{"lists":[]}}'), shared_in(b', backend_config={}')
    ((), None)
    """
    if attributes.endswith(_SHARES_NOTHING):
        return ()
    begin = attributes.rfind(SHARED)
    if begin < 0:
        return None
    lists = (_QUOTED_NUMBER.findall(found) for found in _INDICES.findall(attributes, begin))
    return tuple(tuple(map(integer, numbers)) for numbers in lists)


def details_of_shared(attributes: bytes) -> Details:
    """Return the details of an instruction for which only memory sharing matters."""
    shared = shared_in(attributes)
    if not shared:
        return NO_DETAILS if shared is None else _NOTHING_SHARED
    return Details(shared=shared)


def _blank(string: re.Match[bytes]) -> bytes:
    return b" " * len(string.group())


def _searched(pattern: re.Pattern[bytes], attributes: bytes) -> re.Match[bytes] | None:
    """Find an attribute outside of strings, which are blank in the match, and of other attributes' braces."""
    bare = _STRING.sub(_blank, attributes) if b'"' in attributes else attributes
    for found in pattern.finditer(bare):
        if bare.count(b"{", 0, found.start()) == bare.count(b"}", 0, found.start()):
            return found
    return None


def _names(attributes: bytes, *patterns: re.Pattern[bytes]) -> tuple[str, ...]:
    """Return the computations named by attributes; empty if one of the attributes is missing."""
    found = [_searched(pattern, attributes) for pattern in patterns]
    # Interned: the same string as the computation's own name.
    names = tuple(sys.intern(each.group(1).decode()) for each in found if each is not None)
    return names if len(names) == len(patterns) else ()


def _read_parameter(operands: bytes, attributes: bytes) -> Details:
    if b"sharding=" not in attributes:
        details = BARE_PARAMETERS.get(operands)
        if details is not None:
            return details
    found = _searched(_SHARDING, attributes) or _SDY_SHARDING.search(attributes)
    sharding = attributes[found.start(1) : found.end(1)] if found else b""
    number = _PARAMETER.fullmatch(operands)
    return Details(
        number=integer(number.group(1)) if number else -1,
        sharding=sharding.decode("utf-8", "replace").replace('\\"', '"'),
    )


def element_details(index: int) -> Details:
    """Return the details of a get-tuple-element; index -1 stands for a missing index.

    Examples
    --------
    >>> element_details(3).number
    3
    """
    return _NUMBERED[index] if 0 <= index < len(_NUMBERED) else Details(number=index)


def _read_element(operands: bytes, attributes: bytes) -> Details:
    found = _FIRST_INDEX.match(attributes) or _searched(_INDEX, attributes)
    return element_details(integer(found.group(1)) if found else -1)


def _read_fusion(operands: bytes, attributes: bytes) -> Details:
    aliases = output_aliases(attributes)
    usual = _KIND_AND_CALLS.match(attributes)
    shared = shared_in(attributes)
    if usual is not None:
        callees = (sys.intern(usual.group(2).decode()),)
        return Details(callees, aliases, sys.intern(usual.group(1).decode()), shared=shared)
    kind = _searched(_KIND, attributes)
    return Details(
        _names(attributes, _CALLS), aliases, sys.intern(kind.group(1).decode()) if kind else "", shared=shared
    )


def _read_call(operands: bytes, attributes: bytes) -> Details:
    return Details(_names(attributes, _TO_APPLY))


def _read_async_start(operands: bytes, attributes: bytes) -> Details:
    return Details(_names(attributes, _CALLS), output_aliases(attributes))


def _read_custom_call(operands: bytes, attributes: bytes) -> Details:
    if b'custom_call_target="ConcatBitcast"' in attributes:
        # The operands are contiguous in the memory of the result.
        return _WHOLE_OF_OPERANDS
    on_host = _ON_HOST.search(attributes)
    if on_host is not None:
        return Details((sys.intern(on_host.group(1).decode()),), kind="HostExecute")
    aliases = output_aliases(attributes)
    kind = "Estimated" if b'"cost_estimate":' in attributes else ""
    if aliases or kind:
        return Details(aliases=aliases, kind=kind, shared=shared_in(attributes))
    return details_of_shared(attributes)


def _read_gather(operands: bytes, attributes: bytes) -> Details:
    found = {name: _path(numbers) for name, numbers in _SLICES.findall(attributes)}
    slices = found.get(b"offset_dims", ()), found.get(b"slice_sizes", ())
    return Details(slices=slices, shared=shared_in(attributes))


def _read_scatter(operands: bytes, attributes: bytes) -> Details:
    found = {name: _path(numbers) for name, numbers in _SLICES.findall(attributes)}
    others = found.get(b"inserted_window_dims", ()) + found.get(b"input_batching_dims", ())
    return Details(slices=(found.get(b"update_window_dims", ()), others), shared=shared_in(attributes))


def _read_copy_start(operands: bytes, attributes: bytes) -> Details:
    return _CROSS_PROGRAM if b"cross_program_prefetch_index=" in attributes else details_of_shared(attributes)


def _read_while(operands: bytes, attributes: bytes) -> Details:
    names = _names(attributes, _CONDITION, _BODY)
    return Details(names) if names else NO_DETAILS


def _read_conditional(operands: bytes, attributes: bytes) -> Details:
    found = _searched(_BRANCHES, attributes)
    if found is None:
        return Details(_names(attributes, _TRUE, _FALSE))
    return Details(tuple(_branch(name) for name in found.group(1).split(b",")))


def _branch(name: bytes) -> str:
    # An item of a list may contain any bytes, unlike a name.
    return sys.intern(name.strip().lstrip(b"%").decode("utf-8", "replace"))


#: Reader of the operand and attribute texts, by opcode; other opcodes have no details.
DETAIL_READERS: dict[bytes, Callable[[bytes, bytes], Details]] = {
    b"parameter": _read_parameter,
    b"get-tuple-element": _read_element,
    b"fusion": _read_fusion,
    b"call": _read_call,
    b"async-start": _read_async_start,
    b"copy-start": _read_copy_start,
    b"custom-call": _read_custom_call,
    b"gather": _read_gather,
    b"scatter": _read_scatter,
    b"while": _read_while,
    b"conditional": _read_conditional,
}


def estimated_cycles(operands: bytes, attributes: bytes) -> int | None:
    """Return XLA's cycle estimate for an instruction; None if it has none.

    Examples
    --------
    >>> estimated_cycles(b"", b', backend_config={"window_config":{"estimated_cycles":"2212","x":[]}}')
    2212
    """
    begin = attributes.find(_CYCLES)
    if begin < 0:
        return None
    begin += len(_CYCLES)
    number = attributes[begin : attributes.find(b'"', begin)]
    return integer(number) if number.isdigit() else None


def _permutation(operands: bytes, attributes: bytes) -> tuple[int, ...] | None:
    found = _DIMENSIONS.search(attributes)
    if found is None:
        return None
    return tuple(integer(number) for number in found.group(1).split(b",") if number.strip())


def _scalar(operands: bytes, attributes: bytes) -> int | None:
    if len(operands) > _LONGEST_CONSTANT:
        return None
    found = _INTEGER.fullmatch(operands)
    return integer(found.group(1)) if found else None


def _direction(operands: bytes, attributes: bytes) -> str | None:
    found = _DIRECTION.search(attributes)
    return found.group(1).decode() if found else None


def _known_trips(operands: bytes, attributes: bytes) -> int | None:
    found = _TRIPS.search(attributes)
    return integer(found.group(1)) if found else None


#: Parser by opcode; the result is an integer, a permutation or a direction.
FACT_READERS: Mapping[bytes, FactReader] = {
    b"copy": estimated_cycles,
    b"fusion": estimated_cycles,
    b"transpose": _permutation,
    b"constant": _scalar,
    b"compare": _direction,
    b"while": _known_trips,
}


_FIELD = re.compile(rb'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\d+))', re.DOTALL)
#: In a string: XLA prints the bytes of all characters beyond ASCII as octal numbers.
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_NAME = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_NUMBER = re.compile(rb"(\w+)=\s*(\d+)")
#: Folders of libraries: frames in them are not part of the program.
_LIBRARIES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation and the source line from which an instruction was compiled."""

    op_name: str = ""
    source_file: str = ""
    source_line: int = 0


_NO_ORIGIN = Origin()


class MetadataReader:
    """Resolve the metadata of one module's instructions.

    Parameters
    ----------
    tables : list of bytes
        Lines of the module's tables.
    texts : iterable of bytes
        Metadata texts, which `origin_at` numbers.

    Examples
    --------
    >>> reader = MetadataReader([])
    >>> reader.origin(b'op_name="jit(f)/add" source_file="a.py" source_line=7')
    Origin(op_name='jit(f)/add', source_file='a.py', source_line=7)
    """

    def __init__(self, tables: list[bytes], texts: Iterable[bytes] = ()) -> None:
        self._texts = list(texts)
        self._entries: dict[bytes, dict[int, bytes]] = {}
        self._places: dict[int, tuple[str, int]] = {}
        self._origins: dict[bytes, Origin] = {}
        self._split(tables)

    def origin_at(self, number: int) -> Origin:
        """Return the origin of an instruction by the number of its metadata; -1 for none."""
        return self.origin(self._texts[number]) if number >= 0 else _NO_ORIGIN

    def origin(self, metadata: bytes) -> Origin:
        """Return the origin of an instruction, given the text between the braces of its metadata."""
        origin = self._origins.get(metadata)
        if origin is None:
            origin = self._origins[metadata] = self._read(metadata)
        return origin

    def _read(self, metadata: bytes) -> Origin:
        fields = {name: _unescaped(text or number) for name, text, number in _FIELD.findall(metadata)}
        name = fields.get(b"op_name", "")
        file, line = fields.get(b"source_file", ""), fields.get(b"source_line", "0")
        frame = fields.get(b"stack_frame_id", "")
        if not file and frame.isdigit():
            return Origin(name, *self._place_of(integer(frame)))
        return Origin(name, file, integer(line) if line.isdigit() else 0)

    def _place_of(self, frame: int) -> tuple[str, int]:
        """Return the file and line of the innermost frame outside libraries, or else of the innermost frame."""
        place = self._places.get(frame)
        if place is None:
            place = self._places[frame] = self._find_place(frame)
        return place

    def _find_place(self, frame: int) -> tuple[str, int]:
        innermost = ("", 0)
        frames = self._entries.get(b"StackFrames", {})
        for _ in range(len(frames) + 1):
            if frame not in frames:
                break
            fields = _numbers(frames[frame])
            location = self._fields(b"FileLocations", fields.get(b"file_location_id", 0))
            line = location.get(b"line", 0)
            file = self._file(location.get(b"file_name_id", 0))
            if file and not any(folder in file for folder in _LIBRARIES):
                return file, line
            if file and not innermost[0]:
                innermost = file, line
            # Parent ids are stored plus one, so that 1 stands for no parent.
            frame = fields.get(b"parent_frame_id", 0) - 1
        return innermost

    def _fields(self, table: bytes, number: int) -> dict[bytes, int]:
        return _numbers(self._entries.get(table, {}).get(number, b""))

    def _file(self, number: int) -> str:
        name = _NAME.match(self._entries.get(b"FileNames", {}).get(number, b""))
        return _unescaped(name.group(1)) if name else ""

    def _split(self, tables: list[bytes]) -> None:
        """Index the lines by table and number; entries are parsed on demand, and few are needed."""
        entries: dict[int, bytes] = {}
        for line in tables:
            if line[:1].isalpha():
                entries = self._entries.setdefault(line.strip(), {})
            else:
                number, _, text = line.partition(b" ")
                entries[integer(number)] = text


def _unescaped(text: bytes) -> str:
    if b"\\" in text:
        text = _ESCAPE.sub(_character, text)
    return text.decode("utf-8", "replace")


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape.group(1)
    if code[:1].isdigit() and code < b"8":
        return bytes((int(code, 8) & 0xFF,))
    if len(code) == 1:
        return _CONTROLS.get(code, code)
    return chr(int(code[1:], 16)).encode("utf-8", "replace") if code[:1] == b"u" else bytes((int(code[1:], 16),))


def _numbers(entry: bytes) -> dict[bytes, int]:
    """Parse an entry such as ``{file_location_id=1 parent_frame_id=2}``."""
    return {name: integer(value) for name, value in _NUMBER.findall(entry.partition(b"}")[0])}
