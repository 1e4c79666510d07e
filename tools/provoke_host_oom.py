#!/usr/bin/env python3
"""Provokes failures of host memory whose cause is known, each in a process of its own, and runs each mended program.

    tools/provoke_host_oom.py OUTDIR [NAME-PREFIX...]

Writes OUTDIR/<name>.log (standard output and error together, as the user sees them) and OUTDIR/cases.json (cause, whether each mended form
survived). TORCH, TF and JAX name the Python interpreters that have them (default: this one); a case whose framework is missing is left out.
Needs root for `group` (a memory cgroup of its own, removed afterwards) and `shm` (a mount namespace with a /dev/shm of that many MiB);
`ulimit` is MiB of addresses. Nothing of the machine is changed.

Texts of hardware and schedulers that are not here stand in WORDED: written by hand after the programs' sources, marked `worded` in
cases.json. A kill without a word about a limit is labelled too-large, though a cgroup made it: the machine's own kill reads the same.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap

from host_oom_words import WORDED

PYTHONS = {"plain": sys.executable, "torch": os.environ.get("TORCH", sys.executable), "tf": os.environ.get("TF", sys.executable),
           "jax": os.environ.get("JAX", sys.executable)}
MODULES = {"plain": "json", "torch": "torch", "tf": "tensorflow", "jax": "jax"}
GROUPS = pathlib.Path("/sys/fs/cgroup/memory")

LOADER = """
    import torch
    class Rows(torch.utils.data.Dataset):
        def __len__(self): return 64
        def __getitem__(self, i): return {item}
    for x in torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers={workers}): print("batch", tuple(x.shape))
"""
HOG = "torch.ones(200 << 20, dtype=torch.uint8).sum()"
LEAK = """
    import numpy as np
    kept = []
    for step in range(100):
        kept.append(np.ones(24 << 20, dtype=np.uint8))
        {say}
"""


def case(name, cause, lib, code, mended=(), tail="", **how):
    """`tail`: a command whose output follows the program's (as a shell script, or dmesg)."""
    return dict(name=name, cause=cause, lib=lib, code=textwrap.dedent(code), how=how, tail=tail,
                mended=[dict(change=c, code=textwrap.dedent(code if m is None else m), how=h) for c, m, h in mended])


def numpy_cases():
    big = "import numpy as np\nx = np.zeros((2_000_000, 3_000_000))"
    yield case("numpy-too-large-matrix", "too-large", "plain", big)
    yield case("numpy-too-large-distances", "too-large", "plain",
               "import numpy as np\np = np.zeros((900_000, 3))\nd = p[:, None, :] - p[None, :, :]")
    yield case("numpy-too-large-dtype", "too-large", "plain", "import numpy as np\nx = np.zeros((4, 700_000, 700_000), np.complex128)")
    yield case("numpy-limit-float64", "limit", "plain", "import numpy as np\nx = np.ones((1500, 100_000))", ulimit=1000, mended=[
        ("narrow", "import numpy as np\nx = np.ones((1500, 100_000), dtype=np.float32)", dict(ulimit=1000)),
        ("limit-host", None, {})])
    yield case("numpy-limit-load", "limit", "plain", """
        import numpy as np, os, tempfile
        path = os.path.join(tempfile.mkdtemp(), "x.npy")
        np.lib.format.open_memmap(path, "w+", np.uint8, (1300 << 20,)).flush()
        x = np.load(path)
        print(x[:10].sum())""", group=400, mended=[("map", """
        import numpy as np, os, tempfile
        path = os.path.join(tempfile.mkdtemp(), "x.npy")
        np.lib.format.open_memmap(path, "w+", np.uint8, (1300 << 20,)).flush()
        x = np.load(path, mmap_mode="r")
        print(x[:10].sum())""", dict(group=400))], tail="kernel")
    yield case("numpy-limit-stack", "limit", "plain", "import numpy as np\nimages = [np.ones((512, 512, 3)) for _ in range(150)]\n"
               "print('stacking')\nx = np.stack(images)", ulimit=1600)
    yield case("numpy-limit-normal", "limit", "plain", "import numpy as np\nx = np.random.default_rng(0).normal(size=(3000, 50_000))", ulimit=1000)
    yield case("numpy-limit-copy", "limit", "plain", "import numpy as np\nx = np.ones(90_000_000, np.int64)\ny = x.copy()", ulimit=1300)
    yield case("python-limit-list", "limit", "plain", "rows = [0.0] * 90_000_000\nrows = rows + rows", ulimit=900)
    yield case("python-limit-bytes", "limit", "plain", "data = open('/dev/zero', 'rb').read(900 << 20)", ulimit=600)
    yield case("python-limit-mmap", "limit", "plain", "import mmap\nm = mmap.mmap(-1, 1200 << 20)", ulimit=900)


