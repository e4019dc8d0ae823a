"""Parse out-of-memory messages of XLA and TensorFlow, with their allocations, in logs of any length.

Supported lists: those of the TPU compiler ("Ran out of memory in memory space hbm", "Largest program allocations"), of
buffer assignment on GPU and CPU ("Peak buffers"), single allocations that exceed the memory, the scoped memory of
kernels, and tensors that TensorFlow's BFC allocator could not place. Supported messages without a list: those of the
compiler (E1000) and of the runtime (E0100, E0101).

Sources: ``BufferAssignment::ToVerboseString`` of ``xla/service/buffer_assignment.cc``; XLA's pages "Error code" E0100,
E0101, E1000, E1001 and "Debug OOM errors with XProf"; ``bfc_allocator.cc``; libtpu 0.0.32 to 0.0.52. The TPU compiler
is not open source; its format is taken from messages in public issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastindex.hlo.allocations import END_OF_SENTENCE, SIZE, Kernel, Listed, read_kernel, rows_of, size_of
from fastindex.hlo.grammar import integer
from fastindex.hlo.log_lines import continued, divided, texts_of, without_colours
from fastindex.hlo.presentation import Problem
from fastindex.hlo.rows import ShapeUse
from fastindex.hlo.totals import ModuleUse, Peak, totals_of
from fastindex.show.spelling import bytes_text

#: With its unit: without one, it may be cut.
_AMOUNT = r"(\d[\d,]*(?:\.\d+)?)\s*(?:([KMGTP])(?:i?B|b)?|[Bb])"
_SHORT = rf"(?:.*?Exceeded \w+ capacity by {_AMOUNT})?"
_USED = re.compile(rf"Ran out of memory in memory space (\w+)(?:\.|:).*?Used {_AMOUNT} of {_AMOUNT} \w+{_SHORT}")
_SPACE_ONLY = re.compile(r"Ran out of memory in memory space (\w+)")
_HBM_ONLY = re.compile(
    rf"Ran out of memory on HBM, .*?HLO temporaries \({_AMOUNT}\) exceeds available HBM \({_AMOUNT}\)"
    r"(?:\. HLO module: ([\w.\-]*[\w\-]))?"
)
_SCOPED = re.compile(
    rf"Ran out of memory in memory space (\w+) while allocating on stack for (.*?)\. "
    rf"Scoped allocation with size {_AMOUNT} and limit {_AMOUNT} exceeded scoped \w+ limit by {_AMOUNT}"
)
#: A sentence with the amounts, which a log may break into lines.
_SENTENCE = re.compile(
    "Ran out of memory|Error loading program|Attempting to (?:allocate|reserve)|Aborting compilation early|"
    r"TensorCore Hbm usage|Allocation \(size|OOM when allocating|Out of memory (?:while trying to allocate|allocating)"
)
#: Limit on the lines of a sentence, which may contain an instruction.
_MOST_LINES = 200
_EARLY = re.compile(rf"Aborting compilation early .*?Requires {_AMOUNT}, has {_AMOUNT} available")
_AT_RUN_TIME = re.compile(
    rf"(?:Error loading program '([^']*)':\s*)?Attempting to (allocate|reserve) {_AMOUNT}.*?There are {_AMOUNT} free"
    rf"(?:, {_AMOUNT} reserved, and {_AMOUNT} reservable)?"
)
_SECTION = re.compile(r"Largest program allocations in (\w+):")
_PEAK_BUFFERS = re.compile(r"Peak buffers:(?![\w\\])")
_PART = re.compile(
    r"(reserved|program|arguments|HLO temp|scoped|global|overlays|parameter allocation|constant allocation|"
    rf"maybe_live_out allocation|preallocated temp allocation|total allocation):?\s+{_AMOUNT}(?=[^\w.]|$)"
)
_ALLOCATION = re.compile(r"\b(?:parameter|constant|maybe_live_out|preallocated temp|total) allocation:")
_FIELD = re.compile(
    r"(?:^|\s)(?:\d+\.\s+)?(Size|Operator|Shape|Unpadded size|Extra memory due to padding|Tag|"
    r"XLA [Ll]abel|Allocation type|"
    r"Entry Parameter Subshape): ?(.*)$"
)
#: Words in lines outside an allocation that may matter.
_WORDS = re.compile(
    "out of memory|Out of memory|Largest program|Peak buffers|would exceed|Hbm usage|OOM |Size: |Buffer |"
    "Allocation .size|Ran out of|Error loading|"
    "Attempting to |Aborting compilation|"
    "reserved|program|arguments|HLO temp|scoped|global|overlays|allocation:"
)
#: Start of an allocation: its number in the list.
_NUMBER = re.compile(r"\b(?:\d+\. Size: |Buffer \d+:(?![\w\\]))")
_SEPARATOR = "===="
#: A line that continues the fields of an operator.
_MORE_FIELDS = re.compile(r'\s*\w+=["\d]')
_STRING = re.compile(r'"[^"]*"')
_SINGLE = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*?"
    r"\[shape = '+([^']*)'+, space=(\w+).*?tag = '+([^']*)'+(?:\] :: ([\w.\-]+))?"
)
#: Start of a list, or of an entry in a list, anywhere in a line.
_LIST_SIGN = re.compile(r"Largest program allocations in|OOM Debugging|Peak buffers:|\b\d+\. Size: |Buffer \d+:")
#: Signs of a part that is left out.
_LEFT_OUT = re.compile(r"\[truncated|truncated \d|truncated\]|<snip>|\[\.\.\.\]")
_HBM = re.compile(rf"TensorCore Hbm usage: {SIZE}, SparseCore Hbm usage:? {SIZE}, exceeding available bytes: {SIZE}")
_TENSOR = re.compile(r"OOM when allocating tensor with shape\s?\[([\d,]*)\] and type (\w+)")
#: The groups of parts that not every message has.
_OPTIONAL = {_USED: 6, _HBM_ONLY: 5, _SINGLE: 6}
_END_OF_ATTEMPT = re.compile(r"free[.;]|reservable")
_REQUEST = re.compile(rf"Out of memory (?:while trying to allocate|allocating) {_AMOUNT}")
_WHOLE = (_USED, _HBM_ONLY, _SCOPED, _EARLY, _AT_RUN_TIME, _SINGLE, _HBM, _TENSOR, _REQUEST)
#: Element types by their names in TensorFlow.
_TENSORFLOW_TYPES = {
    "float": "f32", "half": "f16", "bfloat16": "bf16", "double": "f64", "int8": "s8", "int16": "s16", "int32": "s32",
    "int64": "s64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "pred",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
#: Limits on the text of a line that a log divides, and on the words that may be divided by the end of a line.
_LONGEST_FOLDED, _PHRASE = 1 << 22, 80
_HOW_TO_REPORT = (
    "report the program itself: fastindex.hlo.report(compiled) in Python, or dump it "
    "with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text' and report DIR"
)
_NOTHING_LISTED = f"the message lists no allocations; {_HOW_TO_REPORT}"
_LIST_UNREAD = "the message has a list of allocations, which cannot be read as it is written here"
_CUT = "the list is cut here, or its lines are in another order: an allocation without its size or its name"
_KERNEL_CUT = "a part of the message is left out here; some operands may be missing"
_CUT_AMONG = "the list is cut: its allocations are numbered up to"
_MIXED = "the lists of several processes are mixed here, and only one is read; report the log of each process"
_KERNEL_LISTED = (
    "the rows are the result and the operands of the kernel; most of them are in other memory, and the message does "
    "not list what the kernel holds in this one"
)


@dataclass(slots=True)
class _Message:
    """One message: a memory space that is too small, and the listed allocations."""

    space: str
    used: int = 0
    capacity: int = 0
    listed: list[Listed] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    short: int = 0
    kernel: Kernel | None = None
    is_cut: bool = False
    numbered: dict[str, Listed] = field(default_factory=dict)

    def entry(self, number: str, line: int) -> Listed:
        """Return the entry of a number in the list: a log of several processes may have the same list twice."""
        found = self.numbered.get(number)
        if found is None:
            found = self.numbered[number] = Listed(line)
            self.listed.append(found)
        return found

    def cuts(self, source: str) -> Iterator[Problem]:
        """Yield what shows that a part of the message is missing."""
        if self.kernel is not None and self.is_cut:
            yield Problem(self.kernel.line, _KERNEL_CUT, self.kernel.name, source)
        for item in self.listed:
            if self.numbered and not item.is_whole:
                yield Problem(item.line, _CUT, " ".join(item.fields.values()), source)
                return
        last = max((integer(re.sub(r"\D", "", number)) for number in self.numbered), default=0)
        if last > len(self.numbered):
            yield Problem(
                self.listed[-1].line, f"{_CUT_AMONG} {last}, {len(self.numbered)} of them are here", "", source
            )

    def amounts(self) -> tuple[object, ...]:
        """Return the memory space and the amounts in the message."""
        return self.space, self.used, self.capacity, self.short

    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for repetitions of a message."""
        return (
            self.space,
            self.used,
            tuple(self.notes),
            tuple(tuple(item.fields.get(k) for k in ("Size", "Shape")) for item in self.listed),
        )


