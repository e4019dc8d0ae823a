from fastindex.cuda.devices import device_name as device_name
from fastindex.cuda.devices import is_available as is_available
from fastindex.cuda.devices import relayout_through_device as relayout_through_device
from fastindex.cuda.devices import why_unavailable as why_unavailable
from fastindex.errors import DeviceMemoryError as DeviceMemoryError
