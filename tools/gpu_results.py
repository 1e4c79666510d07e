"""What the parts of gpu_train.py share: NVML's figures, results kept as JSON lines, trainings run on the card."""
import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import threading
import time

MIB = 1 << 20
NOT_BUILT = "its program does not lie beside memfit: build everything (make)"


class Card:
    """NVML's own calls for card 0."""

    class Info(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self.lib.nvmlInit_v2()
        self.card = ctypes.c_void_p()
        self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.card))

    def rows(self):
        many, rows = ctypes.c_uint(512), (self.Info * 512)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.card, ctypes.byref(many), rows):
            return {}
        return {rows[i].pid: rows[i].used for i in range(many.value)}

    def memory(self):
        """Bytes of the card, the driver's own part included; free; used by all. Quicker than rows()."""
        memory = (ctypes.c_ulonglong * 3)()
        return (0, 0, 0) if self.lib.nvmlDeviceGetMemoryInfo(self.card, memory) else tuple(memory)

    def total(self):
        return self.memory()[0]

    def versions(self):
        text = ctypes.create_string_buffer(96)
        self.lib.nvmlSystemGetDriverVersion(text, 96)
        driver = text.value.decode()
        self.lib.nvmlDeviceGetName(self.card, text, 96)
        return f"{text.value.decode()}, driver {driver}"


class Whole:
    """What the whole card showed since somebody asked for it, read far more often than the list of processes: with one process on the card, its use less what
    no process is shown for (the driver's own part) is that process's."""

    def __init__(self):
        self.peak, self.count, self.longest, self.first, self.last = 0, 0, 0.0, None, None
        self.rest_least, self.rest_most = None, None
        self.cost = {"rows": [0, 0.0, 0.0], "card": [0, 0.0, 0.0]} # calls, seconds in all, the longest

    def timed(self, what, call):
        began = time.monotonic()
        out = call()
        took, row = time.monotonic() - began, self.cost[what]
        row[0], row[1], row[2] = row[0] + 1, row[1] + took, max(row[2], took)
        return out

    def look(self, card):
        now, used = time.monotonic(), self.timed("card", card.memory)[2]
        self.peak, self.count = max(self.peak, used), self.count + 1
        self.longest = max(self.longest, now - self.last) if self.last else 0.0
        self.first, self.last = self.first or now, now
        return used

    def rest(self, before, rows, after):
        """The list of processes between two equal looks at the card: what no process is shown for."""
        if rows and before == after:
            rest = after - sum(rows.values())
            self.rest_least = rest if self.rest_least is None else min(self.rest_least, rest)
            self.rest_most = rest if self.rest_most is None else max(self.rest_most, rest)

    def said(self):
        ms = {what: [calls, round(1e3 * total / max(calls, 1), 2), round(1e3 * longest, 1)] for what, (calls, total, longest) in self.cost.items()}
        return {"peak": self.peak, "count": self.count, "longest": self.longest, "span": self.last - self.first if self.last else 0.0, "rest": [self.rest_least, self.rest_most], "cost_ms": ms}


def sample():
    """The sampler's own process: looks at every process each 10 ms, by the clock. On its standard input: a pid, and it prints what it saw of it; `every SECONDS`: how often
    from now on, and below 10 ms it looks at the whole card each millisecond between; `card`: prints what the whole card showed since it was asked last."""
    card, seen, due, every, whole = Card(), {}, time.monotonic(), 0.01, Whole()
    try: # before all that is checked: a busy machine must not keep it from looking
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    except OSError:
        pass
    while True:
        quick = every < 0.01
        wait = max(0, due - time.monotonic())
        asked, _, _ = select.select([sys.stdin], [], [], min(wait, 0.001) if quick else wait)
        if asked:
            line = sys.stdin.readline()
            if not line:
                return
            if line.startswith("every"):
                every, whole = float(line.split()[1]), Whole()
                print("0", flush=True) # every line has its answer: what came behind it would wait in a buffer that select does not see
            elif line.startswith("card"):
                print(json.dumps(whole.said()), flush=True)
                whole = Whole()
            else:
                print(json.dumps(seen.get(int(line), [0, 0, 0, 0, 0])), flush=True)
        before = whole.look(card) if quick else 0
        if time.monotonic() < due:
            continue
        began = time.monotonic()
        rows = whole.timed("rows", card.rows)
        for pid, used in rows.items():
            row = seen.setdefault(pid, [0, 0, 0, began, began])
            row[0], row[1], row[2], row[4] = max(row[0], used), row[1] + 1, max(row[2], began - row[4]), began
        if quick:
            whole.rest(before, rows, whole.look(card))
        due = max(due + every, time.monotonic() + 0.0005)