class MessageReader:
    """Read a log line by line and collect its messages."""

    def __init__(self) -> None:
        self._messages: list[_Message] = []
        self._current: Listed | None = None
        self._open = ""
        self._line = 0
        self._list_line = self._mixed_line = 0
        self._sentence: list[str] = []
        self._folded = self._previous = ""
        #: Length of the longest lines, and how many have it.
        self._width = self._of_width = 0
        #: Lines before the first message are empty.
        self._is_full = self._was_full = self._is_folded = self.has_text = False

    def feed(self, line: str) -> None:
        """Read one line of a log, in any wrapping."""
        self._line += 1
        self.has_text = self.has_text or bool(line)
        text, is_continued = continued(without_colours(line))
        if is_continued and len(self._folded) < _LONGEST_FOLDED:
            self._folded += text
            return
        if self._folded and text.lstrip().startswith("\\"):
            text = text.lstrip()[1:]
        self._measure(len(text))
        line, self._folded = self._folded + text, ""
        self._read(line)

    def _read(self, line: str) -> None:
        """Read a line that is no longer divided."""
        if self._current is None and not self._sentence:
            previous, self._previous = self._previous, line[-_PHRASE:]
            if _is_divided(previous, line[:_PHRASE]):
                self._sentence = [previous]
            elif not _WORDS.search(line):
                return
        if self._list_line == 0 and _LIST_SIGN.search(line):
            self._list_line = self._line
        for part in texts_of(line):
            self._take(part)

    def _measure(self, length: int) -> None:
        """Note whether a log is folded at a width: several of its lines have the length of the longest."""
        self._was_full, self._is_folded = self._is_full, self._is_full and self._of_width > 1
        if length > self._width:
            self._width, self._of_width = length, 0
        self._is_full = length == self._width
        self._of_width += self._is_full

    def finish(self) -> None:
        """Read what is waiting for more lines."""
        lines, self._sentence = self._sentence, []
        for line in _joined(lines):
            self._take_line(line)

    def _take(self, line: str) -> None:
        """Read one unwrapped line, with or without a logger's prefix."""
        if self._current is None and not self._sentence and not _WORDS.search(line):
            return
        if "Size: " in line:
            parts = divided(line)
            if len(parts) > 1:
                for part in parts:
                    self._take(part)
                return
        if self._sentence:
            lines = [*self._sentence, line]
            # An attempt is part of an error in loading a program.
            is_begun = _SENTENCE.search(line) and "loading" not in "".join(lines[:-1])
            if len(lines) < _MOST_LINES and not (is_begun or _LIST_SIGN.search(line) or _FIELD.search(line)):
                self._sentence = lines
                both = "".join(lines), " ".join(each.strip() for each in lines)
                if not _is_cut(lines) and any(_is_whole(each, is_complete=True) for each in both):
                    self.finish()
                return
            self.finish()
        if (_SENTENCE.search(line) or _ALLOCATION.search(line)) and not _is_whole(line, is_complete=True):
            self._sentence = [line]
        else:
            self._take_line(line)

    def _take_line(self, line: str) -> None:
        if _SEPARATOR in line or self._take_heading(line):
            self._current, self._open = None, ""
            return
        if self._current is not None and _LEFT_OUT.search(line):
            self._current.is_cut = True
        found = _FIELD.search(line)
        if (number := _NUMBER.search(line)) and self._messages:
            self._current = self._messages[-1].entry(number.group(), self._line)
        if found and self._current is not None:
            self._open, value = found.group(1).replace("Label", "label"), found.group(2).strip()
            if self._current.fields.setdefault(self._open, value) != value and self._open in ("Size", "Shape"):
                self._mixed_line = self._mixed_line or self._line
        elif self._current is not None and self._open and self._goes_on(self._current.fields.get(self._open, ""), line):
            self._current.fields[self._open] += self._continuation(self._current.fields[self._open], line)

    def _goes_on(self, field: str, line: str) -> bool:
        """Whether a line continues the open field: a quote or a bracket of it is open, or it has more parts."""
        bare = _STRING.sub("", field)
        is_open = '"' in bare or any(bare.count(a) > bare.count(b) for a, b in ("()", "[]", "{}"))
        if self._open == "Tag" and not END_OF_SENTENCE.search(field):
            return True
        return is_open or self._is_folded or (self._open == "Operator" and _MORE_FIELDS.match(line) is not None)

    def _continuation(self, field: str, line: str) -> str:
        """Return a line with what is between it and the text before it in a field."""
        line = line.rstrip()
        _, quote, name = _STRING.sub("", field).rpartition('"')
        has_spaces = " " in name + line.strip().partition('"')[0] or name.count("[") > name.count("]")
        if quote and self._was_full and not has_spaces:
            # A name without spaces is longer than the line.
            return line.lstrip() if line.startswith("  ") else line
        return line if self._is_folded else " " + line.strip()

    def _take_heading(self, line: str) -> bool:
        if (message := self._without_list(line)) is not None:
            self._messages.append(message)
        elif found := _SPACE_ONLY.search(line):
            self._messages.append(_Message(found.group(1)))
        elif found := _SECTION.search(line):
            self._section(found.group(1))
        elif _PEAK_BUFFERS.search(line):
            self._section("device memory")
        elif found := _SINGLE.search(line):
            size, capacity, shape, space, tag, kernel = found.groups()
            # For a kernel, the tag describes the window or scratch buffer in words.
            name = kernel if kernel and " " in tag and not tag.startswith("output of ") else None
            label = name or tag.removeprefix("output of ").split("@")[0]
            fields = {"Size": size, "Shape": shape, "XLA label": label}
            if name:
                fields["Operator"] = f'op_name="{tag}"'
            self._messages.append(_Message(space, integer(size), integer(capacity), [Listed(self._line, fields)]))
        elif found := _HBM.search(line):
            core, sparse, available = (size_of(line[found.start(i) :]) for i in (1, 3, 5))
            note = f"TensorCore {bytes_text(core)}, SparseCore {bytes_text(sparse)}"
            self._messages.append(_Message("hbm", core + sparse, available, notes=[note]))
        elif found := _TENSOR.search(line):
            kind = _TENSORFLOW_TYPES.get(found.group(2), found.group(2))
            fields = {"Shape": f"{kind}[{found.group(1)}]", "XLA label": "tensor"}
            self._messages.append(_Message("device memory", listed=[Listed(self._line, fields)]))
        elif found := _REQUEST.search(line):
            self._messages.append(
                _Message(
                    "device memory", notes=[f"the request that failed: {bytes_text(size_of(line[found.start(1) :]))}"]
                )
            )
        elif _PART.search(line) and self._messages and self._current is None:
            for found in _PART.finditer(line):
                self._messages[-1].parts.setdefault(found.group(1), size_of(line[found.start(2) :]))
        else:
            return False
        return True

    def _without_list(self, line: str) -> _Message | None:
        """Parse a line with the amounts used and available; None for other lines. A list may follow."""
        if found := _SCOPED.search(line):
            used, limit, short = _sizes(found, 3, 3)
            kernel, is_cut = read_kernel(found[2], self._line), _LEFT_OUT.search(found[2]) is not None
            return _Message(found[1], used, limit, short=short, kernel=kernel, is_cut=is_cut)
        if found := _USED.search(line):
            used, capacity, short = _sizes(found, 2, 3)
            return _Message(found[1], used, capacity, short=short)
        if found := _HBM_ONLY.search(line):
            used, capacity = _sizes(found, 1, 2)
            notes = [f"HLO temporaries {bytes_text(used)}; XLA counts arguments and results among them"]
            return _Message("hbm", used, capacity, notes=[*([f"module {found[5]}"] if found[5] else []), *notes])
        if found := _EARLY.search(line):
            used, capacity = _sizes(found, 1, 2)
            return _Message("hbm", used, capacity, notes=["the compilation was ended early"])
        if found := _AT_RUN_TIME.search(line):
            size, free, _, reservable = _sizes(found, 3, 4)
            # Programs are loaded at one end of the memory, so less than the free memory is reservable.
            capacity = reservable if found[2] == "reserve" and found[9] else free
            what = f"program {found[1]}" if found[1] else "program" if found[2] == "reserve" else "buffer"
            note = f"at run time: the {what} takes {bytes_text(size)}, {bytes_text(free)} are free"
            return _Message("hbm", size, capacity, notes=[note])
        return None

    def _section(self, space: str) -> None:
        """Start the list of a memory space; it belongs to the previous message if that has no list yet."""
        last = self._messages[-1] if self._messages else None
        if last is None or last.listed or (last.space != space and last.used):
            self._messages.append(_Message(space))
        else:
            last.space = space

    def results(self, source: str) -> tuple[list[tuple[ModuleUse, list[ShapeUse]]], list[Problem]]:
        """Return the totals and rows of the distinct messages, and the problems found."""
        self._read(self._folded)
        self.finish()
        problems: list[Problem] = []
        seen = set()
        whole = {message.amounts() for message in self._messages if message.listed}
        is_any_listed = any(message.listed for message in self._messages)
        results = []
        for message in self._messages:
            if message.key() in seen or not (message.listed or message.used or message.notes):
                continue
            if not message.listed and message.amounts() in whole:
                # A repetition without its list.
                continue
            seen.add(message.key())
            label = f"out of memory in {message.space}"
            rows = rows_of(message.listed, label, source, problems)
            if message.kernel is not None:
                rows += message.kernel.rows(label)
            rows.sort(key=ShapeUse.waste_key, reverse=True)
            is_unread = not rows and (message.listed or (self._list_line > 0 and not is_any_listed))
            results.append((_sums(message, label, source, rows, bool(is_unread)), rows))
            if is_unread:
                problems.append(Problem(self._list_line, _LIST_UNREAD, "", source))
            problems += message.cuts(source)
        if self._mixed_line:
            problems.append(Problem(self._mixed_line, _MIXED, "", source))
        return results, problems


