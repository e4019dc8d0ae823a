"""Convert a checkpoint to one that another engine loads: safetensors files, an index, and small files.

Shards are written one after the other, with a journal, into a staging folder next to the target. When all files are
complete, the folder is renamed. An interrupted job resumes after the complete shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastindex.arrays.fills import Casting, check_casting
from fastindex.core.shape import Shape
from fastindex.errors import ArgumentTypeError, FastIndexError
from fastindex.jobs.input_files import open_raw, read_whole
from fastindex.jobs.layout_jobs import memory_limit
from fastindex.jobs.positions import sync_folder
from fastindex.jobs.reading import StoredArray
from fastindex.jobs.writing import OutputFile, write_file
from fastindex.runtime.progress import NoProgress, Progress
from fastindex.weights.checkpoints import checksum_of
from fastindex.weights.conversions import Conversion, conversions_of
from fastindex.weights.expressions import Expression, Stored
from fastindex.weights.gguf_files import read_tensors
from fastindex.weights.manifests import JOURNAL, MANIFEST, Piece, opened_journal
from fastindex.weights.recipes import RECIPES
from fastindex.weights.repack_jobs import memory_within
from fastindex.weights.rules import conversion_rules_of, errors_about, mappings_of, shown
from fastindex.weights.safetensors_files import header_of, is_plain_name, json_object
from fastindex.weights.tensors import opened

_FORMAT = "fastindex converted checkpoint"
_KEYS = ("rules", "formats", "about", "config", "metadata", "expects")
_CONFIG = "config.json"
#: Files that engines read besides the tensors.
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*preprocessor_config.json",
    "processor_config.json",
    "*.tiktoken",
    "spiece.model",
)
_MOST_SMALL_BYTES = 256 << 20
#: The default shard size of Hugging Face's `save_pretrained`.
DEFAULT_SHARD_BYTES = 5 * 10**9


class ConvertedCheckpoint:
    """A folder that `convert_checkpoint` has written, or would write.

    Attributes
    ----------
    folder : str
    lines : tuple of str
        One for each conversion: name, type and sizes of the source, then of the target, and the steps in between.

    Examples
    --------
    >>> print(ConvertedCheckpoint("out", ("a F32 [2] -> b F32 [2]",)))
    a F32 [2] -> b F32 [2]
    """

    def __init__(self, folder: str, lines: Sequence[str] = ()) -> None:
        self.folder = folder
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def verify(self) -> int:
        """Compare the checksums of all files with those of the manifest, and return the number of files.

        Raises
        ------
        FastIndexError
            A file has other bytes, or there is no manifest.
        OSError
            A file cannot be read.
        """
        files = files_of(self.folder)
        if files is None:
            raise FastIndexError(f"{self.folder} holds no converted checkpoint: {MANIFEST} is not that of one")
        for name, checksum in files.items():
            file = open_raw(os.path.join(self.folder, name))
            if checksum_of(StoredArray(file, Shape("u8", (file.nbytes,)))) != checksum:
                raise FastIndexError(f"{self.folder}: {name} is not as it was written")
        return len(files)


def files_of(folder: str | os.PathLike[str]) -> dict[str, str] | None:
    """Return the checksum of each file of a converted checkpoint; None if the folder is none."""
    path = Path(folder, MANIFEST)
    if not path.is_file():
        return None
    content = json_object(read_whole(str(path), _MOST_SMALL_BYTES), str(path))
    files = content.get("files")
    if content.get("format") != _FORMAT or not isinstance(files, dict):
        return None
    if not all(is_plain_name(name) and isinstance(checksum, str) for name, checksum in files.items()):
        raise FastIndexError(f"{path} does not list files of its folder")
    return files


@dataclass(frozen=True, slots=True)
class _Shard:
    """An output file of tensors."""

    name: str
    tensors: tuple[Conversion, ...]
    header: bytes

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(one.expression.nbytes for one in self.tensors)


def convert_checkpoint(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    rules: str | Iterable[Mapping[str, Any]] | Mapping[str, Any],
    *,
    dry_run: bool = False,
    casting: Casting = "same_kind",
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    max_memory: int | None = None,
    progress: Progress | None = None,
) -> ConvertedCheckpoint:
    """Convert a checkpoint to the names, shapes and formats of another engine, in bounded memory.

    The folder appears complete or not at all; an interrupted job resumes in the staging folder next to it, whose name
    ends in ``.partial``. Codes and scales are moved, never requantised: an inexact step is an error.

    Parameters
    ----------
    source : path
        A ``.safetensors`` file, the index of several, a folder with one of these, or a ``.gguf`` file (extra ``gguf``).
    folder : path
        Output folder; it must not exist, and its parent must.
    rules : str, iterable of mappings, or mapping
        The name of a recipe, rules, or ``{"rules": [...], "config": {...}, "metadata": {...}, "expects": {...}}``. The
        page *Another engine's checkpoint* describes them.
    dry_run : bool
        Write nothing; the result lists the conversions.
    casting : {"same_kind", "safe", "equiv", "no", "unsafe"}
        NumPy's casting rule for the ``dtype`` of rules.
    max_shard_bytes : int
        The most bytes of tensors in a file, unless one tensor has more.
    max_memory : int, optional
        Memory limit of the whole process, in bytes; by default, 1 GiB more than it uses at the call.
    progress : optional
        An object whose ``start(total)`` and ``advance(count)`` are called with numbers of bytes.

    Returns
    -------
    ConvertedCheckpoint

    Raises
    ------
    FastIndexError
        Malformed files, rules that do not fit, a folder that exists, a value that a step does not convert exactly, or
        too little memory.
    ArgumentTypeError
        A cast that `casting` does not allow, or a rule of other types.
    UnsupportedError
        Elements that cannot be moved individually, a type that safetensors lack, or a missing extra.
    OSError
        A file cannot be read or written.

    Examples
    --------
    >>> import fastindex as fi, numpy as np, tempfile
    >>> from fastindex.weights.safetensors_files import header_of
    >>> place = tempfile.TemporaryDirectory()
    >>> with open(f"{place.name}/model.safetensors", "wb") as file:
    ...     _ = file.write(header_of({"a.w": fi.Shape.parse("f32[2,3]")}) + np.arange(6, dtype=np.float32).tobytes())
    >>> rules = [{"names": "{x}.w", "name": "{x}.weight", "transpose": "a b -> b a", "dtype": "bf16"}]
    >>> print(fi.weights.convert_checkpoint(f"{place.name}/model.safetensors", f"{place.name}/out", rules))
    a.w F32 [2, 3] -> a.weight BF16 [3, 2]  (transpose a b -> b a; dtype bf16)
    >>> place.cleanup()
    """
    check_casting(casting)
    place = Path(folder)
    if place.name.endswith((".safetensors", ".json", ".gguf")):
        raise FastIndexError(f"{place} is the name of a file, and the output is a folder: give it another name")
    if os.path.lexists(place):
        raise FastIndexError(f"{place} is there already; give a name that is new")
    if type(max_shard_bytes) is not int or max_shard_bytes < 1:
        raise FastIndexError(f"max_shard_bytes is a number of bytes, got {shown(max_shard_bytes)}")
    limit = memory_limit(max_memory)
    recipe = _recipe_of(rules)
    found = read_tensors(source)
    parsed = conversion_rules_of({"rules": recipe["rules"], "formats": recipe["formats"]})
    conversions = conversions_of(found.tensors, parsed, casting)
    beside = _small_files(os.fspath(source), recipe, conversions)
    shards = _shards_of(conversions, {**found.metadata, **recipe["metadata"]}, max_shard_bytes)
    result = ConvertedCheckpoint(os.fspath(folder), [str(one) for one in conversions])
    with memory_within(limit) as memory:
        for one in conversions:
            with _named(one):
                # Fail before anything is written if the smallest band does not fit.
                next(one.expression.bands(memory.free), None)
        if dry_run:
            return result
        for one in conversions:
            # Check values first, too: scales and zero points are small enough to be read twice.
            if one.equals is not None or one.expression.may_fail():
                _check(one, memory.free)
        job = [casting, repr(parsed), [tensor.properties() for tensor in found.tensors.values()]]
        digest = hashlib.sha256(json.dumps(job).encode()).hexdigest()
        _write(place, shards, beside, digest, memory.free, NoProgress() if progress is None else progress)
    return result


def _write(
    place: Path,
    shards: Sequence[_Shard],
    beside: Mapping[str, bytes],
    digest: str,
    most_bytes: int,
    progress: Progress,
) -> None:
    """Write all files into a staging folder, or resume there, and rename it; `digest` identifies the job."""
    staging = place.with_name(f"{place.name}.partial")
    by_name = {shard.name: shard for shard in shards}
    pieces = {
        name: Piece(name, shard.nbytes, [digest, hashlib.sha256(shard.header).hexdigest()])
        for name, shard in by_name.items()
    }
    small = dict(beside)
    if len(shards) > 1:
        small["model.safetensors.index.json"] = _index_of(shards)
    progress.start(sum(shard.nbytes for shard in shards))
    # Only the renamed folder is complete: a job that was interrupted after the manifest resumes, too.
    with opened_journal(staging, pieces, complete=None) as journal:
        for name in journal.missing(progress):
            sha256 = _write_shard(staging, by_name[name], most_bytes, progress)
            journal.add(name, {"name": name, "sha256": sha256})
        files = {name: journal.done[name]["sha256"] for name in pieces}
        for name, content in small.items():
            write_file(str(staging / name), content, force=True)
            files[name] = hashlib.sha256(content).hexdigest()
        manifest = {"format": _FORMAT, "version": 1, "files": files}
        write_file(str(staging / MANIFEST), json.dumps(manifest, indent=1).encode(), force=True)
        os.rename(staging, place)
        os.unlink(place / JOURNAL)
        sync_folder(place.parent)


def _recipe_of(given: Any) -> dict[str, Any]:
    """Return a recipe with all of its keys, each checked, from a name, rules or a mapping."""
    if isinstance(given, str):
        if given not in RECIPES:
            raise FastIndexError(f"no recipe is called {given!r}; there are {', '.join(RECIPES)}")
        given = RECIPES[given]
    if not isinstance(given, Mapping):
        given = {"rules": list(mappings_of(given))}
    if not set(given) <= set(_KEYS) or "rules" not in given:
        raise FastIndexError(f"a recipe has rules, and perhaps {', '.join(_KEYS[1:])}; got {shown(list(given))}")
    recipe = {"formats": {}, "config": {}, "metadata": {}, "expects": {}, **given}
    for key in ("config", "metadata", "expects"):
        if not isinstance(recipe[key], Mapping):
            raise ArgumentTypeError(f"{key} of a recipe is a mapping, got {shown(recipe[key])}")
    if not all(isinstance(text, str) for text in recipe["metadata"].values()):
        raise ArgumentTypeError(f"metadata maps texts to texts, got {shown(recipe['metadata'])}")
    if not all(isinstance(values, list | tuple) for values in recipe["expects"].values()):
        raise ArgumentTypeError(f"expects maps places in {_CONFIG} to lists of values, got {shown(recipe['expects'])}")
    return recipe


def _small_files(source: str, recipe: Mapping[str, Any], conversions: Sequence[Conversion]) -> dict[str, bytes]:
    """Return the contents of the small files to write, by name."""
    beside = Path(source) if os.path.isdir(source) else Path(source).parent
    paths = sorted({path for pattern in _BESIDE for path in beside.glob(pattern) if path.is_file()})
    found = {path.name: read_whole(str(path), _MOST_SMALL_BYTES) for path in paths}
    if _CONFIG not in found:
        return found
    where = str(beside / _CONFIG)
    config = json_object(found[_CONFIG], where)
    for place, values in recipe["expects"].items():
        value = _looked_up(config, place)
        if value is not None and value not in values:
            raise FastIndexError(
                f"{where}: {place} is {shown(value)}, and the recipe is for {' or '.join(map(repr, values))}"
            )
    if recipe["config"]:
        # Modules whose matrices are unchanged: the configs of some formats list them.
        unquantized = [
            one.name.removesuffix(".weight")
            for one in conversions
            if isinstance(one.expression, Stored) and one.name.endswith(".weight") and len(one.sizes) > 1
        ]
        if not any(one.name.startswith("lm_head.") for one in conversions):
            # Tied to the embedding: loaders have the module, although no tensor is its own.
            unquantized.append("lm_head")
        known = {**config, "unquantized": unquantized}
        for key, value in recipe["config"].items():
            config[key] = _resolved(value, known, where)
        kept = {key: value for key, value in config.items() if value is not None or key not in recipe["config"]}
        found[_CONFIG] = json.dumps(kept, indent=2, ensure_ascii=False).encode() + b"\n"
    return found


def _looked_up(config: Any, place: str) -> Any:
    for key in place.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _resolved(value: Any, config: Mapping[str, Any], where: str) -> Any:
    """Return a value with each ``"${a.b}"`` replaced by that entry of the source's config.

    ``{"${a.b}": {"-1": x, "*": y}}`` is x if that entry is -1, and y otherwise.
    """
    if isinstance(value, Mapping):
        place = next(iter(value), None)
        if len(value) == 1 and (entry := _entry(place, config, where)) is not None:
            cases = value[place]
            if not isinstance(cases, Mapping) or not {str(entry), "*"} & set(cases):
                raise FastIndexError(f"{where}: {place} is {shown(entry)}, and the recipe says nothing of that value")
            return _resolved(cases[str(entry) if str(entry) in cases else "*"], config, where)
        return {key: _resolved(one, config, where) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(one, config, where) for one in value]
    entry = _entry(value, config, where)
    return value if entry is None else entry


def _entry(text: Any, config: Mapping[str, Any], where: str) -> Any:
    """Return the entry of the source's config that a text such as ``"${a.b}"`` names; None for any other text."""
    found = re.fullmatch(r"\$\{([\w.]+)\}", text) if isinstance(text, str) else None
    if found is None:
        return None
    entry = _looked_up(config, found[1])
    if entry is None:
        raise FastIndexError(f"{where} has no {found[1]}, which the recipe takes from there; add it, or edit the rules")
    return entry


