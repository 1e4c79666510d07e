#!/usr/bin/env python3
"""What XLA makes of a Keras step for an H200, on a machine without one: its memory, and every buffer with its life.

    compile_for_card.py MODEL:BATCH:PRECISION DUMP [MIB]    needs jax[cuda12] and Keras; cases are those of framework_cases.py

With MIB the card has that much memory: XLA computes things again in backward where a step would take more than 80 % of it.
The figures are those of the card but for workspaces of cuDNN, which are found by trying (tuning is off here). DUMP gets XLA's own text: the program in
its order, the buffers (`...buffer-assignment.txt`) and their lives (`...live-range.txt`). Nothing is run.
"""
import os
import sys

case, dump = sys.argv[1:3]
memory = int(sys.argv[3]) << 20 if len(sys.argv) > 3 else 150754820096
os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
os.environ["XLA_FLAGS"] = "--xla_dump_to=%s --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*train_step.* --xla_gpu_autotune_level=0 --xla_backend_optimization_level=0" % dump
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import framework_cases  # noqa: E402
import jax  # noqa: E402
from jax.experimental import topologies  # noqa: E402

H200 = """
gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
  core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4915000000000
  l2_cache_size: 62914560 clock_rate_ghz: 1.98 device_memory_size: MEMORY shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
runtime_version { major: 12 minor: 9 } platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200"
"""


def as_on_a_card():
    """What Keras asks the machine for and finds on a card: cuDNN's attention (in 16 bits) and cuDNN's LSTM. cuDNN tells the sizes of that one's
    buffers only where there is a card; here they are those of src/plan/frameworks/eager_recurrent.c, read on an H200 within 1 %."""
    import jax._src.cudnn.fused_attention_stablehlo as attention
    import jaxlib.gpu_rnn
    attention.check_cudnn_version = lambda: 91000
    attention.check_compute_capability = lambda _: True
    sys.modules["keras.src.backend.jax.rnn"]._is_gpu_available = lambda: True

    def sizes(inputs, units, _layers, batch, length, *_):
        one, weights = batch * length * units * 4, (inputs + units + 2) * units * 16
        forward = 5 * length * units + length * inputs + 10 * units  # src/plan/frameworks/eager_recurrent.c, the standard algorithm
        backward = 3 * length * units + 2 * length * inputs + length * max(units, inputs) + 11 * units
        return (8 << 20) + weights - 32 * units + batch * (4 * max(forward, backward) + 8) + 256, 5 * one + 256
    jaxlib.gpu_rnn.compute_rnn_workspace_reserve_space_sizes = sizes


def main():
    import keras
    import keras.src.backend.jax.trainer as trainer
    card = jax.sharding.SingleDeviceSharding(topologies.get_topology_desc("h200", "cuda", target_config=H200.replace("MEMORY", str(memory)), topology="1x1x1").devices[0])

    def jit(f, *args, **kwargs):
        def compile_only(*values, **_):
            shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.numpy.asarray(x).dtype, sharding=card), values)
            m = jax.jit(f, donate_argnums=0, in_shardings=card, out_shardings=card).lower(*shapes).compile().memory_analysis()
            print("%s: %d bytes at the peak, %d of them temporary" % (case, m.peak_memory_in_bytes, m.temp_size_in_bytes), flush=True)
            os._exit(0)
        return compile_only if "train_step" in getattr(f, "__name__", "") else jax.jit(f, *args, **kwargs)
    trainer.jit = jit
    as_on_a_card()
    framework_cases.zero_weights()
    name, batch, precision = case.split(":")
    model = framework_cases.build(keras, name, precision)
    x, y = framework_cases.data(model, name, int(batch), 1)
    model.fit(x, y, batch_size=int(batch), epochs=1, verbose=0, shuffle=False)


main()