def growing_cases():
    says = {"unit-first": "print('step', step, 'allocated MiB', len(kept) * 24)",
            "unit-in-brackets": "print(f'epoch {step} | loss 0.31 | RSS (MiB): {len(kept) * 24 + 30}')",
            "key-with-unit": "print(f'iter={step} mem_mb={len(kept) * 24.0:.1f} lr=0.001')",
            "number-first": "print(f'{len(kept) * 24 / 1024:.2f} GiB resident after batch {step}')",
            "json": "print('{\"step\": %d, \"rss_gb\": %.3f}' % (step, len(kept) * 24 / 1024))",
            "logging": "print(f'INFO:train:memory usage is now {len(kept) * 24}MB (step {step})')"}
    for name, say in says.items():
        mended = LEAK.format(say="pass").replace("kept = []", "import collections; kept = collections.deque(maxlen=4)")
        yield case("growing-" + name, "growing", "plain", LEAK.format(say=say), ulimit=1900,
                   mended=[("bounded", mended, dict(ulimit=1900))] if name == "unit-first" else [])
    yield case("growing-killed", "growing", "plain", LEAK.format(say="print('step', step, 'resident', len(kept) * 24, 'MB', flush=True)"),
               group=600, tail="shell")
    yield case("growing-torch-cpu", "growing", "torch", """
        import torch
        m = torch.nn.Linear(2000, 2000); history = []
        for step in range(400):
            loss = m(torch.randn(2000, 2000)).relu().sum(); loss.backward; history.append(loss)
            print("step", step, "host memory", 32 * (step + 1) + 200, "MB")""", ulimit=7000, mended=[("number", """
        import torch
        m = torch.nn.Linear(2000, 2000); history = []
        for step in range(60):
            loss = m(torch.randn(2000, 2000)).relu().sum(); history.append(loss.item())""", dict(ulimit=7000))])


