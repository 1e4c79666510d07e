"""Texts of failures that cannot be provoked here (other hardware, schedulers, container managers), written by hand in the form their programs
print. (name, cause, text) or (name, cause, text, figures that must be read); tools/provoke_host_oom.py marks them `worded`."""
import re
import textwrap

TORCH_TAIL = ("GPU 0 has a total capacity of 15.98 GiB of which {free} is free. Of the allocated memory {used} is allocated by PyTorch, and {cached} is "
              "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
              "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n")
TF_DEVICE = ("2026-03-02 09:14:11.201833: I tensorflow/core/common_runtime/gpu/gpu_device.cc:2019] Created device /job:localhost/replica:0/task:0/"
             "device:GPU:0 with {mb} MB memory:  -> device: 0, name: NVIDIA GeForce RTX 2060, pci bus id: 0000:01:00.0, compute capability: 7.5\n")
TF_FAILS = """
2026-03-02 09:15:40.118264: W tensorflow/core/common_runtime/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 784.00MiB (rounded to 822083584)requested by op gradient_tape/model/conv2d_2/Conv2D/Conv2DBackpropInput
2026-03-02 09:15:40.130005: I tensorflow/core/common_runtime/bfc_allocator.cc:1101] Stats:
Limit:                      {limit}
InUse:                      {used}
MaxInUse:                   {used}
tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[32,112,112,512] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]
"""
MPS = ("RuntimeError: MPS backend out of memory (MPS allocated: {used} GB, other allocations: 402.11 MB, max allowed: {most} GB). Tried to allocate "
       "1.50 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n")

GIB = 1 << 30
LONG = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.02 GiB is free. "
        "Including non-PyTorch memory, this process has 22.60 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and "
        "210.33 MiB is reserved by PyTorch but unallocated.")
