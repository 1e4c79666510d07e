"""Texts of failures that cannot be provoked here (other hardware, schedulers, container managers), written by hand in the form their programs
print. (name, cause, text); tools/provoke_host_oom.py marks them `worded`."""

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
]