def killed_cases():
    hold = "import numpy as np\nprint('loading', flush=True)\nx = np.ones(900 << 20, dtype=np.uint8)\nprint('loaded')"
    yield case("killed-shell", "too-large", "plain", hold, group=300, tail="shell")
    yield case("killed-status-137", "too-large", "plain", hold, group=300, tail="status")
    yield case("killed-dmesg-group", "limit", "plain", hold, group=300, tail="kernel", mended=[("limit-container", None, dict(group=2000))])
    yield case("killed-evaluation", "evaluation", "plain", "print('step 10 loss 0.3')\nprint('validating', flush=True)\n" + hold.split("\n", 2)[0]
               + "\nx = np.ones(900 << 20, dtype=np.uint8)", group=300, tail="shell")
    yield case("killed-subprocess", "too-large", "plain", """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "x = bytearray(b'1') * (900 << 20)"], check=True)""", group=300)
    yield case("killed-pool", "too-large", "plain", """
        import concurrent.futures
        def load(i): return len(bytearray(b"1") * (900 << 20))
        with concurrent.futures.ProcessPoolExecutor(2) as pool: print(list(pool.map(load, range(4))))""", group=300)
    yield case("killed-spawn", "too-large", "torch", """
        import torch, torch.multiprocessing as mp
        def work(rank): torch.ones(1600 << 20, dtype=torch.uint8)
        if __name__ == "__main__": mp.spawn(work, nprocs=2)""", group=900)
    yield case("killed-torchrun", "too-large", "torch", """
        import os, subprocess, sys, tempfile
        path = os.path.join(tempfile.mkdtemp(), "work.py")
        open(path, "w").write("import torch\\nx = torch.ones(1600 << 20, dtype=torch.uint8)\\n")
        sys.exit(subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-port=29617", path]).returncode)""",
               group=900)
    yield case("killed-tf-fit", "too-large", "tf", """
        import numpy as np, keras
        m = keras.Sequential([keras.Input((256, 256, 3)), keras.layers.Conv2D(64, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)])
        m.compile("sgd", "mse"); m.fit(np.zeros((128, 256, 256, 3), "float32"), np.zeros((128, 1)), batch_size=128, verbose=2)""",
               group=1200, tail="shell")


def loader_cases():
    yield case("loader-killed", "too-large", "torch", LOADER.format(item=HOG.replace("200", "900"), workers=2), group=1400,
               mended=[("workers", LOADER.format(item="torch.ones(8)", workers=0), dict(group=1400))])
    yield case("loader-bus-error", "limit", "torch", LOADER.format(item="torch.zeros(3, 512, 512)", workers=2), shm=8, mended=[
        ("limit-shm", None, dict(shm=2000)),
        ("workers", LOADER.format(item="torch.zeros(3, 512, 512)", workers=0), dict(shm=8))])
    yield case("loader-no-space", "limit", "torch", """
        import torch
        torch.multiprocessing.set_sharing_strategy("file_system")
        x = torch.zeros(64 << 20)
        x.share_memory_()
        x += 1""", shm=16, mended=[("limit-shm", None, dict(shm=2000))])
    yield case("loader-numpy", "limit", "torch", """
        import torch, numpy as np
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return np.ones((900, 100_000))
        for x in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1): print(x.shape)""", ulimit=6000)
    yield case("shm-python", "limit", "plain", """
        from multiprocessing import shared_memory
        s = shared_memory.SharedMemory(create=True, size=64 << 20)
        s.buf[:] = bytes(64 << 20)""", shm=16)
    yield case("shm-file", "limit", "plain", "open('/dev/shm/batch-0.bin', 'wb').write(bytes(64 << 20))", shm=16)


def framework_cases():
    yield case("torch-cpu-too-large", "too-large", "torch", "import torch\nx = torch.zeros(900_000, 900_000)")
    yield case("torch-cpu-limit", "limit", "torch", "import torch\nx = torch.zeros(300 << 20)", ulimit=3400)
    yield case("torch-cpu-evaluation", "evaluation", "torch", """
        import torch
        m = torch.nn.Linear(64, 400_000)
        def validate(model, x): return model(x)
        with torch.no_grad():
            for s in range(3): m(torch.randn(8, 64)); print("step", s)
            validate(m, torch.randn(4000, 64))""", ulimit=7000)
    yield case("jax-cpu-too-large", "too-large", "jax", "import jax.numpy as jnp\nx = jnp.zeros((900_000, 900_000)); print(x.sum())")
    yield case("jax-cpu-limit", "limit", "jax", "import jax.numpy as jnp\nx = jnp.zeros((300 << 20,)).block_until_ready()", ulimit=1900)
    yield case("jax-cpu-jit", "too-large", "jax", """
        import jax, jax.numpy as jnp
        f = jax.jit(lambda a: jnp.sort(a[:, None] * a[None, :], axis=0))
        print(f(jnp.ones(1_200_000))[0, 0])""")
    yield case("tf-cpu-too-large", "too-large", "tf", "import tensorflow as tf\nx = tf.zeros((900_000, 900_000))")
    yield case("tf-cpu-limit", "limit", "tf", "import tensorflow as tf\nx = tf.ones((300 << 20,))", ulimit=1900)


