#!/usr/bin/env python3
"""Pastes the lines that `memfit plan` suggests into a real training under Keras on torch that may take as much as was asked for.

    measure_lines.py draw DIR SEED                            draws ten models, writes their files and prints FREE_MIB MODEL:BATCH:PRECISION with batches that do not fit
    measure_lines.py ask LINES DIR FREE_MIB MODEL:BATCH[:PRECISION]...   plans the files of DIR and appends every suggested line that is said to fit, with its
                                                              predicted peak and band; MEMFIT names the program
    measure_lines.py run OUT LINES                            a second process holds all of the card but FREE_MIB
    measure_lines.py governed OUT LINES [--at-once N] [--most SECONDS] [--card MIB]   every script under `memfit run --memory FREE_MIB`, several at once: N, and
                                                              no more than --card holds; what has most steps begins first
    measure_lines.py judge OUT

A script is written for every line, the line in it as it was printed, and is run for three updates in a process of its own. Lines that OUT has are not run again.
"""
import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))
from measure_largest import RESERVE_MIB, hold, leave, read  # noqa: E402

SCRIPT = '''
import os, sys
os.environ["KERAS_BACKEND"] = "torch"
sys.path.insert(0, {here!r})
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
import numpy
x, y = (numpy.broadcast_to(a, (settings["batch_size"] * steps,) + a.shape[1:]) for a in framework_cases.data(model, {name!r}, 1, 1))  # the values do not matter
import measure_largest
given_up = measure_largest.watch_cudnn(sys.modules["keras.src.backend.torch.rnn"])
try:
    model.fit(x, y, batch_size=settings["batch_size"], epochs=1, verbose=0, shuffle=False)
finally:
    for what in given_up:
        print("GAVE UP cuDNN: " + what.split(chr(10))[0], file=sys.stderr)
import measure_lines
measure_lines.tell(given_up)
'''


def draw(folder, seed):
    """Models, sizes of a card, precisions by chance; a batch a little, much and far above the largest that fits."""
    os.environ["KERAS_BACKEND"] = "torch"
    import framework_cases
    import keras
    framework_cases.empty_weights()
    chance = random.Random(seed)
    for i, (name, _) in enumerate(framework_cases.draw(seed, 7, 3)):
        free_mib, precision = chance.choice((6144, 8192, 12288)), chance.choice(("float32", "float32", "mixed_bfloat16"))
        path = os.path.join(folder, "%s-%s.json" % (name, precision))
        with open(path, "w") as f:
            f.write(framework_cases.build(keras, name, precision).to_json())
        batch = int(plan(path, free_mib, 8)["max_batch"] * (1.2, 1.5, 3)[i % 3]) // 4 * 4 + 4  # people's batches can be halved
        print("%d %s:%d:%s" % (free_mib, name, batch, precision))


def plan(path, free_mib, batch):
    got = subprocess.run([os.environ.get("MEMFIT", "build/memfit"), "plan", path, "--batch-size", str(batch), "--for", "h200", "--memory",
                          "%dMiB" % (free_mib + RESERVE_MIB), "--runtime", "torch", "--json"], capture_output=True, text=True, check=False)
    if got.returncode not in (0, 3):
        sys.exit("%s: %s" % (path, got.stderr[:200]))
    return json.loads(got.stdout)["in_framework"]


def ask(out, folder, free_mib, cases):
    with open(out, "a") as f:
        for text in cases:
            name, batch, precision = (text.split(":") + ["float32"])[:3]
            answer = plan(os.path.join(folder, "%s-%s.json" % (name, precision)), free_mib, int(batch))
            if answer["fits"] == "yes":
                print("%s fits" % text)
                continue
            for line in answer["suggestions"]:
                row = {"model": name, "batch": int(batch), "precision": precision, "free_mib": free_mib, "fits_as_asked": answer["fits"], "line": line["line"]}
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
    return SCRIPT.format(here=str(here), name=row["model"], batch=row["batch"], precision=row["precision"], before="" if setting else line,
                         settings="dict(%s\n)" % line if setting else "")


def tell(given_up=()):
    """Called at the end of a script: prints what it took. NVML's row is found by taking some memory for a moment, so the pool's unused part goes back before."""
    import gc
    import torch
    from measure_framework_nvml import nvml
    torch.cuda.synchronize()
    live, pool = torch.cuda.max_memory_allocated() >> 20, torch.cuda.max_memory_reserved() >> 20
    gc.collect()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_reserved()
    shown = nvml(left)[0]
    print(json.dumps({"live_mib": live, "pool_mib": pool, "process_mib": pool + (shown - left >> 20) if shown else 0, "versions": {"torch": torch.__version__},
                      **({"gave_up": [text[:300] for text in given_up[:2]]} if given_up else {})}))


