"""What the parts of gpu_train.py share: NVML's figures, results kept as JSON lines, trainings run on the card."""
import ctypes
import hashlib
import json
import os
import pathlib
import subprocess
import threading
import time

MIB = 1 << 20


class Nvml:
    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.card = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))
        self.peaks, self.samples, self.over = {}, 0, False
        threading.Thread(target=self.watch, daemon=True).start()

    def rows(self):
        many, rows = ctypes.c_uint(512), (self.Info * 512)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(many), rows):
            return {}
        return {rows[i].pid: rows[i].used for i in range(many.value)}

    def watch(self):
        while not self.over:
            for pid, used in self.rows().items():
                self.peaks[pid] = max(used, self.peaks.get(pid, 0))
            self.samples += 1
            time.sleep(0.01)

    def versions(self):
        text = ctypes.create_string_buffer(96)
        self.lib.nvmlSystemGetDriverVersion(text, 96)
        driver = text.value.decode()
        self.lib.nvmlDeviceGetName(self.card, text, 96)
        return f"{text.value.decode()}, driver {driver}"


def libraries(memfit):
    """The versions of what cuda training opens, by the files that memfit doctor finds."""
    p = subprocess.run([memfit, "doctor", "--json"], capture_output=True, text=True)
    said = []
    for check in json.loads(p.stdout or "{}").get("checks", []):
        call = {"cuDNN": "cudnnGetVersion", "cuBLASLt": "cublasLtGetVersion", "NVRTC": None}.get(check["name"], "")
        path = check["found"].split(" at ")[-1].split(" (")[0]
        if call == "" or not os.path.exists(path):
            continue
        try:
            if call:
                ask = getattr(ctypes.CDLL(path), call)
                ask.restype = ctypes.c_size_t
                said.append(f"{check['name']} {ask()}")
            else:
                major, minor = ctypes.c_int(), ctypes.c_int()
                ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
                said.append(f"NVRTC {major.value}.{minor.value}")
        except (OSError, AttributeError):
            said.append(f"{check['name']} {check['found']}")
    return "".join(", " + s for s in said)


class Results:
    def __init__(self, path, memfit, versions):
        digest = hashlib.sha256(pathlib.Path(memfit).read_bytes()).hexdigest()[:16]
        self.key, self.path, self.seen, self.failed = {"versions": versions, "code": digest}, path, {}, 0
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                if row["versions"] == versions and row["code"] == digest:
                    self.seen[row["case"]] = row
        self.lock = threading.Lock()

    def put(self, case, good, **more):
        row = {"case": case, **self.key, "good": bool(good), **more}
        with self.lock:
            self.seen[case] = row
            self.failed += not good
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
            print(f"{case:52} {'ok' if good else 'FAILED'} {' '.join(f'{k}={v}' for k, v in more.items())}"[:400], flush=True)

    def has(self, case):
        return case in self.seen


def in_parallel(jobs, at_once, deadline):
    """Runs jobs, callables, so many at once (or GPU_CHECK_JOBS); those that would begin after the deadline do not."""
    left, lock = list(jobs), threading.Lock()

    def work():
        while True:
            with lock:
                if not left or time.time() > deadline:
                    return
                job = left.pop(0)
            job()

    threads = [threading.Thread(target=work) for _ in range(int(os.environ.get("GPU_CHECK_JOBS", at_once)))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def train(memfit, *args, timeout=100, env=None):
    """Returns status, JSON, last words, pid."""
    p = subprocess.Popen([memfit, "train", *args, "--device", "cuda", "--json", "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "2", **(env or {})})
    try:
        out, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        out, err = p.communicate()
        return -1, None, "took too long", p.pid
    try:
        return p.returncode, json.loads(out) if p.returncode == 0 else None, (err or out).strip()[-500:], p.pid
    except ValueError:
        return p.returncode, None, err.strip()[-300:], p.pid