def held_out_cases():
    """Written when the rules stood, and judged before anything was changed: `first_answer` in cases.json."""
    yield case("held-lightning-style", "growing", "plain", """
        import numpy as np
        seen = {}
        for i in range(100):
            seen[i] = np.full(20 << 20, i, np.uint8)
            print(f"Epoch 0:  {i}%|###   | {i}/100 [00:0{i % 10}<00:10, v_num=3, ram_used_gb={(i + 1) * 20 / 1024:.2f}]")""", ulimit=1700)
    yield case("held-hdf-style-read", "limit", "plain", """
        import numpy as np
        def load(path): return np.fromfile(path, dtype="float32", count=300 << 20)
        print("reading features.bin")
        load("/dev/zero")""", ulimit=900)
    yield case("held-multiply", "too-large", "plain", "import numpy as np\na = np.ones((400_000, 10)); k = np.exp(-(a @ a.T))")
    yield case("held-script-set-e", "too-large", "plain", "import numpy as np\nnp.ones(1 << 30, np.uint8)", group=300, tail="makefile")
    yield case("held-forkserver", "too-large", "plain", """
        import multiprocessing, sys
        def work(): bytearray(b"x") * (800 << 20)
        p = multiprocessing.get_context("fork").Process(target=work); p.start(); p.join()
        if p.exitcode: raise SystemExit(f"data worker failed with exit code {p.exitcode}")""", group=300)
    yield case("held-torch-share", "limit", "torch", """
        import torch, torch.multiprocessing as mp
        queue = mp.get_context("fork").SimpleQueue()
        queue.put(torch.zeros(3, 2048, 2048))
        print(queue.get().sum())""", shm=8)
    yield case("held-torch-conv", "limit", "torch", """
        import torch
        net = torch.nn.Conv2d(3, 256, 3, padding=1)
        print("epoch 0")
        net(torch.randn(16, 3, 300, 300)).relu().sum().backward()""", ulimit=3500)
    yield case("held-jax-grad", "limit", "jax", """
        import jax, jax.numpy as jnp
        loss = lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum()
        print("compiling")
        print(jax.grad(loss)(jnp.ones((4000, 4000)), jnp.ones((80_000, 4000))).sum())""", ulimit=4200)
    yield case("held-tf-predict", "evaluation", "tf", """
        import numpy as np, keras
        m = keras.Sequential([keras.Input((64,)), keras.layers.Dense(60_000)])
        m.compile("sgd", "mse"); m.predict(np.zeros((9000, 64), "float32"), batch_size=9000, verbose=0)""", ulimit=3600)
    yield case("held-dmesg-python", "limit", "torch", """
        import torch
        w = torch.zeros(400 << 20); w += 1""", group=900, tail="kernel")


def all_cases():
    for maker in (held_out_cases, numpy_cases, growing_cases, killed_cases, loader_cases, framework_cases):
        yield from maker()


# ---- running ----

def in_place(how, script):
    """A shell command that runs `script` as `how` asks."""
    lines = []
    if "group" in how:
        lines.append('echo $BASHPID >"$GROUP/cgroup.procs"')
    if "ulimit" in how:
        lines.append("ulimit -v %d" % (how["ulimit"] << 10))
    if "shm" in how:
        lines.append("mount -t tmpfs -o size=%dm tmpfs /dev/shm" % how["shm"])
    lines.append(script)
    inner = "\n".join(lines)
    return ["unshare", "-m", "bash", "-c", inner] if "shm" in how else ["bash", "-c", inner]


