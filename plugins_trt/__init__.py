"""`lilicorr::GreedyWalk` for TensorRT, and the same walk on the host. Imports nothing else of ours, nor tensorrt."""

from lilicorr.plugins_trt.errors import PluginError
from lilicorr.plugins_trt.host import host_walk
from lilicorr.plugins_trt.loader import Recorded, find, load

__all__ = ["PluginError", "Recorded", "find", "host_walk", "load"]
