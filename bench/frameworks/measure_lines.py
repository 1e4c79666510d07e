#!/usr/bin/env python3
"""Pastes the lines that `memfit plan` suggests into a real training under Keras on torch that may take as much as was asked for.

    measure_lines.py ask LINES DIR FREE_MIB MODEL:BATCH[:PRECISION]...   plans the files of DIR (frameworks_truth.py models) and writes every suggested line that is
                                                              said to fit, with its predicted peak and band; MEMFIT names the program
    measure_lines.py run OUT LINES [--pool] [--at-once N] [--most SECONDS]
    measure_lines.py judge OUT

A script is written for every line, the line in it as it was printed, and is run for three updates in a process of its own, forked before it has met the card.
Another process holds all of the card but FREE_MIB meanwhile. With --pool nobody does: PyTorch's pool is kept to FREE_MIB less what NVML shows beside it after a
convolution and a product, and some for kernels, for a card that others use at the same time.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
RESERVE_MIB = 623  # of an H200's memory that the driver keeps: in memfit's fixed cost, in no process's figure
KERNELS_MIB = 100  # that a training loads beyond the first convolution and product
MIB = 1 << 20

SCRIPT = '''
import keras
import framework_cases
keras.mixed_precision.set_dtype_policy({precision!r})
{before}
builder, loss = framework_cases.find({name!r})
model = builder(keras)
settings = dict(batch_size={batch}, optimizer=keras.optimizers.Adam(1e-4))
settings.update({settings})
model.compile(optimizer=settings["optimizer"], loss=framework_cases.LOSSES[loss])
steps = 3 * (settings["optimizer"].gradient_accumulation_steps or 1)
x, y = framework_cases.data(model, {name!r}, settings["batch_size"], steps)
started(model)
model.fit(x, y, batch_size=settings["batch_size"], epochs=1, verbose=0, shuffle=False)
'''


def ask(out, folder, free_mib, cases):
    memfit = os.environ.get("MEMFIT", "build/memfit")
    with open(out, "w") as f:
        for text in cases:
            name, batch, precision = (text.split(":") + ["float32"])[:3]
            got = subprocess.run([memfit, "plan", os.path.join(folder, "%s-%s.json" % (name, precision)), "--batch-size", batch, "--for", "h200", "--memory",
                                  "%dMiB" % (free_mib + RESERVE_MIB), "--runtime", "torch", "--json"], capture_output=True, text=True, check=False)
            if got.returncode != 3:
                print("%s: exit %d, %s" % (text, got.returncode, "it fits" if not got.returncode else got.stderr[:200]))
                continue
            for line in json.loads(got.stdout)["in_framework"]["suggestions"]:
                row = {"model": name, "batch": int(batch), "precision": precision, "free_mib": free_mib, "line": line["line"]}
                row.update({"%s_mib" % k: (line["%s_bytes" % k] >> 20) - RESERVE_MIB for k in ("low", "peak", "high")})
                print("%-5s %s" % (line["fits"], row))
                if in_force(row):
                    print("ALREADY IN FORCE: %s" % row["line"])
                elif line["fits"] == "yes":
                    f.write(json.dumps(row) + "\n")


def in_force(row):
    """Whether the script does already what the line says: its settings are read from its own text, before and after the line is in it."""
    def settings(text):
        found = {"precision": "", "batch_size": "", "gradient_accumulation_steps": "1"}
        found["precision"] = re.findall(r"set_(?:dtype|global)_policy\(['\"](\w+)", text)[-1]
        for key in ("batch_size", "gradient_accumulation_steps"):
            said = re.findall(key + r"=(\d+)", text)
            found[key] = said[-1] if said else found[key]
        found["optimizer"] = re.findall(r"optimizers\.(\w+)\(", text)[-1]
        found["others"] = sorted(line for line in text.split("\n") if line.startswith(("import os", "os.environ", "keras.config")))
        return found
    return settings(script(dict(row, line="batch_size=%d" % row["batch"]))) == settings(script(row))


def script(row):
    """The program with the line in it; the only thing to fill in is a learning rate."""
    line = row["line"].replace("learning_rate=...", "learning_rate=1e-4")
    setting = line.startswith(("batch_size=", "optimizer="))
    return SCRIPT.format(name=row["model"], batch=row["batch"], precision=row["precision"], before="" if setting else line,
                         settings="dict(%s\n)" % line if setting else "")


def keep_to(torch, free_mib, kernels_mib=KERNELS_MIB):
    """Called with the model built: PyTorch's pool may take what is left of `free_mib` beside what the process takes anyway."""
    from measure_framework_nvml import nvml
    model_free = torch.nn.Conv2d(3, 8, 3).cuda()
    model_free(torch.randn(1, 3, 32, 32, device="cuda")).flatten(1).mm(torch.randn(7200, 8, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    beside = nvml()[0] - torch.cuda.memory_reserved() + kernels_mib * MIB
    torch.cuda.set_per_process_memory_fraction((free_mib * MIB - beside) / torch.cuda.get_device_properties(0).total_memory)
    return beside


def train(torch, row, pool):
    from measure_framework_nvml import nvml

    def started(_):
        if pool:
            row["beside_mib"] = keep_to(torch, row["free_mib"]) >> 20
    try:
        exec(compile(script(row), "script", "exec"), {"started": started})
        torch.cuda.synchronize()
        row.update(ran=True, process_mib=nvml(torch.cuda.memory_reserved())[0] >> 20, live_mib=torch.cuda.max_memory_allocated() >> 20, pool_mib=torch.cuda.max_memory_reserved() >> 20)
    except (torch.OutOfMemoryError, RuntimeError) as e:
        row.update(ran=False, error=str(e)[:200])


def run(out, lines, pool, at_once, most):
    from measure_largest import hold
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork
    import keras  # noqa: F401
    import torch
    rows, children, begin = [json.loads(line) for line in open(lines)], set(), time.time()
    holder = None if pool else hold(rows[0]["free_mib"])
    try:
        for row in rows:
            while len(children) >= (at_once if pool else 1):
                children.discard(os.wait()[0])
            if time.time() - begin > most:
                break
            child = os.fork()
            if child:
                children.add(child)
                continue
            start = time.time()
            try:
                train(torch, row, pool)
            except Exception as e:  # the next case may still run
                row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
            row["seconds"] = round(time.time() - start, 1)
            with open(out, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            os._exit(0)
        for child in children:
            os.waitpid(child, 0)
    finally:
        if holder:
            holder.kill()


def judge(out):
    rows = [json.loads(line) for line in open(out)]
    ran = [r for r in rows if r.get("ran")]
    told = [r for r in ran if r.get("process_mib")]
    for r in rows:
        where = "" if r not in told else "inside" if r["low_mib"] <= r["process_mib"] <= r["high_mib"] else "outside"
        print("%-16s %5d  %-78s %6d (%d to %d)  %6s %s" % (r["model"], r["batch"], r["line"][:78], r["peak_mib"], r["low_mib"], r["high_mib"],
                                                        r.get("process_mib", ""), where if r.get("ran") else "FAILED " + r.get("error", "")[:80]))
    print("%d lines were in force before" % sum(map(in_force, rows)))
    inside = sum(r["low_mib"] <= r["process_mib"] <= r["high_mib"] for r in told)
    ran = [r for r in ran if r.get("process_mib", 0) <= r["free_mib"]]
    print("%d models, %d lines: %d ran in what was asked for; process inside the band %d of %d" % (len({r["model"] for r in rows}), len(rows), len(ran), inside, len(told)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ask", "run", "judge"))
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9)
    a = parser.parse_args()
    if a.what == "ask":
        ask(a.rest[0], a.rest[1], int(a.rest[2]), a.rest[3:])
    elif a.what == "run":
        run(a.rest[0], a.rest[1], a.pool, a.at_once, a.most)
    else:
        judge(a.rest[0])


if __name__ == "__main__":
    main()
