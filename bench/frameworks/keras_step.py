#!/usr/bin/env python3
"""A Keras model's own train_step on fake tensors, as memfit's trace: what the rules of src/plan/frameworks/eager*.c can be held against without a card.

    keras_step.py OUT.csv MODEL:BATCH:PRECISION [--accumulate N] [--steps N]     e.g. autoencoder@side=192,width=32:99:float32

Needs Keras, PyTorch and the memfit package. Order and sizes of tensors are Keras's and PyTorch's own; cuDNN's workspaces follow the rules of
python/memfit/_trace.py. An LSTM or GRU runs step by step here: Keras calls cuDNN only where there is a card.
"""
import argparse
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "..", "..", "python")]


def maker(name, batch, precision, accumulate):
    import framework_cases
    import keras
    import torch
    from keras.src.backend.common import global_state
    framework_cases.empty_weights()

    def make():
        global_state.set_global_attribute("torch_device", "cuda")
        keras.mixed_precision.set_dtype_policy(precision)
        builder, loss = framework_cases.find(name)
        model = builder(keras)
        model.compile(optimizer=keras.optimizers.Adam(1e-4, gradient_accumulation_steps=accumulate), loss=framework_cases.LOSSES[loss])
        out = tuple(model.outputs[0].shape[1:])
        integer = "int" in str(model.inputs[0].dtype)

        def step():
            x = torch.empty((batch,) + tuple(model.inputs[0].shape[1:]), dtype=torch.int32 if integer else torch.float32, device="cuda")
            y = torch.empty((batch,) + out[:-1], dtype=torch.int32, device="cuda") if loss == "scce" else torch.empty((batch,) + out, device="cuda")
            model.train_step((x, y))
        return step
    return make


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("case")
    parser.add_argument("--accumulate", type=int)
    parser.add_argument("--steps", type=int, default=3)
    a = parser.parse_args()
    name, batch, precision = a.case.split(":")
    import memfit
    print(memfit.torch_trace(maker(name, int(batch), precision, a.accumulate), a.out, steps=a.steps))


if __name__ == "__main__":
    main()
