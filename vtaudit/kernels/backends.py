"""Which backend runs the kernel, and on which device: decided once, never changed in silence."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from vtaudit.errors import EngineError, SettingsError, name_choices

HOST_BACKENDS = ("numba", "reference")
BACKENDS = ("auto", "triton", *HOST_BACKENDS)


def resolve_backend(backend: str, device: str | None = None) -> tuple[str, str]:
    """Return the backend and the device that a run uses, say ("numba", "cpu").

    "auto" is Triton on a CUDA device, where there is one and `device` allows it, else numba. torch
    is imported only if an NVIDIA driver is there or a CUDA device or Triton was asked for.

    Args:
        backend: one of BACKENDS.
        device: None (choose), "cpu", "cuda" or "cuda:<index>".

    Raises:
        SettingsError: an unknown name, or a backend that does not run on that device.
        EngineError: what was asked for is not there.
    """
    if backend not in BACKENDS:
        raise SettingsError(f"backend: found {backend!r}{name_choices(backend, BACKENDS)}")
    kind = _device_kind(device)
    if backend in HOST_BACKENDS:
        if kind == "cuda":
            raise SettingsError(
                f"backend {backend} runs on the CPU only: found device {device!r}, expected 'cpu';"
                " use backend 'triton' or 'auto' for a GPU"
            )
        return backend, "cpu"
    if backend == "auto" and (kind == "cpu" or (kind is None and not _can_choose_cuda())):
        return "numba", "cpu"
    return "triton", _triton_device(device, kind)


def has_cuda() -> bool:
    """Whether torch can use a CUDA device; without an NVIDIA driver torch is not imported."""
    return _has_nvidia_driver() and _torch_has_cuda()


def _can_choose_cuda() -> bool:
    return _has_triton() and has_cuda()


def _triton_device(device: str | None, kind: str | None) -> str:
    if not _has_triton():
        raise EngineError(
            "backend triton: the package triton is not installed (it exists for Linux only);"
            " use backend 'numba'"
        )
    if kind == "cuda":
        _check_cuda(str(device))
        return str(device)
    if kind is None and has_cuda():
        return "cuda"
    if not _is_interpreting():
        raise EngineError(
            "backend triton: no CUDA device to run on, and on a CPU Triton runs only in its"
            " interpreter; use backend 'numba', or start the process with TRITON_INTERPRET=1"
        )
    return "cpu"


def _device_kind(device: str | None) -> str | None:
    kind = None if device is None else device.partition(":")[0]
    if kind not in (None, "cpu", "cuda"):
        raise SettingsError(f"device: found {device!r}, expected 'cpu', 'cuda' or 'cuda:<index>'")
    return kind


def _check_cuda(device: str) -> None:
    import torch

    if not _torch_has_cuda():
        raise EngineError(
            f"device {device}: torch {torch.__version__} finds no CUDA device; check the driver and"
            " that torch is a CUDA build, or use backend 'numba' with device 'cpu'"
        )
    index = device.partition(":")[2]
    count = torch.cuda.device_count()
    if index and not (index.isdecimal() and int(index) < count):
        raise EngineError(f"device {device}: expected an index below {count}, the devices found")


def _torch_has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_nvidia_driver() -> bool:
    if Path("/proc/driver/nvidia").exists():
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_interpreting() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)
