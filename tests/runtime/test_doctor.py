"""The report on four machines that are not this one, on this one, and on broken ones."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lilicorr.runtime.doctor import as_text, diagnose
from lilicorr.runtime.doctor_probe import Probe
from tests.runtime.fake_machines import DPKG, JETPACK, L4, ORIN, PLAIN, SMI, THOR


@pytest.fixture(autouse=True)
def _no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILICORR_PLUGIN", "/nowhere/liblilicorr_plugin.so")


def test_orin_with_jetpack_6_2() -> None:
    facts = diagnose(probe=ORIN)
    assert facts["jetson"] == {
        "model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        "l4t": "36.4.3",
        "jetpack": "6.2+b77",
        "power_mode": "15W",
    }
    assert facts["gpus"] == ["Orin (nvgpu), compute capability 8.7"]  # no memory of its own
    assert facts["driver"] == "540.4.0"
    assert facts["cuda"] == {"driver": "12.6", "toolkit": "12.6.11"}
    assert facts["tensorrt"]["system"] == [
        "libnvinfer10 10.3.0.30-1+cuda12.5",
        "python3-libnvinfer 10.3.0.30-1+cuda12.5",
    ]
    assert facts["tensorrt"]["libraries"] == ["/usr/lib/aarch64-linux-gnu/libnvinfer.so.10"]
    assert (facts["ram_mb"], facts["ram_free_mb"], facts["swap_mb"]) == (7619, 5759, 1269)
    assert facts["swap"] == ["/dev/zram0 partition 634 MB", "/dev/zram1 partition 634 MB"]
    text = "\n".join(facts["notes"])
    assert "--system-site-packages" in text
    assert "no swap outside memory" in text
    assert "power mode 15W" in text
    assert "make plugin" in text
    assert "jetson.l4t: 36.4.3\n" in as_text(facts)


def test_thor_with_jetpack_7() -> None:
    facts = diagnose(probe=THOR)
    assert facts["jetson"]["jetpack"] == "7.1"  # from the L4T release: the meta package is not there
    assert facts["gpus"] == ["NVIDIA Thor, compute capability 11.0"]
    assert facts["cuda"] == {"driver": "13.0", "toolkit": "13.0"}
    assert facts["tensorrt"]["system"][0] == "libnvinfer10 10.13.3.9-1+cuda13.0"
    assert facts["swap"] == ["/swapfile file 16383 MB"]
    assert len(facts["notes"]) == 1  # only the plugin is missing
    bare = dataclasses.replace(THOR, commands={SMI: THOR.commands[SMI]}, modules={})
    assert "sudo apt install python3-libnvinfer" in diagnose(probe=bare)["notes"][0]  # PyPI has none for it


def test_l4() -> None:
    facts = diagnose(probe=L4)
    assert facts["jetson"] is None
    assert facts["gpus"] == ["NVIDIA L4, compute capability 8.9, 23034 MiB"]
    assert facts["tensorrt"]["distributions"] == ["tensorrt 10.16.1.11"]
    assert facts["tensorrt"]["system"] == []
    assert facts["swap_mb"] == 0
    assert "cpu: Intel(R) Xeon(R) CPU @ 2.20GHz\n" in as_text(facts)
    assert len(facts["notes"]) == 1
    without = dataclasses.replace(L4, packages={}, modules={})
    assert "pip install 'lilicorr[tensorrt]'" in diagnose(probe=without)["notes"][0]


def test_a_machine_with_nothing() -> None:
    facts = diagnose(probe=PLAIN)
    assert facts["gpus"] == []
    assert facts["notes"] == []
    assert facts["ram_mb"] is None
    assert facts["driver"] is None
    text = as_text(facts)
    assert "driver: not found\n" in text
    assert "gpus: none\n" in text
    assert "plugin.problem: LILICORR_PLUGIN names" in text


def test_a_gpu_that_only_the_driver_knows() -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build\n"
    bare = dataclasses.replace(PLAIN, files={"/proc/driver/nvidia/version": version}, capability="8.7")
    facts = diagnose(probe=bare)
    assert facts["gpus"] == ["GPU, compute capability 8.7"]
    assert facts["driver"] == "540.4.0"


@pytest.mark.parametrize(
    "commands",
    [
        {SMI: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"},
        {SMI: "\n", DPKG: "ii\n\nii libnvinfer10\n", JETPACK: "", ("nvpmodel", "-q"): "NVPM ERROR: no permission\n"},
    ],
)
def test_garbled_answers_are_no_facts(commands: dict[tuple[str, ...], str]) -> None:
    files = {
        "/etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 1\n",
        "/proc/meminfo": "MemTotal\nSwapTotal: many kB\n",
        "/proc/swaps": "Filename\n/dev/sda2 partition\n",
        "/usr/local/cuda/version.json": "{",
    }
    facts = diagnose(probe=dataclasses.replace(PLAIN, files=files, commands=commands))
    assert facts["gpus"] == []
    assert facts["tensorrt"]["system"] == []
    assert facts["swap"] == []
    assert facts["jetson"] == {"model": None, "l4t": "35.4.1", "jetpack": None, "power_mode": None}


def test_the_real_probe_answers_none_for_what_is_not_there(tmp_path) -> None:
    probe = Probe()
    assert probe.text(str(tmp_path / "absent")) is None
    assert probe.text(str(tmp_path)) is None  # a folder
    assert probe.output("no-such-command-of-anyone") is None
    assert probe.output("sh", "-c", "echo half an answer; exit 9") is None
    assert probe.output("sh", "-c", "printf '\\377ok'").endswith("ok")
    assert probe.package("no-such-package-of-anyone") is None
    assert probe.module_folder("no_such_module.of_anyone") is None
    assert probe.module_folder("numpy")


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lilicorr.runtime.doctor_probe.TIMEOUT_S", 0.1)
    assert Probe().output("sleep", "5") is None


def test_this_machine() -> None:
    facts = diagnose()
    assert facts["ram_mb"] > 0
    assert facts["packages"]["numpy"]
    assert json.loads(json.dumps(facts)) == facts
    assert "bundle" not in facts