def _is_whole(sentence: str, is_complete: bool = False) -> bool:
    """Whether a sentence has its amounts; if `is_complete`, with the parts that follow on some chips."""
    if _ALLOCATION.search(sentence) and not _SENTENCE.search(sentence):
        return _PART.search(sentence) is not None
    if "Attempting to" in sentence and not _END_OF_ATTEMPT.search(sentence):
        return False
    found = next((each for pattern in _WHOLE if (each := pattern.search(sentence))), None)
    return found is not None and not (is_complete and (found.lastindex or 0) < _OPTIONAL.get(found.re, 0))


def _is_divided(first: str, second: str) -> bool:
    """Whether a sentence begins with a phrase that is divided between two lines."""
    found = [_SENTENCE.search(each) for each in (first + second, f"{first} {second.lstrip()}")]
    return any(each and each.start() < len(first) < each.end() for each in found)


def _is_cut(lines: list[str]) -> bool:
    """Whether a word may continue after these lines: they are folded at a width."""
    return len(lines) > 1 and len(lines[-1]) == len(lines[-2]) and lines[-1][-1:] not in (".", ")", "]")


def _joined(lines: list[str]) -> list[str]:
    """Return lines with the first ones as one sentence, if they are one."""
    for is_complete in (True, False):
        for count in range(1, len(lines) + 1):
            both = "".join(lines[:count]), " ".join(each.strip() for each in lines[:count])
            whole = next((each for each in both if _is_whole(each, is_complete)), None)
            if whole is not None and (count == len(lines) or not _is_cut(lines[:count])):
                return [whole, *lines[count:]]
    return lines


