"""How an array is divided over devices: shardings as frozen values, their text and protos, and what each device holds.

No buffers and no kernels: what touches data is in `fastindex.bulk`.
"""
