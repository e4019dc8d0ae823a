"""Out-of-memory messages: the allocations of public issues, in the forms in which XLA prints them.

Tests of: hlo.allocations, hlo.log_lines, hlo.out_of_memory.

``tests/data/hlo/out_of_memory.json`` has the facts of each message, with its source: sizes, shapes, operators and
labels. They are printed here as the message has them: plain, after the prefixes of loggers, within longer logs.
"""

from __future__ import annotations

import html
import io
import json
import quopri
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.allocations import size_of
from fastindex.show.spelling import bytes_text

MESSAGES = json.loads((Path(__file__).resolve().parents[1] / "data" / "hlo" / "out_of_memory.json").read_text())
SEPARATOR = "=========================="
LOGGER = "2020-05-04 09:05:40.721128: E    1578 tensorflow/compiler/xla/xla_client/xla_util.cc:76] "
RAY = "\x1b[2m\x1b[36m(MeshHostWorker pid=489)\x1b[0m "


def tpu_message(facts: dict[str, Any]) -> str:
    lines = []
    if facts["used"]:
        space, used, capacity = facts["space"], facts["used"], facts["capacity"]
        lines += [
            f"RuntimeError: Resource exhausted: Ran out of memory in memory space {space}. Used {used} of {capacity} "
            f"{space}. Exceeded {space} capacity by 1.00G.",
            "",
            f"Total {space} usage >= {used}:",
            "    reserved        528.00M",
            "    program          41.22G",
            "    arguments       unknown size",
            "",
            "Output size unknown.",
        ]
    lines += ["", f"  Largest program allocations in {facts['space']}:", ""]
    for number, item in enumerate(facts["allocations"], 1):
        lines.append(f"  {number}. Size: {item['size']}")
        if "operator" in item:
            lines += f"     Operator: {item['operator']}".split("\n")
        lines += [f"     Shape: {item['shape']}", f"     Unpadded size: {item['unpadded']}"]
        if item["unpadded"] != item["size"]:
            lines.append("     Extra memory due to padding: 31.00G (32.0x expansion)")
        lines += f"     XLA label: {item['label']}".split("\n")
        if "type" in item:
            lines.append(f"     Allocation type: {item['type']}")
        lines += [f"     {SEPARATOR}", ""]
    return "\n".join(lines)


def gpu_message(facts: dict[str, Any]) -> str:
    lines = ["XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes."]
    lines += ["BufferAssignment OOM Debugging.", "BufferAssignment stats:"]
    if facts["used"]:
        lines += ["             parameter allocation:    6.00MiB", "              constant allocation:         0B"]
        lines.append(f"                 total allocation:   {facts['used']}")
        lines.append("              total fragmentation:         0B (0.00%)")
    lines.append("Peak buffers:")
    for number, item in enumerate(facts["allocations"], 1):
        lines += [f"\tBuffer {number}:", f"\t\tSize: {item['size']}"]
        if "operator" in item:
            lines.append(f"\t\tOperator: {item['operator']}")
        if item.get("entry"):
            lines.append(f"\t\tEntry Parameter Subshape: {item['shape']}")
        else:
            lines += [f"\t\tXLA Label: {item['label']}", f"\t\tShape: {item['shape']}"]
        lines += [f"\t\t{SEPARATOR}", ""]
    return "\n".join(lines)


def message(facts: dict[str, Any]) -> str:
    text = tpu_message(facts) if facts["style"].startswith("tpu") else gpu_message(facts)
    prefix = LOGGER if "logger" in facts["style"] else RAY if "ray" in facts["style"] else ""
    return "\n".join(prefix + line for line in text.split("\n")) + "\n"


