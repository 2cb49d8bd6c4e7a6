"""Four machines as tables of files and command outputs, after what such machines print."""

from __future__ import annotations

from dataclasses import dataclass, field

from lilicorr.runtime.doctor_probe import Probe

DPKG = ("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n")
JETPACK = ("dpkg-query", "-W", "-f", "${Version}", "nvidia-jetpack")
SMI = ("nvidia-smi", "--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader")


@dataclass
class Machine(Probe):
    """Answers from tables; whatever is not in them is not there."""

    files: dict[str, str] = field(default_factory=dict)
    commands: dict[tuple[str, ...], str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    capability: str | None = None

    def text(self, path: str) -> str | None:
        return self.files.get(path)

    def output(self, *command: str) -> str | None:
        return self.commands.get(command)

    def package(self, name: str) -> str | None:
        return self.packages.get(name)

    def module_folder(self, name: str) -> str | None:
        return self.modules.get(name)

    def compute_capability(self) -> str | None:
        return self.capability


def meminfo(total_mb: int, free_mb: int, swap_mb: int) -> str:
    return f"MemTotal: {total_mb * 1024} kB\nMemAvailable: {free_mb * 1024} kB\nSwapTotal: {swap_mb * 1024} kB\n"


ZRAM = "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 649728 0 5\n/dev/zram1 partition 649728 0 5\n"

ORIN = Machine(  # Orin Nano Super, JetPack 6.2, a virtual environment without the system's packages
    files={
        "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: …\n"
        "# KERNEL_VARIANT: oot\n",
        "/proc/device-tree/model": "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0",
        "/proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 62.50\nCPU part\t: 0xd42\n",
        "/proc/meminfo": meminfo(7619, 5759, 1269),
        "/proc/swaps": ZRAM,
        "/usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.6.11"}}',
    },
    commands={
        SMI: "Orin (nvgpu), 540.4.0, [N/A], [N/A]\n",
        ("nvidia-smi",): "| NVIDIA-SMI 540.4.0    Driver Version: 540.4.0    CUDA Version: 12.6     |\n",
        ("nvpmodel", "-q"): "NV Power Mode: 15W\n0\n",
        JETPACK: "6.2+b77\n",
        DPKG: "ii  libnvinfer10 10.3.0.30-1+cuda12.5\nii  libnvinfer-bin 10.3.0.30-1+cuda12.5\n"
        "ii  python3-libnvinfer 10.3.0.30-1+cuda12.5\nrc  libnvinfer8 8.5.2-1\nii  bash 5.1\n",
        ("/sbin/ldconfig", "-p"): "\tlibnvinfer.so.10 (libc6,AArch64) => /usr/lib/aarch64-linux-gnu/libnvinfer.so.10\n",
    },
    capability="8.7",
)

THOR = Machine(  # AGX Thor, JetPack 7.1: nvidia-smi answers, the meta package is not installed
    files={
        "/etc/nv_tegra_release": "# R38 (release), REVISION: 4.0, GCID: 43443517, BOARD: generic, EABI: aarch64\n",
        "/proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
        "/proc/meminfo": meminfo(125771, 110000, 16384),
        "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n/swapfile file 16777212 0 -2\n",
    },
    commands={
        SMI: "NVIDIA Thor, 580.00, 11.0, [N/A]\n",
        ("nvidia-smi",): "| NVIDIA-SMI 580.00    Driver Version: 580.00    CUDA Version: 13.0     |\n",
        ("nvcc", "--version"): "Cuda compilation tools, release 13.0, V13.0.48\n",
        ("nvpmodel", "-q"): "NV Power Mode: MAXN\n0\n",
        DPKG: "ii  libnvinfer10 10.13.3.9-1+cuda13.0\nii  python3-libnvinfer 10.13.3.9-1+cuda13.0\n",
    },
    modules={"tensorrt": "/usr/lib/python3.12/dist-packages/tensorrt"},
)

L4 = Machine(
    files={
        "/proc/cpuinfo": "model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\n",
        "/proc/meminfo": meminfo(15990, 14000, 0),
    },
    commands={
        SMI: "NVIDIA L4, 580.95.05, 8.9, 23034 MiB\n",
        ("nvidia-smi",): "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0     |\n",
    },
    packages={"tensorrt": "10.16.1.11", "numpy": "2.4.6"},
    modules={"tensorrt": "/home/u/.venv/lib/python3.12/site-packages/tensorrt"},
    capability="8.9",
)

PLAIN = Machine()  # no GPU, no NVIDIA software, not even /proc
