#!/usr/bin/env python3
"""Makes the traces and pickles under tests/fixtures/traces and the fuzzers' seeds. Plain Python, same output every time.

usage: tools/make_trace_fixtures.py [RECORDED.csv]
RECORDED.csv: a recorded trace of which the first part becomes recorded-part.csv.
"""
import pathlib
import pickle
import random
import sys

root = pathlib.Path(__file__).resolve().parent.parent
out = root / "tests/fixtures/traces"
seeds = root / "tests/fuzz/seeds"


def snapshot():
    """What torch.cuda.memory._dump_snapshot writes, in small: a window that begins in the middle of a run."""
    step = [{"name": "forward", "filename": "/home/u/train/model.py", "line": 41},
            {"name": "main", "filename": "/home/u/train/run.py", "line": 7}]
    inner = [{"name": "_call_impl", "filename": "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", "line": 1}]
    base = 0x7F0000000000
    events = []

    def add(action, addr, size, frames=step, stream=0):
        events.append({"action": action, "addr": addr, "size": size, "stream": stream,
                       "time_us": 1700000000000000 + 10 * len(events), "frames": inner + frames, "compile_context": "N/A"})

    add("segment_alloc", base, 20 << 20)
    add("alloc", base, 4 << 20)
    add("alloc", base + (4 << 20), 2 << 20, stream=93824992)
    add("free_requested", base, 4 << 20)
    add("free_completed", base, 4 << 20)
    add("free_requested", base + (10 << 20), 1 << 20)  # allocated before the window
    add("free_completed", base + (10 << 20), 1 << 20)
    add("alloc", base, 3 << 20)
    add("oom", 12345, 100 << 20)
    events[-1] = {"action": "oom", "device_free": 12345, "size": 100 << 20, "stream": 0, "time_us": events[-1]["time_us"],
                  "frames": inner + step}
    add("snapshot", 0, 0)
    segments = [{"device": 0, "address": base, "total_size": 20 << 20, "allocated_size": 11 << 20, "active_size": 11 << 20,
                 "requested_size": 11 << 20, "stream": 0, "segment_type": "large", "is_expandable": False, "frames": [],
                 "blocks": [{"size": 3 << 20, "requested_size": 3 << 20, "state": "active_allocated", "frames": step},
                            {"size": 1 << 20, "requested_size": 0, "state": "inactive", "frames": []},
                            {"size": 2 << 20, "requested_size": 2 << 20, "state": "active_allocated", "frames": step},
                            {"size": 4 << 20, "requested_size": 0, "state": "inactive", "frames": []},
                            {"size": 1 << 20, "requested_size": 0, "state": "inactive", "frames": []},
                            {"size": 6 << 20, "requested_size": 6 << 20, "state": "active_allocated", "frames": inner},
                            {"size": 3 << 20, "requested_size": 0, "state": "inactive", "frames": []}]}]
    return {"segments": segments, "device_traces": [events, []], "allocator_settings": {"expandable_segments": False},
            "external_annotations": []}


def values(protocol):
    """One of everything. Before protocol 3 Python writes bytes as a call, which is not plain data: left out."""
    shared = ["one", "two"]
    binary = {"bytes": b"\x00\x01\xff"} if protocol >= 3 else {}
    return {**binary, "none": None, "true": True, "false": False, "small": 7, "byte": 255, "word": 65535, "int": -2147483648,
            "large": 1 << 40, "top": (1 << 64) - 1, "low": -(1 << 63), "float": 1.5, "text": "gr\u00fc\u00df \u20ac \U0001F600 'q' \\ \n",
            "list": [1, [2, [3]]], "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
            "shared": [shared, shared], "dict": {1: 2, "x": {}}, "many": list(range(1100))}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def generated(path, seed, steps):
    """A training loop in small: parameters that stay, activations that come and go in nested order, sizes that change."""
    r = random.Random(seed)
    rows, time, ids, live = [], 0, 0, {}

    def alloc(size):
        nonlocal time, ids
        time += r.randrange(1, 50)
        rows.append(f"{time},alloc,{ids},{size},0")
        live[ids] = size
        ids += 1
        return ids - 1

    def free(i):
        nonlocal time
        time += r.randrange(1, 20)
        rows.append(f"{time},free,{i},{live.pop(i)},0")

    layers = [r.choice([1, 3, 9]) * r.choice([4, 64, 256]) * 1024 for _ in range(24)]
    for size in layers:
        for _ in range(3):
            alloc(size)
    for _ in range(steps):
        batch = r.randrange(4, 33)
        stack = []
        for size in layers:
            temporary = alloc(r.randrange(1, 5) * 512 * batch)
            stack.append(alloc(size // 16 * batch // 256 * 256 + 256))
            free(temporary)
        for i in reversed(stack):
            gradient = alloc(r.randrange(256, 3 << 20))
            free(i)
            free(gradient)
    path.write_text("time_us,op,id,bytes,stream\n" + "\n".join(rows) + "\n")


def main():
    out.mkdir(parents=True, exist_ok=True)
    for protocol in range(6):
        if protocol in (0, 2, 4):
            write(out / f"snapshot-p{protocol}.pickle", pickle.dumps(snapshot(), protocol))
        write(out / f"values-p{protocol}.pickle", pickle.dumps(values(protocol), protocol))
        small = dict(values(protocol), many=[1, 2])
        write(seeds / "pickle" / f"values-p{protocol}", pickle.dumps(small, protocol))
        write(seeds / "trace" / f"snapshot-p{protocol}", pickle.dumps(snapshot(), protocol))
    write(out / "object.pickle", pickle.dumps(complex(1, 2), 2))
    write(seeds / "pickle" / "object", pickle.dumps(complex(1, 2), 2))
    generated(out / "generated.csv", 1, 12)
    write(seeds / "csv" / "trace", b"time_us,op,id,bytes,stream\r\n0,alloc,0,256,0\r\n\r\n5,free,0,256,0\r\n")
    write(seeds / "csv" / "quoted", b"\xef\xbb\xbfid , \"a,\"\"b\"\"\", size\n 1 ,\"x y\", -1.5e3\n2,,3\n")
    write(seeds / "trace" / "csv", (out / "generated.csv").read_bytes()[:700])
    if len(sys.argv) > 1:
        lines = pathlib.Path(sys.argv[1]).read_text().splitlines()[:2201]
        (out / "recorded-part.csv").write_text("\n".join(lines) + "\n")


main()
