#!/usr/bin/env python3
"""Training speed and memory beside TensorFlow, in one run: bench_train.py BUILD/memfit [MODEL...]

Needs Python with Keras and TensorFlow (never a dependency of memfit itself). Each measurement is a process of
its own, rounds are interleaved, the best of them counts: step time (median of the steps after the first two) and VmHWM.
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {"s1": 32, "s9-small": 32, "digits": 256, "resnet50": 8, "mobilenetv2": 16, "vgg16": 4, "lstm": 32,
         "transformer": 16}
STEPS = {"s1": 200}

KERAS = r"""
import os, sys, time, json
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf, keras
tf.config.threading.set_intra_op_parallelism_threads(2); tf.config.threading.set_inter_op_parallelism_threads(2)
path, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
m = keras.models.load_model(path)
x = np.random.rand(batch, *m.input_shape[1:]).astype("float32"); y = np.zeros((batch,) + m.output_shape[1:], "float32")
if "sparse" in str(m.loss): y = np.zeros(batch, "int32")
x, y = tf.constant(x), tf.constant(y); times = []
for _ in range(steps):
    t = time.perf_counter(); m.train_on_batch(x, y); times.append(time.perf_counter() - t)
hwm = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")][0]
print(json.dumps({"ms": 1e3 * sorted(times[2:])[len(times[2:]) // 2], "hwm": hwm * 1024}))
"""


def peer(model, batch, steps):
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", KERAS, model, str(batch), str(steps)], capture_output=True,
                         text=True)
    return json.loads(out.stdout.splitlines()[-1]) if out.returncode == 0 else None


def own(memfit, model, batch, steps):
    out = subprocess.run(["/usr/bin/env", "bash", "-c", 'exec "$@"', "-", memfit, "train", model, "--data",
                          f"synthetic:{batch}", "--batch-size", str(batch), "--epochs", str(steps), "--json", "--quiet"],
                         capture_output=True, text=True)
    if out.returncode:
        return None
    r = json.loads(out.stdout)
    return {"ms": r["step_ms"], "hwm": r["measured_peak_bytes"], "planned": r["planned_peak_bytes"]}


def main():
    memfit, names = sys.argv[1], sys.argv[2:] or list(BATCH)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(HERE, "make_train_models.py"), folder, *names], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("| model | batch | memfit ms | TensorFlow ms | ratio | memfit MiB | TensorFlow MiB | ratio |\n|---|---|---|---|---|---|---|---|")
        for name in names:
            path, steps = os.path.join(folder, name + ".keras"), STEPS.get(name, 6)
            best = [None, None]
            for _ in range(2):
                for i, r in enumerate((own(memfit, path, BATCH[name], steps), peer(path, BATCH[name], steps))):
                    if r and (not best[i] or r["ms"] < best[i]["ms"]):
                        best[i] = r
            if not all(best):
                print(f"| {name} | {BATCH[name]} | {'not run' if not best[0] else ''} | |")
                continue
            a, b = best
            print(f"| {name} | {BATCH[name]} | {a['ms']:.2f} | {b['ms']:.2f} | {a['ms'] / b['ms']:.2f} | {a['hwm'] / 2**20:.0f} |"
                  f" {b['hwm'] / 2**20:.0f} | {a['hwm'] / b['hwm']:.2f} |", flush=True)


main()