LONG_FIGURES = {"request_bytes": 5 * GIB // 2, "card_bytes": int(23.69 * GIB), "in_use_bytes": int(21.9 * GIB)}


def coloured(text):
    """Numbers and the error's name in colours, as some printers of tracebacks have them."""
    return re.sub(r"(\d+\.\d+|CUDA)", "\x1b[1;36m\\1\x1b[0m", text).replace("torch.Out", "\x1b[31mtorch.\x1b[1mOut") + "\x1b[0m\n"


def bar(states):
    return "".join("\r %3d%%|####      | %d/100 [00:01<01:04, 1.02it/s, loss=0.31]" % (i, i) for i in range(states))


def created(mb, used):
    return TF_DEVICE.format(mb=mb) + TF_FAILS.format(limit=mb << 20, used=used << 20)


WORDED = [
    ("words-kubernetes", "limit", """
        Containers:
          trainer:
            State:          Waiting
              Reason:       CrashLoopBackOff
            Last State:     Terminated
              Reason:       OOMKilled
              Exit Code:    137
        """),
    ("words-docker-inspect", "limit", """
        $ docker inspect trainer --format '{{json .State}}'
        {"Status":"exited","Running":false,"OOMKilled":true,"Dead":false,"ExitCode":137}
        """),
    ("words-slurm", "limit", """
        epoch 1 loss 0.81
        slurmstepd: error: Detected 1 oom_kill event in StepId=81234.0. Some of the step tasks have been OOM Killed.
        srun: error: node17: task 0: Out Of Memory
        """),
    ("words-slurm-batch", "limit", """
        slurmstepd: error: Detected 2 oom-kill event(s) in StepId=5512.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.
        """),
    ("words-slurm-old", "limit", """
        slurmstepd: error: Job 9917 exceeded memory limit (33621004 > 33554432), being killed
        slurmstepd: error: Exceeded job memory limit
        """),
    ("words-lsf", "limit", """
        TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.
        Exited with exit code 130.
        """),
    ("words-pbs", "limit", """
        =>> PBS: job killed: mem 17039364kb exceeded limit 16777216kb
        """),
    ("words-systemd", "too-large", """
        train.service: A process of this unit has been killed by the OOM killer.
        train.service: Main process exited, code=killed, status=9/KILL
        train.service: Failed with result 'oom-kill'.
        """),
    ("words-dmesg-machine", "too-large", """
        [81233.118432] python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0
        [81233.118501] Tasks state (memory values in pages):
        [81233.118503] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
        [81233.118514] [   1822]  1000  1822   412231    61220   1843200        0           200 gnome-shell
        [81233.118519] [   4410]  1000  4410 12803311  7712001  64634880        0             0 python3
        [81233.118523] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid=4410,uid=1000
        [81233.118540] Out of memory: Killed process 4410 (python3) total-vm:51213244kB, anon-rss:30848004kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:63120kB oom_score_adj:0
        """),
    ("words-dmesg-other", "other-process", """
        [5120.200117] Tasks state (memory values in pages):
        [5120.200119] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
        [5120.200131] [    911]   112   911  9120331  6901882  56623104        0          -900 postgres
        [5120.200137] [   4410]  1000  4410  2803311   812001   9633792        0             0 python3
        [5120.200140] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid=4410,uid=1000
        [5120.200152] Out of memory: Killed process 4410 (python3) total-vm:11213244kB, anon-rss:3248004kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:9408kB oom_score_adj:0
        """),
    ("words-notebook-service", "too-large", """
        Your session crashed after using all available RAM.
        """),
    ("words-mpirun", "too-large", """
        --------------------------------------------------------------------------
        mpirun noticed that process rank 3 with PID 21877 on node gpu02 exited on signal 9 (Killed).
        --------------------------------------------------------------------------
        """),
    ("words-joblib", "too-large", """
        joblib.externals.loky.process_executor.TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated. This could be caused by a segmentation fault while calling the function or by an excessive memory usage causing the Operating System to kill the worker.
        The exit codes of the workers are {SIGKILL(-9)}
        """),
    ("words-loader-bus", "limit", """
        ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).
        RuntimeError: DataLoader worker (pid 43) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.
        """),
    ("words-nccl", "library", """
        node3:2011:2199 [2] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'
        torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5
        ncclUnhandledCudaError: Call to CUDA function failed.
        Last error:
        Cuda failure 2 'out of memory'
        """),
    ("words-nccl-shm", "limit", """
        trainer:88:142 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-hRz6dQ to 33030532 bytes, error: No space left on device (28)
        torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled system error (run with NCCL_DEBUG=INFO for details)
        """),
    ("words-hip-too-large", "too-large", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.06 GiB. "
     + TORCH_TAIL.format(free="1.11 GiB", used="14.02 GiB", cached="188.20 MiB")),
    ("words-hip-fragmentation", "fragmentation", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.25 GiB. "
     + TORCH_TAIL.format(free="310.00 MiB", used="9.80 GiB", cached="4.91 GiB")),
    ("words-hip-library", "library", """
        RuntimeError: HIP error: out of memory
        HIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
        """),
    ("words-xpu", "too-large", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 4.00 GiB. "
     + TORCH_TAIL.format(free="1.90 GiB", used="13.10 GiB", cached="90.00 MiB")),
    ("words-mps", "too-large", MPS.format(used="17.44", most="18.13")),
    ("words-mps-limit", "limit", "+ export PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.4\n" + MPS.format(used="3.90", most="4.27")),
    ("words-tf-whole-card", "too-large", created(4301, 3922)),
    ("words-tf-card-taken", "other-process", created(1210, 902)),
    ("words-tf-limit", "limit", created(2048, 1702)),
    ("words-growing-card", "growing", "".join("[train] batch %d/400 allocated MiB %d\n" % (i, 3100 + 407 * i) for i in range(9))
     + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. "
     + TORCH_TAIL.format(free="201.00 MiB", used="6.90 GiB", cached="90.00 MiB")),
    ("words-nothing-wrong", "unknown", """
        scheduler: 3 stale workers were killed, 0 jobs lost
        epoch 1 done; best checkpoint kept, the other one killed off
        memory: usage is fine, no swap used
        """),
    ("words-disk-full", "unknown", """
        Traceback (most recent call last):
          File "train.py", line 80, in <module>
            torch.save(model.state_dict(), "/data/checkpoints/last.pt")
        OSError: [Errno 28] No space left on device
        """),
    ("words-colours", "too-large", coloured(LONG), LONG_FIGURES),
    ("words-boxed", "too-large", "+--- Traceback (most recent call last) ---+\n| /home/me/train.py:44 in <module>         |\n"
     + "\n".join(textwrap.wrap(coloured(LONG[6:]), 118)) + "\n", LONG_FIGURES),
    ("words-wrapped-fragmentation", "fragmentation", "\n".join(textwrap.wrap(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 15.77 GiB of which 402.00 MiB is free. Including "
        "non-PyTorch memory, this process has 15.37 GiB memory in use. Of the allocated memory 9.10 GiB is allocated by PyTorch, and 5.70 GiB is reserved by "
        "PyTorch but unallocated.", 80)) + "\n", {"request_bytes": 3 * GIB // 2, "card_bytes": int(15.77 * GIB)}),
    ("words-behind-a-bar", "too-large", bar(400) + "\r" + LONG + "\n", LONG_FIGURES),
    ("words-before-a-bar", "too-large", LONG + bar(3) + "\n", LONG_FIGURES),
    ("words-ranks", "too-large", "".join("[rank%d]: " % r + LONG.replace("GPU 0", "GPU %d" % r) + "\n" for r in range(4))
     + "E1117 10:00:03.200000 4000 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 2 (pid: 4013)\n", LONG_FIGURES),
    ("words-vllm-start", "other-process", """
        (EngineCore pid=991) ERROR 11-02 12:00:00 [core.py:1136] ValueError: Free memory on device cuda:0 (10.21/23.52 GiB) on startup is less than desired GPU memory utilization (0.9, 21.17 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.
        """, {"request_bytes": int(21.17 * GIB), "card_bytes": int(23.52 * GIB)}),
    ("words-vllm-cache", "limit", """
        (EngineCore pid=991) ERROR 11-02 12:00:00 [core.py:1136] ValueError: To serve at least one request with the models's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the available KV cache memory (2.31 GiB). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.
        """, {"request_bytes": 4 * GIB, "limit_bytes": int(2.31 * GIB)}),
    ("words-vllm-no-cache", "limit", """
        (EngineCore pid=991) ERROR 11-02 12:00:00 [core.py:1136] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
        """),
    ("words-tpu", "too-large", """
        jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.21G of 15.75G hbm. Exceeded hbm capacity by 2.46G.
        """, {"request_bytes": int(18.21 * GIB), "card_bytes": int(15.75 * GIB)}),
    ("words-cupy", "too-large", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 12,884,901,888 bytes).\n",
     {"request_bytes": 8 * GIB}),
    ("words-rmm", "too-large", """
        MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 5368709120 bytes) at: /include/rmm/mr/cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory
        """, {"request_bytes": 5 * GIB}),
    ("words-onnxruntime", "too-large", """
        onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. Name:'/conv1/Conv' Status Message: /core/framework/bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 3221225472
        """, {"request_bytes": 3 * GIB}),
    ("words-tensorrt", "too-large", "[E] [virtualMemoryBuffer.cpp::resizePhysical::162] Error Code 2: OutOfMemory (Requested size was 4294967296 bytes.)\n",
     {"request_bytes": 4 * GIB}),
    ("words-ggml", "too-large", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory\n",
     {"request_bytes": 8 * GIB}),
    ("words-mps-one-buffer", "too-large", "RuntimeError: Invalid buffer size: 32.00 GiB\n", {"request_bytes": 32 * GIB}),
    ("words-no-figures", "too-large", "trainer: batch size 256 failed: CUDA out of memory\n"),
    ("words-cuda-assert", "library", "GPUassert: out of memory kernel.cu 61\n"),
    ("words-cuda-code", "library", "main.cu:88: CUDA error 2: out of memory\n"),
    ("words-cuda-driver", "library", "RuntimeError: CUDA driver error: out of memory\n"),
    ("words-numba", "library", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY\n"),
    ("words-xpu-runtime", "library", """
        terminate called after throwing an instance of 'sycl::_V1::exception'
        level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)
        """),
    ("words-nccl-calloc", "library", """
        [rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
        [rank1]: Last error:
        [rank1]: Failed to CUDA calloc 6291456 bytes
        """),
    ("words-oomd", "too-large", """
        Nov 02 10:11:12 ws7 systemd-oomd[712]: Killed /user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope due to memory pressure for /user.slice/user-1000.slice/user@1000.service being 62.20% > 50.00% for > 20s with reclaim activity
        """),
    ("words-oomd-swap", "too-large", """
        Nov 02 10:11:12 ws7 systemd-oomd[712]: Killed /user.slice/user-1000.slice/session-2.scope due to memory used (16432091136) / total (16539160576) and swap used (2040109056) / total (2147479552) being more than 90.00%
        """, {"in_use_bytes": 16432091136, "limit_bytes": 16539160576}),
    ("words-earlyoom", "too-large", """
        earlyoom[801]: low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%
        earlyoom[801]: sending SIGTERM to process 8812 uid 1000 "python": oom_score 1201, VmRSS 24100 MiB, cmdline "python train.py"
        """),
    ("words-kubernetes-limits", "limit", """
            Last State:     Terminated
              Reason:       OOMKilled
              Exit Code:    137
            Limits:
              cpu:             4
              memory:          8Gi
            Requests:
              memory:          2Gi
        """, {"limit_bytes": 8 * GIB}),
    ("words-kubernetes-evicted", "too-large", """
          Warning  Evicted  3m    kubelet  The node was low on resource: memory. Threshold quantity: 100Mi, available: 60044Ki. Container trainer was using 20341212Ki, request is 4Gi, has larger consumption of memory.
        """, {"in_use_bytes": 20341212 << 10}),
    ("words-sacct", "limit", """
        JobID           JobName      State ExitCode     MaxRSS
        ------------ ---------- ---------- -------- ----------
        221.batch         batch OUT_OF_ME+    0:125  16770904K
        """),
    ("words-srun", "limit", "srun: error: gpu-04: task 3: Out Of Memory\nsrun: Terminating StepId=221.0\n"),
    ("words-htcondor", "limit", """
        Error from slot1_1@n7: Job has gone over cgroup memory limit of 8192 megabytes. Last measured usage: 8190 megabytes.
        """, {"limit_bytes": 8 * GIB}),
    ("words-dask", "limit", "distributed.nanny.memory - WARNING - Worker tcp://127.0.0.1:40001 (pid=9911) exceeded 95% memory budget. Restarting...\n"),
    ("words-arrow", "too-large", "pyarrow.lib.ArrowMemoryError: malloc of size 17179869184 failed\n", {"request_bytes": 16 * GIB}),
    ("words-paging-file", "too-large", "OSError: [WinError 1455] The paging file is too small for this operation to complete.\r\n"),
    ("words-loader-exited", "too-large", "RuntimeError: DataLoader worker (pid(s) 2211, 2212) exited unexpectedly\n"),
    ("words-not-slurm", "unknown", "state machine: OUT_OF_MEMORY_HANDLER registered\nLimits: none\nmemory: 8Gi\n"),
    ("words-other-error", "unknown", "CUDA error: 209 (no kernel image is available for execution on the device)\n"),
]