def check(report: fi.hlo.Report, facts: dict[str, Any]) -> None:
    found: Counter[tuple[str, int]] = Counter()
    for use in report.uses:
        found[str(use.shape), use.nbytes] += use.count
    expected: Counter[tuple[str, int]] = Counter()
    for item in facts["allocations"]:
        shape = fi.Shape.parse(item["shape"])
        assert item.get("untiled") or shape.nbytes == pytest.approx(size_of(item["size"]), rel=0.005)
        expected[str(shape), size_of(item["size"]) if item.get("untiled") else shape.nbytes] += 1
        if "unpadded" in item:
            assert shape.logical_nbytes == pytest.approx(size_of(item["unpadded"]), rel=0.005)
    assert found == expected
    if facts["used"]:
        assert report.peak_nbytes == size_of(facts["used"])
        assert report.peak is not None
        assert report.peak.basis == "out-of-memory message"
    assert report.problems == ()


def source_name(facts: dict[str, Any]) -> str:
    return str(facts["source"].removeprefix("https://github.com/"))


@pytest.mark.parametrize("facts", MESSAGES, ids=source_name)
def test_every_allocation_is_read(facts: dict[str, Any], tmp_path: Path) -> None:
    text = message(facts)
    check(fi.hlo.report(text), facts)
    check(fi.hlo.report(io.BytesIO(text.encode())), facts)
    file = tmp_path / "log"
    file.write_text(text)
    check(fi.hlo.report(file), facts)


@pytest.mark.parametrize("facts", MESSAGES, ids=source_name)
def test_names_operations_and_lines(facts: dict[str, Any]) -> None:
    places = [place for use in fi.hlo.report(message(facts)).uses for place in use.places]
    for item in facts["allocations"]:
        if "label" in item:
            name = item["label"].split(" = ")[0].lstrip("%")
            (place, *_) = [p for p in places if p.instruction == name]
            assert place.role == item.get("type", "")
        if "source_file" in item.get("operator", ""):
            file = re.findall(r'source_file="(.*?)" source_line=(\d+)', item["operator"])[0]
            assert any((place.source_file, str(place.source_line)) == file for place in places)


@pytest.mark.parametrize("facts", MESSAGES, ids=source_name)
def test_cut_out_of_a_long_log(facts: dict[str, Any]) -> None:
    """Megabytes of log before and after; the message twice, as when an exception is printed again."""
    noise = "I0101 10:00:00 train.py:3] step 17: loss 2.71, x = 5, Shape: none of ours\n" * (
        15_000 if facts is MESSAGES[0] else 100
    )
    check(fi.hlo.report(noise + message(facts) + noise[:5000] + message(facts) + noise), facts)


def test_line_numbers_are_those_of_the_log() -> None:
    text = message(MESSAGES[0])
    wanted = text.split("\n").index("  1. Size: 32.00G") + 1
    noise = "nothing to see here\n" * 100_000
    ((place,),) = (use.places for use in fi.hlo.report(noise + text).uses)
    assert place.line == 100_000 + wanted


def test_an_exception_with_escaped_line_breaks() -> None:
    check(fi.hlo.report(f"XlaRuntimeError({message(MESSAGES[1])!r})\n"), MESSAGES[1])


def records(text: str) -> str:
    return "".join(json.dumps({"log": line + "\n", "stream": "stderr", "n": 1}) + "\n" for line in text.split("\n"))


def payloads(text: str) -> str:
    """One record with the whole message, within others, as a list over several lines."""
    record = {"resource": {"labels": {"pod": "a"}}, "jsonPayload": {"message": text, "level": "error"}}
    return json.dumps([{"textPayload": "started"}, record], indent=2) + "\n"


def html_lines(text: str) -> str:
    return (
        "<pre>" + "<br/>".join(html.escape(line).replace("    ", "&nbsp;   ") for line in text.split("\n")) + "</pre>\n"
    )


def csv_lines(text: str) -> str:
    lines = ['2025-06-11T13:57:15Z,stderr,"' + line.replace('"', '""') + '",pod-1' for line in text.split("\n")]
    return "time,stream,message,pod\n" + "\n".join(lines) + "\n"


def folded(text: str, width: int) -> str:
    """The lines divided at a width, without what a terminal does not show."""
    text = re.sub("\x1b\\[[0-9;]*m", "", text).replace(LOGGER, "")
    return re.sub(rf"(.{{{width}}})(?=.)", r"\1\n", text)


