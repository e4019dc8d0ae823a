"""Runs programs and plans on processors. It decides neither what moves nor what is allowed."""

import sys

from fastindex.errors import UnsupportedError

if sys.platform == "win32":
    raise UnsupportedError(
        "fastindex converts indices, moves arrays and writes files on Linux and macOS; on Windows, run it in WSL "
        "(what it says of shapes and programs works without)"
    )
