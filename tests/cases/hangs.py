"""When a test stops to wait for what may hang."""

from __future__ import annotations

#: No machine is so slow or so busy that what tests start takes as long: the longest is a minute on a quiet one. Code
#: for GPUs that are not there took ten minutes to compile on one that ran eight other processes.
HANG_SECONDS = 3600
