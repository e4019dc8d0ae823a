"""The public names, for type checkers."""

from fastindex.paged.caches import Cache as Cache
from fastindex.paged.caches import Part as Part
from fastindex.paged.copies import copy as copy
from fastindex.paged.copies import gather as gather
from fastindex.paged.copies import scatter as scatter
from fastindex.paged.copies import swap_blocks as swap_blocks
from fastindex.paged.descriptors import Runs as Runs
from fastindex.paged.descriptors import StridedRuns as StridedRuns
from fastindex.paged.descriptors import runs as runs
from fastindex.paged.places import Element as Element
from fastindex.paged.places import byte_offset as byte_offset
from fastindex.paged.places import element_at as element_at
from fastindex.paged.places import slot_mapping as slot_mapping
from fastindex.paged.tables import BlockTable as BlockTable
from fastindex.paged.tables import Csr as Csr
from fastindex.paged.tables import Owners as Owners
from fastindex.paged.words import PagePicture as PagePicture
from fastindex.paged.words import draw as draw
from fastindex.paged.words import explain as explain

__all__: list[str]