WRAPPED: dict[str, Callable[[str], str]] = {
    "a JSON record a line": records,
    "a JSON file": payloads,
    "logfmt": lambda text: "".join(f"t=1 level=error msg={json.dumps(line)} host=a\n" for line in text.split("\n")),
    "one logfmt record": lambda text: f"t=1 level=error msg={json.dumps(text)} host=a\n",
    "CSV": csv_lines,
    "one CSV record": lambda text: 'a,b,"' + text.replace('"', '""') + '",c\n',
    "YAML": lambda text: "".join("- textPayload: '" + line.replace("'", "''") + "'\n" for line in text.split("\n")),
    "a CSV record of several lines": lambda text: 'a,b\n1,"' + text.replace('"', '""') + '"\n',
    "CSV without quotes": lambda text: "".join(f"1,{line},pod-1\n" for line in text.split("\n")),
    "YAML of several keys": lambda text: "".join(
        f"- id: a\n  textPayload: {json.dumps(line)}\n  severity: ERROR\n" for line in text.split("\n")
    ),
    "HTML": html_lines,
    "XML attribute": lambda text: f'<failure message="{html.escape(text).replace(chr(10), "&#10;")}"/>',
    "XML": lambda text: "".join(f"<e t='1'><m>{html.escape(line)}</m></e>\n" for line in text.split("\n")),
    "XML, as it is": lambda text: "".join(f"<e><m><![CDATA[{line}]]></m></e>\n" for line in text.split("\n")),
    "colours in JSON records": lambda text: records("\n".join(f"\x1b[31m{line}\x1b[0m" for line in text.split("\n"))),
    "JSON records in JSON records": lambda text: records(records(text).rstrip("\n")),
    "text after each line": lambda text: "".join(f"{line} | pod=a-1 container=main\n" for line in text.split("\n")),
    "a colour after each line": lambda text: "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.split("\n")),
    "lines of a terminal": lambda text: folded(text, 80),
    "lines of a narrow terminal": lambda text: folded(text, 60),
    "words of a terminal": lambda text: "".join(
        "\n".join(textwrap.wrap(line, 76, break_long_words=False) or [""]) + "\n"
        for line in folded(text, 9999).split("\n")
    ),
    "divided records of Kubernetes": lambda text: "".join(
        f"2025-06-11T13:57:15Z stderr {'P' * (at != last) or 'F'} {part}\n"
        for parts in (folded(line, 60).split("\n") for line in text.split("\n"))
        for last in [len(parts) - 1]
        for at, part in enumerate(parts)
    ),
    "quoted-printable mail": lambda text: quopri.encodestring(text.encode()).decode(),
    "bytes in records of journald": lambda text: "".join(
        json.dumps({"MESSAGE": list(line.encode()), "_PID": "1"}) + "\n" for line in text.split("\n")
    ),
    "escaped characters in JSON records": lambda text: "".join(
        '{"log": "' + "".join(f"\\u{ord(character):04x}" for character in line) + '"}\n' for line in text.split("\n")
    ),
    "quotes of a word processor": lambda text: re.sub('"([^"\n]*)"', "\u201c\\1\u201d", text),
    "spaces for line breaks": lambda text: " ".join(text.split("\n")),
    "signs for line breaks": lambda text: text.replace("\n", "#012"),
    "colours within lines": lambda text: re.sub(r"(\w+):", "\x1b[1m\\1\x1b[0m:", text),
    "two processes": lambda text: "".join(f"[rank0] {line}\n[rank1] {line}\n" for line in text.split("\n")),
    "spaces of a web page": lambda text: text.replace(" ", "\xa0"),
    "records in CSV": lambda text: "".join(
        f'a,"{json.dumps({"message": line}).replace(chr(34), 2 * chr(34))}"\n' for line in text.split("\n")
    ),
    "signs of Markdown": lambda text: re.sub(r"([_*\[\]{}])", r"\\\1", text),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("facts", MESSAGES, ids=source_name)
def test_logs_as_they_are_kept(facts: dict[str, Any], wrapped: str) -> None:
    report = fi.hlo.report(WRAPPED[wrapped](message(facts)))
    check(report, facts)
    # A name over several lines is not put together again from several records.
    if all(line.count('"') % 2 == 0 for line in message(facts).split("\n")):
        assert words_of(report) == words_of(fi.hlo.report(message(facts)))


def words_of(report: fi.hlo.Report) -> list[object]:
    """Everything that a report says in words."""
    rows = [
        (str(use.shape), [(place.instruction, place.op_name, place.source_text, place.role) for place in use.places])
        for use in report.uses
    ]
    return [[(module.label, module.notes) for module in report.modules], rows]


def test_a_list_that_cannot_be_read_is_said() -> None:
    text = message(MESSAGES[0]).replace(": ", "=").replace("memory in memory space", "memory in memory space")
    text = "Ran out of memory in memory space hbm. Used 9G of 8G hbm. Exceeded hbm capacity by 1G.\n" + text
    report = fi.hlo.report(text.replace("Size=", "Size is "))
    assert "lists no allocations" not in report.text()
    assert "cannot be read" in report.text()
    assert any("cannot be read" in problem.message for problem in report.problems)


CUT: dict[str, Callable[[str], str]] = {
    "newest line first": lambda text: "\n".join(text.split("\n")[::-1]),
    "a record cut by its logger": lambda text: (
        json.dumps({"message": text}).partition("  2. Size: 4")[0] + "  2. Size: 4\\"
    ),
    "a part left out": lambda text: re.sub("(?s)(  1. Size: ..)....(.*?)  2. Size", r"\1<snip>  3. Size", text),
    "an allocation left out": lambda text: text.replace("  2. Size", "  3. Size"),
}


@pytest.mark.parametrize("cut", CUT)
def test_a_cut_list_is_said(cut: str) -> None:
    (facts,) = (facts for facts in MESSAGES if len(facts["allocations"]) == 2 and facts["style"] == "tpu")
    report = fi.hlo.report(CUT[cut](WITHOUT_LIST[1][0] + "\n" + message(facts)))
    assert any("list" in problem.message for problem in report.problems), report.problems
    assert report.uses or cut == "newest line first"


def test_names_longer_than_the_lines() -> None:
    name = "jit(train)/transformer/layer_17/attention/while/body/closed_call/pallas_call_with_a_long_name"
    tag = "input window allocation for operator input 0"
    text = "Used 32.00M of 16.00M vmem. Exceeded vmem capacity by 16.00M.\n\n  Largest program allocations in vmem:\n\n"
    text = f"E: XLA:TPU compile permanent error. Ran out of memory in memory space vmem. {text}  1. Size: 16.00M\n"
    text += f'     Operator: op_name="{name}"\n     Shape: u8[16777216]{{0}}\n     Tag: {tag}. The shape is f32[9].\n'
    text += "     XLA label: k.1 = custom-call(x.1)\n     =========================="
    for width in (40, 60, 76, 100):
        lines = [part for line in text.split("\n") for part in textwrap.wrap(line, width) or [""]]
        ((place,),) = (use.places for use in fi.hlo.report("\n".join(lines)).uses)
        assert (place.instruction, place.op_name) == ("k.1", f"{name}, {tag}")


def test_a_hex_dump_is_named() -> None:
    lines = [message(MESSAGES[0]).encode()[at : at + 16] for at in range(0, 320, 16)]
    dumps = (
        "".join(
            f"{16 * at:08x}  {line[:8].hex(' ')}  {line[8:].hex(' ')}  |{line!r}|\n" for at, line in enumerate(lines)
        ),
        "".join(f"{16 * at:08x}: {line.hex(' ', 2)}  {line!r}\n" for at, line in enumerate(lines)),
        "".join(f"{16 * at:07x} {line.hex(' ', 2)}\n" for at, line in enumerate(lines)),
    )
    for dump in dumps:
        with pytest.raises(fi.FastIndexError, match="hex dump"):
            fi.hlo.report(dump)


#: A message without a list, the memory space, what is used and what there is, and what the report says besides.
WITHOUT_LIST = [
    (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (109.87G) exceeds available HBM (15.75G). HLO module: jit__lambda.\n"
        "See https://openxla.org/xla/errors/error_1000 for more details.",
        "hbm", "109.87G", "15.75G", ["module jit__lambda", "HLO temporaries 109.9 GiB", "--xla_dump_to"],
    ),
    (
        "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in "
        "memory space smem. Used 1.00M of 1.00M smem. Exceeded smem capacity by 1.7K.",
        "smem", "1.00M", "1.00M", ["1.0 MiB available, 1.7 KiB short"],
    ),
    (
        "Compilation failure: Aborting compilation early because it's unlikely to have enough device memory. Requires "
        "34.46G, has 15.75G available. If more detailed logging is desired, set "
        "--xla_tpu_impure_oom_fast_exit_threshold=-1",
        "hbm", "34.46G", "15.75G", ["18.7 GiB short", "--xla_dump_to"],
    ),
    (
        "ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 8.00M. That was not "
        "possible. There are 6.43M free.; (0x0x1_HBM0)",
        "hbm", "8.00M", "6.43M", ["at run time", "1.6 MiB short"],
    ),
    (
        "RESOURCE_EXHAUSTED: E0100: RuntimeBufferAllocationFailure: Error allocating device buffer: Attempting to "
        "allocate 2.00G. That was not possible. There are 1.52G free.; (0x0x0_HBM0)",
        "hbm", "2.00G", "1.52G", ["at run time", "the buffer takes 2.0 GiB"],
    ),
    (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Error loading program 'jit_step_fn': Attempting to reserve 29.49G at the "
        "bottom of memory. That was not possible. There are 147.64M free, 0B reserved, and 47.64M reservable.",
        "hbm", "29.49G", "47.64M", ["the program jit_step_fn takes 29.5 GiB"],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_LIST, ids=range(len(WITHOUT_LIST)))
def test_messages_without_a_list(case: tuple[str, str, str, str, list[str]]) -> None:
    text, space, used, capacity, said = case
    for written in (
        text + "\n",
        "noise\n" * 1000 + LOGGER + text + "\nmore\n",
        *(wrap(text) for wrap in WRAPPED.values()),
    ):
        report = fi.hlo.report(written)
        (module,) = report.modules
        assert module.label == f"out of memory in {space}"
        assert report.peak_nbytes == size_of(used)
        shown = " ".join(report.text().split())
        assert all(part in shown for part in said), shown
        available = fi.hlo.report(written).modules[0].notes
        assert any(note.startswith(bytes_text(size_of(capacity)) + " available") for note in available)


def test_scoped_memory_of_a_kernel() -> None:
    text = (
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on "
        "stack for %cache_write.3 = bf16[90112,32,128]{2,1,0:T(8,128)(2,1)} custom-call(%select_n.7, %copy.9), "
        'custom_call_target="tpu_custom_call", operand_layout_constraints={s32[], bf16[90112,32,128]{2,1,0}}, '
        'output_to_operand_aliasing={{}: (1, {})}, metadata={op_name="jit(update)/cache_write" source_file="serve.py" '
        "source_line=88}. Scoped allocation with size 40.06M and limit 32.00M exceeded scoped vmem limit by 8.06M. It "
        "should not be possible to run out of scoped vmem - please file a bug against XLA.\n"
    )
    report = fi.hlo.report("Traceback:\n" + text)
    (module,) = report.modules
    assert module.label == "out of memory in vmem"
    assert report.peak_nbytes == size_of("40.06M")
    assert any("32.0 MiB available, 8.1 MiB short" in note for note in module.notes)
    assert any("cache_write.3" in note and "serve.py:88" in note for note in module.notes)
    rows = {(place.instruction, place.role): str(use.shape) for use in report.uses for place in use.places}
    assert rows == {
        ("cache_write.3", "result"): "bf16[90112,32,128]{2,1,0:T(8,128)(2,1)}",
        ("select_n.7", "operand 0"): "s32[]",
        ("copy.9", "operand 1"): "bf16[90112,32,128]{2,1,0}",
    }
    assert {use.nbytes for use in report.uses} == {4, 90112 * 32 * 128 * 2}
    # Also where the kernel cannot be read.
    (module,) = fi.hlo.report(text.replace("custom-call(", "custom-call[")).modules
    assert module.peak is not None
    assert any("cache_write.3" in note for note in module.notes)


@pytest.mark.parametrize("line_break", [" ", "\n", "\n    "])
def test_scoped_memory_as_libtpu_says_it_today(line_break: str) -> None:
    """libtpu 0.0.50, with the line breaks that a log may add."""
    text = (
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:\nRan out of memory in memory "
        "space vmem while allocating on stack for %tpu_custom_call.1 = f32[4096,2048]{1,0:T(8,128)} custom-call(%x.1), "
        'custom_call_target="tpu_custom_call", operand_layout_constraints={f32[4096,2048]{1,0}}, frontend_attributes='
        '{kernel_metadata={}}, metadata={op_name="jit(wrapped)/pallas_call" stack_frame_id=1}. Scoped allocation with '
        "size 32.00M and limit 16.00M exceeded scoped vmem limit by 16.00M. It should not be possible to run out of "
        "scoped vmem - \nSee https://openxla.org/xla/errors/error_1001 for more details.\n"
    ).replace(", ", f",{line_break}")
    report = fi.hlo.report(text)
    (module,) = report.modules
    assert (module.label, report.peak_nbytes) == ("out of memory in vmem", 32 << 20)
    assert "the kernel tpu_custom_call.1 (custom-call): jit(wrapped)/pallas_call" in module.notes
    assert {(str(use.shape), place.role) for use in report.uses for place in use.places} == {
        ("f32[4096,2048]{1,0:T(8,128)}", "result"), ("f32[4096,2048]{1,0}", "operand 0"),
    }  # fmt: skip


def test_the_windows_of_a_kernel() -> None:
    """libtpu 0.0.50 of a v4, which prints the message again, cut off."""
    windows = [
        f'  {number}. Size: 16.00M\n     Operator: op_name="jit(wrapped)/pallas_call"\n     Shape: u8[16777216]{{0}}\n'
        f"     Unpadded size: 16.00M\n     Tag: {what} window allocation for operator {what} 0. The window shape is "
        "f32[1024,2048], while the full shape is f32[4096,2048]. This allocation has 2 buffering levels.\n"
        '     XLA label: tpu_custom_call.1 = custom-call(x.1), custom_call_target="tpu_custom_call"\n'
        f"     Allocation type: scoped\n     {SEPARATOR}\n\n"
        for number, what in enumerate(("input", "output"), 1)
    ]
    head = "Ran out of memory in memory space vmem. Used 32.00M of 16.00M vmem. Exceeded vmem capacity by 16.00M."
    listed = "  Largest program allocations in vmem:\n\n" + "".join(windows)
    report = fi.hlo.report(f"RESOURCE_EXHAUSTED: {head}\n\n{listed} [type='\\x08{head}\\n']\n")
    assert len(report.modules) == 1
    assert (report.peak_nbytes, report.buffer_count) == (32 << 20, 2)
    assert sorted(place.op_name for use in report.uses for place in use.places) == [
        f"jit(wrapped)/pallas_call, {what} window allocation for operator {what} 0" for what in ("input", "output")
    ]


@pytest.mark.parametrize("wrapped", [None, *WRAPPED])
def test_allocations_without_tiles_or_a_shape(wrapped: str | None) -> None:
    text = (
        "Ran out of memory in memory space vmem. Used 29.95M of 16.00M vmem. Exceeded vmem capacity by 13.95M.\n\n"
        "  Largest program allocations in vmem:\n\n  1. Size: 29.66M\n"
        "     XLA label: register allocator spill slots call depth 2\n     Allocation type: scoped\n"
        f"     {SEPARATOR}\n\n  2. Size: 64.0K\n     Shape: f32[128,3]{{1,0}}\n     Unpadded size: 1.5K\n"
        "     Extra memory due to padding: 62.5K (42.7x expansion)\n     XLA label: fusion.9\n"
        f"     Allocation type: scoped\n     {SEPARATOR}\n"
    )
    report = fi.hlo.report(WRAPPED[wrapped](text) if wrapped else text)
    padded, spilled = report.uses
    assert (padded.nbytes, padded.logical_nbytes, round(padded.padding_ratio, 2)) == (65536, 1536, 42.67)
    assert padded.to_json()["padding_ratio"] == padded.padding_ratio
    assert spilled.nbytes == spilled.logical_nbytes == size_of("29.66M")
    (place,) = spilled.places
    assert padded.places[0].instruction == "fusion.9"
    assert (place.instruction, place.role) == ("register allocator spill slots call depth 2", "scoped")
    assert report.problems == ()


def test_mixed_lists_of_two_processes_are_said() -> None:
    first = message(MESSAGES[1])
    second = first.replace("Size: ", "Size: 1")
    mixed = "".join(f"0: {a}\n1: {b}\n" for a, b in zip(first.split("\n"), second.split("\n"), strict=True))
    report = fi.hlo.report(mixed)
    assert [(use.count, use.nbytes) for use in report.uses] == [
        (use.count, use.nbytes) for use in fi.hlo.report(first).uses
    ]
    (problem,) = report.problems
    assert "mixed" in problem.message
    assert "Size: 1" in mixed.split("\n")[problem.line - 1]


def test_two_memory_spaces() -> None:
    vmem = {**MESSAGES[1], "space": "vmem", "used": "16.30M", "capacity": "16.00M"}
    report = fi.hlo.report(message(MESSAGES[1]) + message(vmem))
    assert [module.label for module in report.modules] == ["out of memory in hbm", "out of memory in vmem"]
    assert [module.peak.nbytes for module in report.modules if module.peak] == [64 << 30, size_of("16.30M")]


def test_what_the_pages_of_xla_show() -> None:
    """Sources: openxla.org/xla/errors/error_1000 and openxla.org/xla/oom_debugging."""
    report = fi.hlo.report(
        "RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, "
        "exceeding available bytes: 95.74G\n"
    )
    assert report.peak_nbytes == size_of("34.82G") + size_of("174.10G")
    report = fi.hlo.report(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 49.34G of 32.00G hbm. Exceeded hbm capacity by 17.34G.\n"
    )
    assert report.peak_nbytes == size_of("49.34G")
    report = fi.hlo.report(
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Allocation (size=107374182400) would exceed memory (size=17179869184) :: "
        "#allocation7 [shape = 'u8[327680,327680]{1,0:T(8,128)(4,1)}', space=hbm, size = 0xffffffffffffffff, "
        "tag = 'output of xor_convert_fusion@{}'] :: <no-hlo-instruction>\n"
    )
    (use,) = report.uses
    assert (use.nbytes, use.places[0].instruction) == (107374182400, "xor_convert_fusion")
    assert report.peak_nbytes == 107374182400


def test_a_tensor_that_tensorflow_could_not_place() -> None:
    report = fi.hlo.report(
        "ResourceExhaustedError: OOM when allocating tensor with shape[32,512,512] and type float on GPU:0\n"
    )
    assert [(str(use.shape), use.nbytes) for use in report.uses] == [("f32[32,512,512]{2,1,0}", 32 * 512 * 512 * 4)]


@pytest.mark.parametrize("words", ["while trying to allocate", "allocating"])
def test_a_message_without_a_list_says_what_to_do(words: str) -> None:
    report = fi.hlo.report(f"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory {words} 214748364800 bytes.\n")
    assert report.buffer_count == 0
    assert "200.0 GiB" in report.text()
    assert "--xla_dump_to" in report.text()


def test_an_allocation_that_cannot_be_read_is_a_problem() -> None:
    facts = {**MESSAGES[4], "allocations": [{**MESSAGES[4]["allocations"][0], "shape": "bf17[3]"}]}
    report = fi.hlo.report(
        message({**MESSAGES[4], "allocations": facts["allocations"] + MESSAGES[4]["allocations"][1:]})
    )
    assert report.buffer_count == 1
    assert "bf17" in str(report.problems[0])


def test_a_log_without_a_message() -> None:
    with pytest.raises(fi.FastIndexError, match="no out-of-memory message"):
        fi.hlo.report("epoch 3: loss 0.1\n" * 100_000)
