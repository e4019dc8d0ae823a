"""Out-of-memory messages: the allocations of public issues, in the forms in which XLA prints them.

Tests of: hlo.out_of_memory.

``tests/data/hlo/out_of_memory.json`` has the facts of each message, with its source: sizes, shapes, operators and
labels. They are printed here as the message has them: plain, behind the prefixes of loggers, within longer logs.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
from fastindex.hlo.out_of_memory import size_of

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


def check(report: fi.Report, facts: dict[str, Any]) -> None:
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
    check(fi.report(text), facts)
    check(fi.report(io.BytesIO(text.encode())), facts)
    file = tmp_path / "log"
    file.write_text(text)
    check(fi.report(file), facts)


@pytest.mark.parametrize("facts", MESSAGES, ids=source_name)
def test_names_operations_and_lines(facts: dict[str, Any]) -> None:
    places = [place for use in fi.report(message(facts)).uses for place in use.places]
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
    check(fi.report(noise + message(facts) + noise[:5000] + message(facts) + noise), facts)


def test_line_numbers_are_those_of_the_log() -> None:
    text = message(MESSAGES[0])
    wanted = text.split("\n").index("  1. Size: 32.00G") + 1
    noise = "nothing to see here\n" * 100_000
    ((place,),) = (use.places for use in fi.report(noise + text).uses)
    assert place.line == 100_000 + wanted


def test_an_exception_with_escaped_line_breaks() -> None:
    check(fi.report(f"XlaRuntimeError({message(MESSAGES[1])!r})\n"), MESSAGES[1])


def test_two_memory_spaces() -> None:
    vmem = {**MESSAGES[1], "space": "vmem", "used": "16.30M", "capacity": "16.00M"}
    report = fi.report(message(MESSAGES[1]) + message(vmem))
    assert [module.label for module in report.modules] == ["out of memory in hbm", "out of memory in vmem"]
    assert [module.peak.nbytes for module in report.modules if module.peak] == [64 << 30, size_of("16.30M")]


def test_what_the_pages_of_xla_show() -> None:
    """Sources: openxla.org/xla/errors/error_1000 and openxla.org/xla/oom_debugging."""
    report = fi.report(
        "RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, "
        "exceeding available bytes: 95.74G\n"
    )
    assert report.peak_nbytes == size_of("34.82G") + size_of("174.10G")
    report = fi.report(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
        "Used 49.34G of 32.00G hbm. Exceeded hbm capacity by 17.34G.\n"
    )
    assert report.peak_nbytes == size_of("49.34G")
    report = fi.report(
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Allocation (size=107374182400) would exceed memory (size=17179869184) :: "
        "#allocation7 [shape = 'u8[327680,327680]{1,0:T(8,128)(4,1)}', space=hbm, size = 0xffffffffffffffff, "
        "tag = 'output of xor_convert_fusion@{}'] :: <no-hlo-instruction>\n"
    )
    (use,) = report.uses
    assert (use.nbytes, use.places[0].instruction) == (107374182400, "xor_convert_fusion")
    assert report.peak_nbytes == 107374182400


def test_a_tensor_that_tensorflow_could_not_place() -> None:
    report = fi.report(
        "ResourceExhaustedError: OOM when allocating tensor with shape[32,512,512] and type float on GPU:0\n"
    )
    assert [(str(use.shape), use.nbytes) for use in report.uses] == [("f32[32,512,512]{2,1,0}", 32 * 512 * 512 * 4)]


@pytest.mark.parametrize("words", ["while trying to allocate", "allocating"])
def test_a_message_without_a_list_says_what_to_do(words: str) -> None:
    report = fi.report(f"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory {words} 214748364800 bytes.\n")
    assert report.buffer_count == 0
    assert "200.0 GiB" in report.text()
    assert "--xla_dump_to" in report.text()


def test_an_allocation_that_cannot_be_read_is_a_problem() -> None:
    facts = {**MESSAGES[4], "allocations": [{**MESSAGES[4]["allocations"][0], "shape": "bf17[3]"}]}
    report = fi.report(message({**MESSAGES[4], "allocations": facts["allocations"] + MESSAGES[4]["allocations"][1:]}))
    assert report.buffer_count == 1
    assert "bf17" in str(report.problems[0])


def test_a_log_without_a_message() -> None:
    with pytest.raises(fi.FastIndexError, match="no out-of-memory message"):
        fi.report("epoch 3: loss 0.1\n" * 100_000)
