"""The scripts below make the data; they are no tests, and need the TPU compiler."""

collect_ignore_glob = ["hlo/*.py"]
