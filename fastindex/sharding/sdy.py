"""Parse Shardy attributes: meshes, and shardings such as ``#sdy.sharding<@mesh, [{"a"}, {?}]>``.

Source: ``shardy/dialect/sdy/ir/attrs.td`` in openxla/shardy.
"""

from __future__ import annotations

import re

from fastindex.errors import LayoutError
from fastindex.sharding.sharding import Sharding

_MESH = re.compile(r'([\w.$-]+|"[^"]*")\s*=\s*#sdy\.mesh<\[(.*?)\](?:\s*,\s*device_ids\s*=\s*\[([\d,\s]*)\])?\s*>')
_SHARDING = re.compile(r"#sdy\.sharding<\s*(?:@([\w.$-]+)|mesh<\[(.*?)\](?:,\s*device_ids=\[([\d,\s]*)\])?>)\s*,?\s*")
_PRIORITY = re.compile(r"\}\s*p\d+")


def meshes_of(text: str) -> dict[str, str]:
    """Return the meshes in a module's header by name, as the beginnings of XLA's mesh forms.

    Examples
    --------
    >>> meshes_of('xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=4]>}')
    {'mesh': "mesh['a'=2,'b'=4]"}
    """
    return {found[1].strip('"'): _mesh_text(found[2], found[3]) for found in _MESH.finditer(text.replace('\\"', '"'))}


def _mesh_text(axes: str, device_ids: str | None) -> str:
    sizes = ",".join(f"'{name}'={size}" for name, size in re.findall(r'"([^"]*)"\s*=\s*(\d+)', axes))
    ids = re.findall(r"\d+", device_ids or "")
    if not sizes and len(ids) == 1:
        return f"single_device[device_id={ids[0]}]"
    return f"mesh[{sizes}]" + (f", device_ids=({','.join(ids)})" if ids else "")


def sharding_of_sdy(text: str, meshes: dict[str, str]) -> Sharding:
    """Parse a Shardy sharding, given the meshes of the module.

    Priorities, which only guide propagation, are ignored.

    Raises
    ------
    LayoutError
        The text is not a Shardy sharding, or its mesh is unknown.

    Examples
    --------
    >>> meshes = {"mesh": "mesh['a'=2,'b'=4]"}
    >>> str(sharding_of_sdy('#sdy.sharding<@mesh, [{"a"}p1, {"b", ?}], replicated={}>', meshes))
    "{mesh['a'=2,'b'=4], [{'a'}, {'b', ?}]}"
    """
    plain = text.replace('\\"', '"').strip()
    found = _SHARDING.match(plain)
    if found is None or not plain.endswith(">"):
        raise LayoutError(f"not a Shardy sharding: {plain[:80]!r}")
    mesh = meshes.get(found[1]) if found[1] else _mesh_text(found[2], found[3])
    if mesh is None:
        raise LayoutError(f"the mesh @{found[1]} is not among {', '.join(meshes) or 'the meshes: there are none'}")
    if mesh.startswith("single_device"):
        return Sharding.parse(f"{{{mesh}}}")
    fields = _PRIORITY.sub("}", plain[found.end() : -1]).strip()
    return Sharding.parse(f"{{{mesh}, {fields}}}")