def _shards_of(conversions: Sequence[Conversion], metadata: Mapping[str, str], most: int) -> list[_Shard]:
    """Distribute tensors over files, in order."""
    written = [one for one in conversions if one.equals is None]
    if not written:
        raise FastIndexError("no tensor is left to write")
    groups: list[list[Conversion]] = [[]]
    size = 0
    for one in written:
        if groups[-1] and size + one.expression.nbytes > most:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.expression.nbytes
    count = len(groups)
    shards = []
    for number, group in enumerate(groups, 1):
        name = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        shapes = {one.name: Shape("u8", (one.expression.nbytes,)) for one in group}
        header = header_of(shapes, metadata, {one.name: (one.dtype, one.sizes) for one in group})
        shards.append(_Shard(name, tuple(group), header))
    return shards


def _index_of(shards: Sequence[_Shard]) -> bytes:
    names = {one.name: shard.name for shard in shards for one in shard.tensors}
    total = sum(one.expression.nbytes for shard in shards for one in shard.tensors)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(names.items()))}
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


def _write_shard(staging: Path, shard: _Shard, most_bytes: int, progress: Progress) -> str:
    """Write a file of tensors, and return its SHA-256."""
    digest = hashlib.sha256(shard.header)
    nbytes = shard.nbytes - len(shard.header)
    progress.advance(len(shard.header))
    with OutputFile(str(staging / shard.name), nbytes, shard.header) as output:
        at = 0
        for one in shard.tensors:
            for content in _contents(one, most_bytes):
                output.write(at, content)
                digest.update(content.data)
                at += len(content)
                progress.advance(len(content))
    return digest.hexdigest()


