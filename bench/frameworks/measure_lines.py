#!/usr/bin/env python3
"""Pastes suggested changes into a training under Keras on torch, in the memory that another process leaves free.

    measure_lines.py OUT FREE_MIB 'MODEL:BATCH:PRECISION:ACCUMULATION:OPTIMIZER:PREDICTED_MIB'...

Each case trains three updates with those settings; a line says whether it ran and what PyTorch held.
"""
import gc
import json
import os
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "torch"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
out, free_mib, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3:]


def main():
    from measure_largest import HOLDER
    holder = subprocess.Popen([sys.executable, "-c", HOLDER % free_mib], stdout=subprocess.PIPE, text=True)
    holder.stdout.readline()
    try:
        import keras
        import torch
        import framework_cases
        from measure_framework_nvml import nvml
        for text in cases:
            name, batch, precision, steps, optimizer, predicted = text.split(":")
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            row = {"case": text, "free_mib": free_mib}
            try:
                model = framework_cases.build(keras, name, precision)
                more = {"gradient_accumulation_steps": int(steps)} if int(steps) > 1 else {}
                model.compile(optimizer=getattr(keras.optimizers, optimizer)(1e-4, **more), loss=model.loss)
                x, y = framework_cases.data(model, name, int(batch), 3)
                model.fit(x, y, batch_size=int(batch), epochs=1 if int(steps) == 1 else 2, verbose=0, shuffle=False)
                torch.cuda.synchronize()
                row.update(ran=True, process_mib=nvml()[0] >> 20, predicted_mib=int(predicted))
            except (torch.OutOfMemoryError, RuntimeError) as e:
                row.update(ran=False, error=str(e)[:200])
            with open(out, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    finally:
        holder.kill()


main()
