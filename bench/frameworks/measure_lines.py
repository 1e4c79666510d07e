#!/usr/bin/env python3
"""Pastes suggested changes into a training under Keras on torch, in the memory that another process leaves free.

    measure_lines.py OUT FREE_MIB 'MODEL:BATCH:PRECISION:ACCUMULATION:OPTIMIZER:PREDICTED_MIB'...

Each case trains three updates with those settings, in a process of its own (forked before it has met the card, so that nothing of an earlier case is
left in it); a line says whether it ran and what NVML showed for it.
"""
import json
import os
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "torch"
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not make a context before the fork
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
out, free_mib, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def train(keras, torch, text, row):
    import framework_cases
    from measure_framework_nvml import nvml
    name, batch, precision, steps, optimizer, predicted = text.split(":")
    row["predicted_mib"] = int(predicted)
    try:
        model = framework_cases.build(keras, name, precision)
        more = {"gradient_accumulation_steps": int(steps)} if int(steps) > 1 else {}
        model.compile(optimizer=getattr(keras.optimizers, optimizer)(1e-4, **more), loss=model.loss)
        x, y = framework_cases.data(model, name, int(batch), 3)
        model.fit(x, y, batch_size=int(batch), epochs=1 if int(steps) == 1 else 2, verbose=0, shuffle=False)
        torch.cuda.synchronize()
        row.update(ran=True, process_mib=nvml(shared=True)[0] >> 20, live_mib=torch.cuda.max_memory_allocated() >> 20,
                   pool_mib=torch.cuda.max_memory_reserved() >> 20)
    except (torch.OutOfMemoryError, RuntimeError) as e:
        row.update(ran=False, error=str(e)[:200])


def main():
    from measure_largest import HOLDER
    import keras
    import torch
    holder = subprocess.Popen([sys.executable, "-c", HOLDER % free_mib], stdout=subprocess.PIPE, text=True)
    holder.stdout.readline()
    try:
        for text in cases:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                continue
            row = {"case": text, "free_mib": free_mib}
            try:
                train(keras, torch, text, row)
            except Exception as e:  # the next case may still run
                row["error"] = ("%s: %s" % (type(e).__name__, e))[:300]
            with open(out, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
            os._exit(0)
    finally:
        holder.kill()


main()
