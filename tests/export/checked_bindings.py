"""A stand-in for a TensorRT module that allows exactly what the real bindings declare: members, arguments, types, results.

pybind11 writes each signature into the docstring; every attribute, call and assignment is checked against it, and a result
is a stand-in for the class it declares. Run as a program it builds one tiny engine with `engine_builder` over such a module:

    python -m tests.export.checked_bindings MODULE JOB.json SCENARIO      (MODULE importable, with stub libraries)

and prints the calls that were made as JSON.
"""

from __future__ import annotations

import importlib
import json
import re
import sys

PLAIN = {"int": int, "bool": bool, "str": str, "float": float}
PLAIN |= {"typing.SupportsInt": int, "typing.SupportsFloat": float}
# members whose signature names a C++ type, because the class was bound later -> the class
UNNAMED = {"get_plugin_registry": "IPluginRegistry", "get_error": "ParserError"}
PASSED_THROUGH = {"ILogger", "IProgressMonitor"}  # subclassed in Python, which needs no TensorRT library
# (class, member) -> what it gives, where the builder looks at it
ANSWERS = {
    ("IPluginRegistry", "load_library"): "handle",
    ("INetworkDefinition", "num_inputs"): 1,
    ("INetworkDefinition", "num_layers"): 3,
    ("ITensor", "name"): "x",
    ("ITensor", "shape"): (-1, 4),
    ("ITimingCache", "serialize"): b"times",
}
SCENARIOS = {
    "built": {("Builder", "build_serialized_network"): b"plan"},
    "unparsed": {("OnnxParser", "parse"): False, ("OnnxParser", "num_errors"): 1},
    "without plugin": {("IPluginRegistry", "load_library"): None},
    "refused": {("Builder", "build_serialized_network"): None},
}
calls = []


def overridable(base):
    """`base`, with subclasses held to the methods it declares: a misspelt override would never be called."""

    def check_overrides(subclass):
        for name in vars(subclass):
            if not name.startswith("_") and not hasattr(base, name):
                raise AttributeError(f"{base.__name__} has no method {name} to override")

    return type(base)(base.__name__, (base,), {"__init_subclass__": classmethod(check_overrides)})


class Module:
    """Stands for the TensorRT module `real`."""

    def __init__(self, real, answers):
        self._real, self._answers = real, answers

    def __getattr__(self, name):
        value = getattr(self._real, name)  # AttributeError where this version has no such name
        calls.append(name)
        if name in PASSED_THROUGH:
            return overridable(value)
        if not isinstance(value, type) or hasattr(value, "__members__"):
            return value if not callable(value) or isinstance(value, type) else self._function(name, value)
        return lambda *given: self._create(name, value, given)

    def _create(self, name, kind, given):
        check(f"{name}.__init__", kind.__init__.__doc__, given)
        return Stand(self, name, kind)

    def _function(self, name, function):
        return lambda *given: self.result("", name, check(name, function.__doc__, given, methods=False))

    def result(self, owner, member, declared):
        if (owner, member) in self._answers:
            return self._answers[owner, member]
        kind = UNNAMED.get(member, declared.split(".")[-1])
        if kind in PLAIN:
            return PLAIN[kind](1)
        real = getattr(self._real, kind, None)
        return Stand(self, kind, real) if isinstance(real, type) else None


class Stand:
    """Stands for an object of the class `kind`."""

    def __init__(self, module, name, kind):
        self.__dict__.update(_module=module, _name=name, _kind=kind)

    def __getattr__(self, member):
        value = getattr(self._kind, member)
        calls.append(f"{self._name}.{member}")
        if isinstance(value, property):
            declared = re.search(r"-> ([\w.]+)", value.fget.__doc__ or "")
            return self._module.result(self._name, member, declared.group(1) if declared else "")
        return lambda *given: self._module.result(
            self._name, member, check(f"{self._name}.{member}", value.__doc__, given)
        )

    def __setattr__(self, member, value):
        calls.append(f"{self._name}.{member} =")
        if getattr(self._kind, member).fset is None:
            raise AttributeError(f"{self._name}.{member} cannot be set")


def check(where, documentation, given, methods=True):
    """Find the declared overload that takes `given`; returns its declared result."""
    name = where.split(".")[-1]
    found = re.findall(rf"^(?:\d+\. )?{name}\((.*)\) -> (.+)$", documentation or "", re.MULTILINE)
    assert found, f"{where}: no signature in {documentation!r}"
    for parameters, result in found:
        declared = split(parameters)[1:] if methods else split(parameters)
        needed = [p for p in declared if "=" not in p]
        if len(needed) <= len(given) <= len(declared) and all(map(takes, declared, given)):
            return result.strip()
    raise TypeError(f"{where} does not take {given!r}: {found}")


def takes(parameter, value):
    kind = parameter.split("=")[0].split(":")[-1].strip()
    return isinstance(value, PLAIN[kind]) if kind in PLAIN else True


def split(parameters):
    """Split at commas that are outside brackets."""
    parts, depth = [""], 0
    for character in parameters:
        depth += (character in "[(<{") - (character in "])>}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def main(module, job, scenario):
    from lilicorr.export import engine_builder
    from lilicorr.runtime.errors import UserError
    from lilicorr.runtime.manifest import parse

    stand_in = Module(importlib.import_module(module), ANSWERS | SCENARIOS[scenario])
    engine_builder.import_tensorrt = lambda backend: stand_in
    with open(job, encoding="utf-8") as file:
        parsed = parse(engine_builder.Job, json.load(file), "", [])
    try:
        result = engine_builder.build_engine(parsed, lambda text: None, lambda: False)
    except UserError as error:
        result = error.what
    print(json.dumps([result, sorted(set(calls))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