def _sizes(found: re.Match[str], first: int, count: int) -> list[int]:
    """Return sizes matched as pairs of groups, number and unit; 0 for a missing one."""
    return [
        size_of(found[group] + (found[group + 1] or "")) if found[group] else 0
        for group in range(first, first + 2 * count, 2)
    ]


def _sums(message: _Message, label: str, source: str, rows: list[ShapeUse], is_unread: bool) -> ModuleUse:
    count, nbytes, logical = totals_of(rows)
    wasted = nbytes - logical
    used = message.used or message.parts.get("total allocation", 0)
    notes = list(message.notes)
    if message.capacity:
        # The difference of rounded sizes may be 0.
        missing = message.short or max(used - message.capacity, 0)
        notes.append(f"{bytes_text(message.capacity)} available, {bytes_text(missing)} short")
    if message.parts:
        notes.append(", ".join(f"{name} {bytes_text(size)}" for name, size in message.parts.items()))
    if message.kernel is not None:
        notes += [message.kernel.note(), _KERNEL_LISTED]
        # The kernel's arrays are in other memory.
        wasted = 0
    elif is_unread:
        notes.append(f"{_LIST_UNREAD}; {_HOW_TO_REPORT}")
    else:
        notes.append("the message lists only the largest allocations" if rows else _NOTHING_LISTED)
    peak = Peak(used, max(used - wasted, 0), "out-of-memory message") if used else None
    return ModuleUse(
        label, source, buffer_count=count, nbytes=nbytes, logical_nbytes=logical, peak=peak, notes=tuple(notes)
    )