def kernel_lines(since):
    """What the kernel said since, as dmesg prints it; addresses and modules left out."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout.splitlines()
    new = text[len(since):] if text[:len(since)] == since else text[-60:]
    keep = re.compile(r"oom|Memory cgroup|memory: usage|Tasks state|\[ *pid|\[ *\d+\] +\d+ +\d+|Killed process", re.I)
    return [line for line in new if keep.search(line)]


def run(c, how, code, env):
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        pathlib.Path(script).write_text(code)
        group = None
        if "group" in how:
            group = GROUPS / ("memfit-provoke-%d" % os.getpid())
            group.mkdir()
            (group / "memory.limit_in_bytes").write_text(str(how["group"] << 20))
        since = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout.splitlines()
        python = PYTHONS[c["lib"]]
        command = "python3() { %s \"$@\"; }; python3 train.py" % python
        if c["tail"] == "shell":  # a script whose next line is not reached: bash says who was killed
            command = "set +m; %s train.py & wait $!; true" % python
        elif c["tail"] == "makefile":
            pathlib.Path(folder, "Makefile").write_text("train:\n\t@%s train.py\n" % python)
            command = "make train"
        elif c["tail"] == "status":
            command = "%s train.py; echo training ended with exit code $?" % python
        try:
            done = subprocess.run(in_place(how, command), cwd=folder, env=dict(env, GROUP=str(group)), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=240, check=False)
            text, status = done.stdout, done.returncode
        except subprocess.TimeoutExpired as e:
            text, status = (e.stdout or b"").decode(errors="replace"), 124
        if c["tail"] == "kernel":
            text += "\n$ dmesg | tail\n" + "\n".join(kernel_lines(since)) + "\n"
        if group:
            group.rmdir()
        text = re.sub(r'"/[^" ]*/lib/python3', '"/usr/lib/python3', text)
        text = text.replace(folder + "/", "").replace(python, "python3")
        return text, status


def short(text, most=6000):
    """Logs stay small: the ends of a long one."""
    if len(text) <= most:
        return text
    return text[:most // 2].rsplit("\n", 1)[0] + "\n...\n" + text[-most // 2:].split("\n", 1)[1]


def main(out, prefixes):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    env = dict(os.environ, PYTHONUNBUFFERED="1", TF_CPP_MIN_LOG_LEVEL="0", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    missing = {lib for lib, module in MODULES.items()
               if subprocess.run([PYTHONS[lib], "-c", "import " + module], capture_output=True, check=False).returncode}
    path = out / "cases.json"
    rows = {r["name"]: r for r in json.loads(path.read_text())} if path.exists() else {}
    for c in all_cases():
        if c["lib"] in missing or (prefixes and not c["name"].startswith(tuple(prefixes))):
            continue
        text, status = run(c, c["how"], c["code"], env)
        (out / (c["name"] + ".log")).write_text(short(text))
        row = {"name": c["name"], "cause": c["cause"], "how": c["how"], "exit": status, "mended": []}
        if c["name"].startswith("held-"):
            row["held_out"], row["first_answer"] = True, rows.get(c["name"], {}).get("first_answer", "")
        for m in c["mended"]:
            survived = run(dict(c, tail=""), m["how"], m["code"], env)[1] == 0
            row["mended"].append({"class": m["change"], "survived": survived, "on": "cpu"})
        rows[c["name"]] = row
        print(c["name"], status, [(m["class"], m["survived"]) for m in row["mended"]], text.strip().splitlines()[-1:] , flush=True)
    for name, cause, text, *figures in WORDED:
        if not prefixes or name.startswith(tuple(prefixes)):
            (out / (name + ".log")).write_text(textwrap.dedent(text).lstrip("\n"))
            rows[name] = {"name": name, "cause": cause, "worded": True, "mended": []}
            if figures:
                rows[name]["figures"] = figures[0]
    path.write_text("[\n" + ",\n".join(" " + json.dumps(r) for r in sorted(rows.values(), key=lambda r: r["name"])) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
