# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a GPU: it takes CuPy's place and compiles the same CUDA source for the processor.

Blocks have one thread and run one after the other. It can show wrong arithmetic and wrong addresses, not races: those
need the GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from veilwood.errors import VeilwoodError
from veilwood_engines import gpu

CUDA_ON_THE_PROCESSOR = """
#include <algorithm>
#define __global__
#define __device__
#define __shared__
#define __forceinline__
#define __launch_bounds__(threads)
using std::max;
using std::min;
struct alignas(16) int4 { int x, y, z, w; };
struct { unsigned x; } threadIdx, blockIdx;
void __syncthreads() {}
template <typename Number> void atomicAdd(Number *place, Number amount) { *place += amount; }
SOURCE
int4 shared[1 << 16];
extern "C" void set_block(unsigned block) { blockIdx.x = block; }
"""


class OnHost(np.ndarray[Any, Any]):
    def get(self) -> NDArray[Any]:
        return np.asarray(self)


def stand_in(folder: Path) -> Any:
    """What ``gpu`` uses of CuPy, on the processor."""

    def compiled(code: str, options: tuple[str, ...]) -> SimpleNamespace:
        library = folder / (hashlib.sha256(repr((code, options)).encode()).hexdigest() + ".so")
        if not library.exists():
            source = library.with_suffix(".cpp")
            source.write_text(CUDA_ON_THE_PROCESSOR.replace("SOURCE", code))
            command = ["g++", "-shared", "-fPIC", "-w", *options, str(source), "-o", str(library)]
            subprocess.run(command, check=True)
        module = ctypes.CDLL(str(library))
        return SimpleNamespace(get_function=lambda name: Kernel(module, name))

    class Kernel:
        max_dynamic_shared_size_bytes = 0  # set by whoever launches it

        def __init__(self, module: ctypes.CDLL, name: str) -> None:
            self.module, self.loop = module, getattr(module, name)

        def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...], shared_mem: int) -> None:
            assert block == (1,)
            assert shared_mem <= self.max_dynamic_shared_size_bytes
            given = [
                ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray)
                else ctypes.c_int(int(a)) if isinstance(a, np.int32)
                else ctypes.c_longlong(a)
                for a in arguments
            ]  # fmt: skip
            for number in range(grid[0]):
                self.module.set_block(number)
                self.loop(*given)

    module: Any = ModuleType("cupy")
    module.__getattr__ = lambda name: getattr(np, name)
    module.asnumpy = np.asarray
    module.zeros = lambda shape, dtype=np.float64: np.zeros(shape, dtype).view(OnHost)
    module.RawModule = compiled
    error = type("CUDARuntimeError", (Exception,), {})
    module.cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=error),
        Device=lambda: SimpleNamespace(attributes={"MaxSharedMemoryPerBlockOptin": 200_000, "MultiProcessorCount": 3}),
    )
    return module


def there_is_a_gpu() -> bool:
    try:
        with gpu.use():
            return True
    except VeilwoodError:
        return False


DEVICES = [
    pytest.param("stand-in", marks=pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")),
    pytest.param("gpu", marks=pytest.mark.skipif(not there_is_a_gpu(), reason="needs a GPU and CuPy")),
]
