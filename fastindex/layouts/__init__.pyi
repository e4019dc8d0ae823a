from fastindex.advice.format_names import layout_name as layout_name
from fastindex.advice.format_names import named_layout as named_layout
from fastindex.advice.linear_forms import LinearForm as LinearForm
from fastindex.advice.steps import steps as steps
from fastindex.advice.suggestions import TileSuggestion as TileSuggestion
from fastindex.advice.suggestions import suggest_tiles as suggest_tiles
from fastindex.bulk.rearrangements import same_bytes as same_bytes
from fastindex.pictures.picture import Picture as Picture
