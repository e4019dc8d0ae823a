from fastindex.hlo.copies.layout_copies import LayoutCopies as LayoutCopies
from fastindex.hlo.copies.layout_copies import layout_copies as layout_copies
from fastindex.hlo.reports import Report as Report
from fastindex.hlo.reports import report as report
from fastindex.trials.results import TriedLayouts as TriedLayouts
from fastindex.trials.try_layouts import try_layouts as try_layouts
