"""What MkDocs does not know: pictures drawn by fastindex, figures of the benchmarks, notebooks, and documents outside.

Four kinds of fenced blocks become something else on the site; everywhere else they stay readable text:

* ``layout``: a shape, or two for a relayout, drawn, with a link to an interactive page;
* ``sharding``: a shape and a sharding, drawn;
* ``figures``: rows of the tables in ``benchmarks/README.md``, by their names;
* ``help``: commands, replaced by their help.

``benchmarks/README.md`` with its slow cells, ``ARCHITECTURE.md`` and ``CHANGELOG.md`` are pages of the site; links to
them are made to fit.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from pathlib import Path

from format_pages import pages as pages_of_formats
from notebook_pages import executed, page_of, with_outputs

import fastindex as fi

ROOT = Path(__file__).resolve().parents[2]
#: Documents of the repository that are pages of the site, and what they are called there.
DOCUMENTS = {
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/sweep_exceptions.md": "sweep_exceptions.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
}
FENCE = re.compile(r"^```(layout|sharding|figures|help)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")


def picture_name(kind: str, body: str) -> str:
    """Return the name of a picture without its ending: what it shows in plain letters, and a hash."""
    words = re.sub(r"[^a-z0-9]+", "_", body.lower()).strip("_")[:40].strip("_")
    return f"pictures/{kind}_{words}_{sha256(body.encode()).hexdigest()[:6]}"


def picture(kind: str, body: str) -> tuple[str, str | None]:
    """Return the SVG that a block asks for, and the interactive page if there is one."""
    lines = body.split()
    if kind == "sharding":
        from fastindex.show.shard_picture import ShardPicture

        return ShardPicture(fi.Shape.parse(lines[0]), fi.sharding.Sharding.parse(lines[1])).svg(), None
    shapes = [fi.Shape.parse(line) for line in lines]
    drawn = fi.layouts.Picture(*shapes)
    return drawn.svg(), drawn.html()


def figures(names: list[str]) -> str:
    """Return rows of the tables in ``benchmarks/README.md``: our speed, the fastest other, and the share of a copy."""
    lines = ["| GB/s read and written | fastindex | fastest other | of copy |", "|---|--:|--:|--:|"]
    rows = dict(_benchmark_rows())
    for name in names:
        row = rows[name]
        rivals = [float(row[column]) for column in row if column in RIVALS and row[column]]
        lines.append(f"| {name} | {row['fastindex']} | {max(rivals)} | {row['of copy']} |")
    return "\n".join(lines)


RIVALS = ("NumPy", "NumPy expressions", "torch", "oneDNN", "oneDNN formats", "XLA device_put", "XLA jit")


def _benchmark_rows() -> Iterator[tuple[str, dict[str, str]]]:
    header: list[str] = []
    for line in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif len(cells) == len(header):
            yield cells[0], dict(zip(header, cells, strict=True))


def help_texts(commands: list[str]) -> str:
    """Return the help of each command, as the tool prints it."""
    import click

    from fastindex.cli.commands import main

    parts = []
    for words in commands:
        names = words.split()[1:]
        command: click.Command = main
        context = click.Context(main, info_name="fastindex", terminal_width=98, max_content_width=98)
        for name in names:
            assert isinstance(command, click.Group)
            command = command.commands[name]
            context = click.Context(command, info_name=name, parent=context, max_content_width=98)
        title = f"### {words}\n\n" if names else ""
        parts.append(f"{title}```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def expand(markdown: str, folder: str) -> str:
    """Return a page with its blocks replaced; `folder` is where the page lies, such as ``how-to``."""

    def replacement(match: re.Match[str]) -> str:
        kind, body = match[1], match[2].strip()
        if kind == "figures":
            return figures(body.splitlines())
        if kind == "help":
            return help_texts(body.splitlines())
        name = posixpath.relpath(picture_name(kind, body), folder or ".")
        between = " to " if kind == "layout" else ", "
        caption = between.join(f"`{line}`" for line in body.split("\n"))
        if kind == "layout":
            caption += f" · [interactive page]({name}.html)"
        alt = escape(body.replace("\n", between), quote=True).replace("[", "\\[").replace("]", "\\]")
        return (
            f'<figure class="layout-picture" markdown>\n![Picture of {alt}]({name}.svg)\n'
            f"<figcaption markdown>{caption}</figcaption>\n</figure>"
        )

    return FENCE.sub(replacement, markdown)


def site_links(markdown: str, source: str) -> str:
    """Return a page with links between ``docs/`` and the rest of the repository made links of the site.

    `source` is the page's place in the repository, such as ``docs/performance.md``. On the site, what lies in ``docs/``
    and what lies beside it have one root, and notebooks are pages.
    """

    def on_site(path: str) -> str:
        path = DOCUMENTS.get(path, path.removeprefix("docs/"))
        return path.removesuffix(".ipynb") + ".md" if path.endswith(".ipynb") else path

    def replacement(match: re.Match[str]) -> str:
        if "://" in match[2] or match[2].startswith("mailto:"):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        path = posixpath.relpath(on_site(target), posixpath.dirname(on_site(source)) or ".")
        return f"{match[1]}{path}{match[3] or ''})"

    return LINK.sub(replacement, markdown)


# What MkDocs calls

#: The outputs of the notebooks, by page and mark.
OUTPUTS: dict[str, dict[str, str]] = {}


def on_files(files, config):  # type: ignore[no-untyped-def]
    """Add the pictures that pages ask for, and the documents that lie outside."""
    from mkdocs.structure.files import File

    for name, uri in DOCUMENTS.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.svg")):
        content = path.read_text(encoding="utf-8")
        files.append(File.generated(config, f"benchmarks/results/{path.name}", content=content))
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.ipynb")):
        markdown, outputs = page_of(executed(path))
        uri = f"tutorials/{path.stem}.md"
        OUTPUTS[uri] = outputs
        files.remove(files.get_file_from_path(f"tutorials/{path.name}"))
        files.append(File.generated(config, uri, content=markdown))
    for uri, content in pages_of_formats().items():
        files.append(File.generated(config, uri, content=content))
    made = set()
    for page in files.documentation_pages():
        for match in FENCE.finditer(page.content_string if page.src_uri.endswith(".md") else ""):
            kind, body = match[1], match[2].strip()
            name = picture_name(kind, body)
            if kind not in ("layout", "sharding") or name in made:
                continue
            made.add(name)
            svg, html = picture(kind, body)
            files.append(File.generated(config, f"{name}.svg", content=svg))
            if html is not None:
                files.append(File.generated(config, f"{name}.html", content=html))
    return files


def on_page_markdown(markdown, page, config, files):  # type: ignore[no-untyped-def]
    """Replace blocks and links."""
    uri = page.file.src_uri
    source = {uri: name for name, uri in DOCUMENTS.items()}.get(uri, f"docs/{uri}")
    return expand(site_links(markdown, source), posixpath.dirname(uri))


def on_page_content(html, page, config, files):  # type: ignore[no-untyped-def]
    """Put in what the cells of a notebook show."""
    return with_outputs(html, OUTPUTS.get(page.file.src_uri, {}))