class Nvml(Card):
    """What every process holds, watched from a process of its own: one sampler for all parts, since several slow each other, and one that no
    other thread of Python keeps waiting."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.start()

    def start(self):
        self.child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--sample"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what):
        with self.lock:
            self.child.stdin.write(f"{what}\n")
            self.child.stdin.flush()
            return json.loads(self.child.stdout.readline())

    def peak(self, pid):
        """The most bytes that NVML showed for the process."""
        return self.ask(pid)[0]

    def sampled(self, pid):
        """How often a process was looked at, the longest time between two looks, and the time from the first to the last."""
        _, count, gap, first, last = self.ask(pid)
        return count, gap, last - first

    def every(self, seconds):
        """How often it looks from now on."""
        self.ask(f"every {seconds}")

    def whole(self):
        """What the whole card showed since this was asked last (Whole.said); nothing where it looks each 10 ms or less often."""
        return self.ask("card")

    def end(self):
        self.child.stdin.close()
        self.child.wait()

    @contextlib.contextmanager
    def quiet(self):
        """Nobody looks meanwhile: for an answer the driver walks over every handle of every process, and of 57,000 (a card in pages) it has none left for anything else."""
        self.end()
        try:
            yield
        finally:
            self.start()


def library_files(memfit):
    """What memfit doctor finds of what it opens: {name: file}."""
    p = subprocess.run([memfit, "doctor", "--json"], capture_output=True, text=True)
    files = {c["name"]: c["found"].split(" at ")[-1].split(" (")[0] for c in json.loads(p.stdout or "{}").get("checks", [])}
    return {name: path for name, path in files.items() if os.path.exists(path)}


def found_library(memfit, name):
    return library_files(memfit).get(name, "")


def libraries(memfit):
    """The versions of what cuda training opens."""
    said = []
    for name, path in library_files(memfit).items():
        call = {"cuDNN": "cudnnGetVersion", "cuBLASLt": "cublasLtGetVersion", "NVRTC": None}.get(name, "")
        if call == "":
            continue
        try:
            if call:
                part = pathlib.Path(path).parent / "libcudnn_graph.so.9" # before the shim, which takes whatever the loader finds by that name
                if name == "cuDNN" and part.exists():
                    ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
                ask = getattr(ctypes.CDLL(path), call)
                ask.restype = ctypes.c_size_t
                said.append(f"{name} {ask()}")
            else:
                major, minor = ctypes.c_int(), ctypes.c_int()
                ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
                said.append(f"NVRTC {major.value}.{minor.value}")
        except (OSError, AttributeError):
            said.append(f"{name} at {path}")
    return "".join(", " + s for s in said)


BACKEND = ("src/ops/cuda", "src/ops/reference", "src/graph", "src/device", "tests/cuda", "tests/ops")


def hash_backend(root):
    """Of the kernels' texts and of all that checks them one by one, by their sources."""
    h = hashlib.sha256()
    for path in sorted(p for folder in BACKEND for p in (root / folder).rglob("*") if p.suffix in (".c", ".h", ".cu", ".cuh")):
        h.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()[:16]


def backend_code(memfit):
    """Programs that were carried to a machine without their sources have the hash beside them: python3 tools/gpu_results.py --code > FOLDER/backend.code"""
    carried = pathlib.Path(memfit).parent / "backend.code"
    return carried.read_text().strip() if carried.exists() else hash_backend(pathlib.Path(__file__).resolve().parent.parent)