def start(row, limit):
    """The script with its line, as a program of its own."""
    path = tempfile.NamedTemporaryFile("w", suffix=".py", delete=False)
    with path:
        path.write(script(row))
    row["report"] = path.name + ".json"
    memfit = os.environ.get("MEMFIT", "build/memfit")
    before = [memfit, "run", "--quiet", "--memory", "%dMiB" % row["free_mib"], "--report", row["report"], "--"] if limit else []
    return subprocess.Popen(before + [sys.executable, path.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONWARNINGS="ignore"))


def end(row, program, begin, out):
    said, errors = program.communicate()
    row.update(status=program.returncode, ran=program.returncode == 0, seconds=round(time.time() - begin, 1))
    if row["ran"]:
        row.update(json.loads(said.strip().split("\n")[-1]))
        if row.get("gave_up"):
            row.update(ran=False, error="Keras gave up cuDNN's call and ran the layer step by step")
    else:
        row["gave_up"] = [line[:400] for line in errors.split("\n") if line.startswith("GAVE UP")][:2]
        row["error"] = ([line for line in errors.split("\n") if "Error" in line] or [errors[-200:]])[-1][:700]
    for report in read_report(row.pop("report")):
        row.update(refused=report["refused"], seen_peak_mib=report["peak_bytes"] >> 20)
        if report["refused"]:  # which request, and what was held then
            row["refusals"] = [{k: v for k, v in d.items() if isinstance(v, (int, str))} for d in report.get("denied", [])[:4]]
    with open(out, "a") as f:
        f.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def read_report(path):
    try:
        with open(path) as f:
            return [json.load(f)]
    except (OSError, ValueError):
        return []


def steps_of(row):
    return int((re.findall(r"accumulation_steps=(\d+)", row["line"]) or [1])[0])


def run(out, lines, governed, at_once, most, card_mib):
    have, begin, running = {(r["model"], r["batch"], r["line"]) for r in read(out)}, time.time(), []
    rows = sorted((r for r in read(lines) if (r["model"], r["batch"], r["line"]) not in have), key=lambda r: (-steps_of(r), r["free_mib"]))
    holder = None if governed else hold()

    def reap(to, more_mib=0):
        while len(running) > to or running and sum(r["free_mib"] for r, _, _ in running) + more_mib > card_mib:
            for one in [x for x in running if x[1].poll() is not None]:
                running.remove(one)
                end(*one, out)
            time.sleep(0.1)
    try:
        for row in rows:
            reap(at_once - 1 if governed else 0, row["free_mib"])
            if time.time() - begin > most:
                break
            if holder:
                row["left_mib"] = leave(holder, "only", row["free_mib"])
            running.append((row, start(row, governed), time.time()))
        reap(0)
    finally:
        if holder:
            holder.kill()


def told(row):
    """Whether NVML's figure is this process's: one below its own pool was another's."""
    return row.get("process_mib", 0) > row.get("pool_mib", 0)


def judge(out):
    rows = read(out)
    void = [r for r in rows if not r.get("ran") and r.get("refused") == 0]  # the limit refused nothing: others had filled the card
    good = [r for r in rows if r not in void]
    ran = [r for r in good if r.get("ran")]
    known = [r for r in ran if told(r)]
    for r in rows:
        where = "inside" if r in known and r["low_mib"] <= r["process_mib"] <= r["high_mib"] else "outside" if r in known else ""
        if not r.get("ran"):
            where = "void, the card was full" if r in void else "FAILED " + r.get("error", "")[:80]
        print("%-16s %5d  %-78s %6d (%d to %d)  %6s %s" % (r["model"], r["batch"], r["line"][:78], r["peak_mib"], r["low_mib"], r["high_mib"], r.get("process_mib", ""), where))
    print("%d lines were in force before" % sum(map(in_force, rows)))
    inside = sum(r["low_mib"] <= r["process_mib"] <= r["high_mib"] for r in known)
    ran = [r for r in ran if r.get("process_mib", 0) <= r["free_mib"]]
    print("%d models, %d lines: %d ran in what was asked for; process inside the band %d of %d" % (len({r["model"] for r in good}), len(good), len(ran), inside, len(known)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "ask", "run", "governed", "judge"))
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--most", type=float, default=1e9)
    parser.add_argument("--card", type=int, default=1 << 30)
    a = parser.parse_args()
    if a.what == "draw":
        draw(*a.rest)
    elif a.what == "ask":
        ask(a.rest[0], a.rest[1], int(a.rest[2]), a.rest[3:])
    elif a.what == "judge":
        judge(a.rest[0])
    else:
        run(a.rest[0], a.rest[1], a.what == "governed", a.at_once, a.most, a.card)


if __name__ == "__main__":
    main()
