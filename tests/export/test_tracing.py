"""Names and dimensions of a traced graph."""

import pytest
import torch
from torch import nn

from lilicorr.export.tracing import OPSET, Port, trace


class _Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x, rows):
        return x * self.scale, torch.cat([x, *rows], dim=1)


def test_inputs_outputs_and_dimensions_carry_the_given_names():
    ports = [Port(f"row_{i}", torch.float32, ("N", "C", 4)) for i in range(2)]
    module = _Pool()
    model = trace(module, [Port("x", torch.float32, ("N", "T", 4)), ports], ["scaled", "joined"])
    assert [(v.name, str(v.shape)) for v in model.graph.inputs] == [
        ("x", "[N,T,4]"),
        ("row_0", "[N,C,4]"),
        ("row_1", "[N,C,4]"),
    ]
    assert [v.name for v in model.graph.outputs] == ["scaled", "joined"]
    assert str(model.graph.outputs[0].shape) == "[N,T,4]"
    assert model.opset_imports[""] == OPSET <= 20
    weight = model.graph.initializers["scale"].const_value
    assert weight.numpy().ctypes.data == module.scale.data_ptr()  # the module's own memory, not a copy


class _FixedLength(nn.Module):
    def forward(self, x):
        return x + torch.ones(3)


def test_a_dimension_that_the_module_fixes_is_an_error():
    with pytest.raises(Exception, match=r"(?i)constraint"):
        trace(_FixedLength(), [Port("x", torch.float32, ("T",))], ["y"])