class Results:
    """Cases that were run, a JSON line each, keyed by the case, the versions of what it ran on, and a hash of the code that it is about."""

    def __init__(self, path, memfit, versions):
        self.versions, self.path, self.seen, self.failed, self.memfit, self.hashes = versions, path, {}, 0, memfit, {}
        if os.path.exists(path):
            with open(path, "r+") as f:
                fcntl.flock(f, fcntl.LOCK_EX) # another part may write its own
                text = f.read()
                if text and not text.endswith("\n"): # ended while it wrote
                    text = text[:text.rfind("\n") + 1]
                    f.truncate(len(text.encode()))
            for line in text.splitlines():
                row = json.loads(line)
                if row["versions"] == versions and row["code"] == self.code(row["case"]):
                    self.seen[row["case"]] = row
        self.lock = threading.Lock()

    def write(self, row):
        self.seen[row["case"]] = row
        with open(self.path, "a") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            f.write(json.dumps(row) + "\n")

    def code(self, case):
        """Kinds, methods, groups and ways are about the backend alone: a change elsewhere does not make them run again. All else is about the whole program."""
        name = "backend" if case.removeprefix("part ").split()[0] in ("kinds", "methods", "groups", "ways") else "memfit"
        if name not in self.hashes:
            self.hashes[name] = backend_code(self.memfit) if name == "backend" else hashlib.sha256(pathlib.Path(self.memfit).read_bytes()).hexdigest()[:16]
        return self.hashes[name]

    def put(self, case, good, **more):
        more.setdefault("seconds", Turns.since())
        row = {"case": case, "versions": self.versions, "code": self.code(case), "good": bool(good), "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), **more}
        with self.lock:
            self.failed += not good
            self.write(row)
            shown = " ".join(f"{k}={v}" for k, v in more.items() if k not in ("table", "lines"))
            print(f"{case:52} {'ok' if good else 'FAILED'} {shown}"[:400], flush=True)

    def has(self, case):
        return case in self.seen and self.seen[case]["good"] # what failed is tried again

    def not_ended(self, case):
        """It runs the next time."""
        Turns.add_left()
        print(f"{case}: not ended in time", flush=True)

    def put_part(self, part, left, why):
        """How many of a part's cases are left for the next time, and why it could not run at all."""
        row = {"case": f"part {part}", "versions": self.versions, "code": self.code(part), "good": True, "left": left, "why": why}
        with self.lock:
            self.write(row)

    def print_table(self, wanted=()):
        """One line a part: what is known of this code on this card, whenever it was run. Returns the exit status: 1 something failed, 3 something is left to run."""
        parts = {p: [] for p in wanted}
        for case, row in self.seen.items():
            name = case.split()[0].rstrip(":")
            if name != "part" and (not wanted or name in parts):
                parts.setdefault(name, []).append(row)
        print(f"\n{self.versions}; memfit {self.code('memfit')}, backend {self.code('kinds')}\n\n| part | cases | good | failed | left | when (UTC) |\n|---|---|---|---|---|---|")
        status = 0
        for part, rows in parts.items() if wanted else sorted(parts.items()):
            end = self.seen.get(f"part {part}", {"left": 0 if rows else "all", "why": ""})
            bad = [r["case"] for r in rows if not r["good"]]
            when = sorted(r["when"] for r in rows if "when" in r) or [""]
            span = when[0] + (" to " + when[-1][-5:] if when[0] != when[-1] else "")
            said = rows[0].get("said", "") if len(rows) == 1 and rows[0]["case"] == part else ""
            print(f"| {part} | {len(rows)} | {len(rows) - len(bad)} | {', '.join(bad) or 0} | {end['why'] or end['left']} | {span}{'; ' if span and said else ''}{said} |"[:400])
            status = 1 if bad or status == 1 else 3 if end["left"] and not end["why"] else status
        return status


class Turns:
    """Parts that run side by side, each in a thread of its name: how many processes each may have, and all together; how many cases had no time."""
    of_part, all_of_them, left, lock, clock = {}, None, {}, threading.Lock(), threading.local()

    @staticmethod
    def since():
        """Seconds since this thread's case began, which is when the one before ended."""
        now = time.time()
        began, Turns.clock.began = getattr(Turns.clock, "began", now), now
        return round(now - began, 1)

    @staticmethod
    def add_left(count=1, part=None):
        with Turns.lock:
            part = part or threading.current_thread().name
            Turns.left[part] = Turns.left.get(part, 0) + count


def too_late(deadline):
    """A case that would begin now waits for the next time."""
    if time.time() > deadline:
        Turns.add_left()
        return True
    return False


def in_parallel(jobs, at_once, deadline):
    """Runs jobs, callables, so many at once (or GPU_CHECK_JOBS, or what the part was given); those that would begin after the deadline do not."""
    left, lock = list(jobs), threading.Lock()
    at_once = Turns.of_part.get(threading.current_thread().name) or int(os.environ.get("GPU_CHECK_JOBS", at_once))

    def work():
        while True:
            with Turns.all_of_them or contextlib.nullcontext():
                with lock:
                    if not left or time.time() > deadline:
                        return
                    job = left.pop(0)
                Turns.since()
                job()
            time.sleep(0.02) # else who gave a turn back takes it again before others who wait

    part = threading.current_thread().name
    threads = [threading.Thread(target=work, name=part) for _ in range(at_once)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    Turns.add_left(len(left), part)


@contextlib.contextmanager
def kept_folder(results, part):
    """A folder beside the results, of this program on this card; it goes when the part is done."""
    key = hashlib.sha256((results.versions + results.code(part)).encode()).hexdigest()[:12]
    folder = pathlib.Path(f"{results.path}.{part}-{key}")
    for old in folder.parent.glob(f"{pathlib.Path(results.path).name}.{part}-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    before = Turns.left.get(part, 0)
    yield str(folder)
    if Turns.left.get(part, 0) == before:
        shutil.rmtree(folder, ignore_errors=True)


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


def allocations(j):
    """Of host memory in steps: by memfit itself, which must be none, and by the driver and its libraries."""
    theirs = sum(calls for name, calls in j.get("allocations_in_steps_by", {}).items() if name.startswith(("libcuda", "libcudnn", "libcublas", "libnvrtc", "libnv")))
    own = j["allocations_in_steps"] - theirs
    return {"allocations": own, "driver_allocations": theirs, **({"allocations_by": j["allocations_in_steps_by"]} if own else {})}


def program(memfit, name):
    """Another program of the build, or of a folder with all programs side by side."""
    folder = os.path.dirname(memfit)
    return next((f"{folder}/{sub}{name}" for sub in ("", "tests/", "examples/") if os.path.exists(f"{folder}/{sub}{name}")), None)


if __name__ == "__main__":
    if sys.argv[1:] == ["--sample"]:
        sample()
    elif sys.argv[1:] == ["--code"]:
        print(hash_backend(pathlib.Path(__file__).resolve().parent.parent))