def _contents(one: Conversion, most_bytes: int) -> Iterator[Any]:
    """Yield the bytes of a tensor, band by band; its source files must not change meanwhile."""
    with _named(one), _readable(one.expression):
        for box in one.expression.bands(most_bytes):
            yield np.ascontiguousarray(one.expression.read(box)).reshape(-1).view(np.uint8)


def _check(one: Conversion, most_bytes: int) -> None:
    """Require the steps of a tensor to be exact, and its values to equal the constant of its rule, if any.

    Raises
    ------
    FastIndexError
    """
    with _named(one), _readable(one.expression):
        for box in one.expression.bands(most_bytes):
            found = one.expression.read(box)
            if one.equals is not None and not np.array_equal(found, wanted := one.equals.read(box)):
                at = np.unravel_index(int(np.argmax(found != wanted)), found.shape)
                place = ", ".join(str(int(i) + along.start) for i, along in zip(at, box, strict=True))
                raise FastIndexError(f"the value at ({place}) is {found[at]}, and not {wanted[at]}; {one.remedy}")


@contextlib.contextmanager
def _readable(expression: Expression) -> Iterator[None]:
    """Open the source files of an expression, and require them to be unchanged at the end."""
    leaves = list(expression.leaves())
    parts, files = opened(leaf.tensor for leaf in leaves)
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.enter_context(file.unchanged())
        for leaf, part in zip(leaves, parts, strict=True):
            leaf.file = part
        try:
            yield
        finally:
            for leaf in leaves:
                leaf.file = None


def _named(one: Conversion) -> contextlib.AbstractContextManager[None]:
    """Prefix errors with the tensor that they concern."""
    return errors_about(f"{' + '.join(one.sources)}, as {one.name or 'it has to be'}")
