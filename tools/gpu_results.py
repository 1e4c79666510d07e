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
        self.peaks, self.seen, self.samples, self.over = {}, {}, 0, False
        threading.Thread(target=self.watch, daemon=True).start()

    def rows(self):
        many, rows = ctypes.c_uint(512), (self.Info * 512)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(many), rows):
            return {}
        return {rows[i].pid: rows[i].used for i in range(many.value)}

    def watch(self):
        while not self.over:
            began = time.monotonic()
            for pid, used in self.rows().items():
                self.peaks[pid] = max(used, self.peaks.get(pid, 0))
                count, gap, first, last = self.seen.get(pid, (0, 0, began, began))
                self.seen[pid] = (count + 1, max(gap, began - last), first, began)
            self.samples += 1
            time.sleep(max(0.0005, 0.01 - (time.monotonic() - began)))

    def sampled(self, pid):
        """How often a process was looked at, the longest time between two looks, and the time from the first to the last."""
        count, gap, first, last = self.seen.get(pid, (0, 0, 0, 0))
        return count, gap, last - first

    def total(self):
        """Bytes of the card, the driver's own part included."""
        memory = (ctypes.c_ulonglong * 3)()
        return 0 if self.lib.nvmlDeviceGetMemoryInfo(self.card, memory) else memory[0]

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
    """Cases that were run, a JSON line each, keyed by the case, the versions of what it ran on, and a hash of the program that it is about."""

    def __init__(self, path, memfit, versions):
        self.versions, self.path, self.seen, self.failed, self.memfit, self.hashes = versions, path, {}, 0, memfit, {}
        if os.path.exists(path):
            for line in open(path):
                row = json.loads(line)
                if row["versions"] == versions and row["code"] == self.code(row["case"]):
                    self.seen[row["case"]] = row
        self.lock = threading.Lock()

    def code(self, case):
        """Kinds and methods are about programs of their own: a change elsewhere does not make them run again."""
        name = {"kinds": "check_kinds", "methods": "bench_methods"}.get(case.split()[0], "memfit")
        if name not in self.hashes:
            path = self.memfit if name == "memfit" else program(self.memfit, name)
            self.hashes[name] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16] if path else ""
        return self.hashes[name]

    def put(self, case, good, **more):
        row = {"case": case, "versions": self.versions, "code": self.code(case), "good": bool(good), **more}
        with self.lock:
            self.seen[case] = row
            self.failed += not good
            with open(self.path, "a") as f:
                f.write(json.dumps(row) + "\n")
            shown = " ".join(f"{k}={v}" for k, v in more.items() if k != "table")
            print(f"{case:52} {'ok' if good else 'FAILED'} {shown}"[:400], flush=True)

    def has(self, case):
        return case in self.seen and self.seen[case]["good"] # what failed is tried again

    def print_table(self):
        """One line a part: what is known of this program on this card, whenever it was run."""
        parts = {}
        for case, row in self.seen.items():
            parts.setdefault({"kill": "kills"}.get(case.split()[0].rstrip(":"), case.split()[0].rstrip(":")), []).append(row)
        print(f"\n{self.versions}; memfit {self.code('memfit')}")
        for part, rows in parts.items():
            bad = [r["case"] for r in rows if not r["good"]]
            print(f"{part:12} {len(rows) - len(bad):4} of {len(rows):4} good{'; FAILED: ' + ', '.join(bad) if bad else ''}"[:300])


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


def program(memfit, name):
    """Another program of the build, or of a folder with all programs side by side."""
    folder = os.path.dirname(memfit)
    return next((f"{folder}/{sub}{name}" for sub in ("", "tests/", "examples/") if os.path.exists(f"{folder}/{sub}{name}")), None)
