# SPDX-License-Identifier: Apache-2.0
"""Peers of the secure trees in three processes: the paper's Algorithm 1 as printed in MPyC, MPyC's arrays and demos.

Used by `secure_engine.py`. Veilwood's own protocols are not run here. Run as a program, this file is one MPyC party.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Peer:
    """Seconds of CPU for each party and of wall time, without the start of the processes; and bytes sent by one."""

    cpu_s: float
    wall_s: float
    bytes_sent: int


def literal_tree(n: int, m: int, w: int, depth: int) -> Peer:
    """Algorithm 1 on lists of secure integers, without noise, on random rows of two classes."""
    return _own("literal", n, m, w, depth)


def array_operations(kind: str, count: int) -> Peer:
    """`count` products ("mul"), comparisons ("compare"), or a product of count x 100 and 100 x 10 ("matmul")."""
    return _own(kind, count)


def demo(folder: Path, script: str, dataset: int) -> Peer:
    """One of the demos in MPyC's repository, `id3gini.py` or `np_id3gini.py`, on one of its data sets."""
    outputs, cpu = _three([script, "-i", str(dataset)], folder)
    elapsed = re.search(r"elapsed time: (\d+):(\d+):([\d.]+)\|bytes sent: (\d+)", outputs[0])
    if elapsed is None:
        raise RuntimeError(f"{script} did not finish: {outputs[0][-500:]}")
    hours, minutes, seconds, sent = elapsed.groups()
    _, start_cpu = _three([__file__, "nothing"], folder)
    return Peer((cpu - start_cpu) / 3, 3600 * int(hours) + 60 * int(minutes) + float(seconds), int(sent))


def _own(*arguments: str | int) -> Peer:
    """Run this file as the three parties of MPyC, and return what party 0 measured."""
    outputs, _ = _three([__file__, *map(str, arguments), "-K", "40"], Path.cwd())
    answer = next(line for line in outputs[0].splitlines() if line.startswith("{"))
    return Peer(**json.loads(answer))


def _three(arguments: Sequence[str], folder: Path) -> tuple[list[str], float]:
    """Run a program of MPyC's as three parties; return what they print, and the CPU seconds of all three."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = min(free.getsockname()[1], 65_000)
    before = os.times()
    options = ["-M3", "-B", str(port)]
    parties = [
        subprocess.Popen(
            [sys.executable, *arguments, *options, "-I", str(party)],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for party in range(3)
    ]  # fmt: skip
    outputs = [party.communicate()[0] for party in parties]
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return outputs, spent


# What one party runs


async def _grow(mpc: Any, D: Any, Y: Any, T: Any, R: Any, h: int) -> Any:
    """Algorithm 1 (and 2, 3): names and order of steps are the paper's."""
    classes, m, w, n = range(len(Y)), len(D), len(D[0]), len(T)
    C = [mpc.schur_prod(Y[c], T) for c in classes]  # steps 5 to 8
    frequencies = [mpc.sum(C[c]) for c in classes]
    if h == 0:  # steps 9 to 11
        label = mpc.argmax(frequencies)[0]
        await mpc.gather(label)
        return label
    scores = []
    for i in range(m):  # steps 12 and 13: MAX
        largest = [mpc.max([mpc.in_prod(D[i][v], C[c]) for c in classes]) for v in range(w)]
        scores.append(mpc.sum(largest))
    best = mpc.argmax(mpc.schur_prod(scores, R))[0]  # steps 14 and 15
    k = [best == i for i in range(m)]  # step 16: Indicator
    X = [[mpc.in_prod([D[i][v][j] for i in range(m)], k) for j in range(n)] for v in range(w)]  # steps 17 to 19
    await mpc.gather(X)
    rest = mpc.vector_sub(R, k)
    return k, [await _grow(mpc, D, Y, mpc.schur_prod(T, X[v]), rest, h - 1) for v in range(w)]  # steps 20 to 22


async def _party(kind: str, numbers: list[int]) -> None:
    """Start MPyC, prepare the input of one measurement, run it, print what it took."""
    import numpy as np
    from mpyc.runtime import mpc

    secure = mpc.SecInt(32)
    random = np.random.default_rng(1)
    await mpc.start()

    async def on_arrays(operation: Any, *shapes: tuple[int, ...]) -> Any:
        values = [random.integers(-1000, 1000, shape).astype(object) for shape in shapes]
        inputs = [mpc.input(secure.array(value), senders=0) for value in values]
        await mpc.gather(inputs)
        return lambda: mpc.gather(operation(*inputs))

    if kind == "literal":
        n, m, w, depth = numbers
        rows, target = random.integers(0, w, (n, m)), random.integers(0, 2, n)

        def shared(bits: Any) -> Any:
            return mpc.input([secure(int(bit)) for bit in bits], senders=0)

        D = [[shared(rows[:, i] == v) for v in range(w)] for i in range(m)]
        Y = [shared(target == c) for c in range(2)]
        await mpc.gather(D, Y)
        T, R = [secure(1)] * n, [secure(1)] * m
        run = lambda: _grow(mpc, D, Y, T, R, depth)  # noqa: E731
    elif kind == "mul":
        run = await on_arrays(lambda x, y: x * y, (numbers[0],), (numbers[0],))
    elif kind == "matmul":
        run = await on_arrays(lambda x, y: x @ y, (numbers[0], 100), (100, 10))
    elif kind == "compare":
        run = await on_arrays(lambda x: x < 0, (numbers[0],))
    else:  # "nothing": what starting and ending take
        await mpc.shutdown()
        return
    await mpc.barrier()

    def sent() -> int:
        return sum(peer.protocol.nbytes_sent for peer in mpc.parties if peer.pid != mpc.pid)

    wall, cpu, before = time.perf_counter(), time.process_time(), sent()
    await run()
    spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "bytes_sent": sent() - before}
    print(json.dumps(spent), flush=True)
    await mpc.shutdown()


if __name__ == "__main__":
    from mpyc.runtime import mpc as runtime  # takes its own options out of sys.argv

    runtime.run(_party(sys.argv[1], [int(number) for number in sys.argv[2:]]))
