#!/usr/bin/env python3
"""Streams and CUDA graphs on a card: is memfit's pool as safe as PyTorch's own allocator, and as good?

    bench/torch_streams.py [--library build/libmemfit.so] [--seconds 230] [--trials 50] [--part orders,graphs,cnn,growing,turns,gpt2,...] [--ahead] [--cores N] [--steps N] [--json FILE]
    bench/torch_streams.py --dry-run        everything but the card: the processes, their turns, the tables

Needs an NVIDIA GPU and PyTorch (2.11); the library, this file, torch_models.py, torch_unseen.py, torch_fresh.py, torch_later.py, torch_last.py, torch_after.py, torch_since.py, torch_next.py and torch_drawn.py are all that has to be on the machine:

    make && bench/torch_streams.py --library "$PWD/build/libmemfit.so"

orders   A tensor is read on a side stream that is behind, and freed meanwhile; then the memory is asked for again and overwritten. Every
         order of record_stream, use and free, --trials times each. "wrong" are reads that saw the new bytes. The row "not recorded"
         shows that the check can see: there wrong reads are expected, of every allocator.
graphs   Tensors made while a CUDA graph is captured must not be handed out before the graph is gone. memfit without its graph
         functions must refuse to be captured.
cnn      A small CNN, inputs from DataLoader workers, copied on a side stream and recorded: reserved / live, ms a step.
growing  Inference: caches of keys and values that grow by a token a step, requests that come and go.
turns    A U-Net and a Transformer trained in one process, by turns.
gpt2     GPT-2 124M (own code, random tokens), torch.compile, 8 x 1024, bfloat16, fused AdamW: reserved / live, ms a step.
vit, masks, lengths, rivals; mixer, speech, beams, pupil; denoise, tagger; tables, twins, dialog, actor; captions, tiles, stories, duel, molecules; blades, depth, answers, seasons; codec, prefetch, rollouts, llama; folds, clips, scribe, vision; diffuse, streets, chat, papers, mutual, policy; ranker, latents, proteins, sounds, letters, generate; prices, plates, minutes, sketches; clouds, reefs, diaries, bridges; signs, herds, novels, harvest; ferns, ports, sagas, orchards; mosses, canals, myths, vineyards; ledgers, cranes, psalms, mills; frescoes, stamps, riddles, looms;
choirs, debates
         The same kinds once more, and again: each group chosen when the pool's policy of its day was finished (bench/torch_models.py, then torch_unseen.py; then torch_fresh.py, torch_later.py, torch_last.py; then torch_after.py, torch_since.py; the last group: torch_next.py).
drawn:SEED
         A loop that nobody wrote (torch_drawn.py): the seed draws the family, the models, sizes and habits.

Each allocator has a process of its own. The processes of a workload are all ready before the first is timed (the peers are warmed up at once, memfit by itself), and take turns
of a few steps each, in another order every round; "ms/step" is the median over the rounds, and times are beside the better peer's: of the
medians, of the sums of all turns, the median of the pairs, and their mean with its standard error. With --ahead the processes of all parts start, and the peers of all are warmed up, before the first part. What the pool did in the turns (pages moved and made, the time that took) is
printed below its row. Exit status 1: something was wrong or failed.

It is long because the checks, the children and their turns travel to a card as one file.
"""
import argparse
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from queue import Empty, Queue

from torch_models import WORKLOADS
from torch_after import AFTER
from torch_drawn import drawn_steps
from torch_since import SINCE
from torch_fresh import FRESH
from torch_last import LAST
from torch_later import LATER
from torch_next import NEXT
from torch_unseen import UNSEEN

WORKLOADS = {**WORKLOADS, **UNSEEN, **FRESH, **LATER, **LAST, **AFTER, **SINCE, **NEXT}

ALLOCATORS = ("default", "expandable", "memfit")
STATS = ("live", "live_peak", "reserved", "reserved_peak", "fixed", "remaps", "remapped_pages", "created_pages", "stream_waits", "allocations", "failures", "moving_us")
SPENT = ("remaps", "remapped_pages", "created_pages", "stream_waits", "moving_us")  # of the pool, in a turn


# ---- the child: one part under one allocator -----------------------------------------------------------------------------
def use_memfit(torch, library, hooks=True):
    memfit = torch.cuda.memory.CUDAPluggableAllocator(library, "memfit_torch_alloc", "memfit_torch_free")
    functions = ctypes.CDLL(library)
    names = (("set_record_stream_fn", "record_stream"), ("set_begin_allocate_to_pool", "begin_pool"),
             ("set_end_allocate_to_pool_fn", "end_pool"), ("set_release_pool", "release_pool"), ("set_reset_fn", "empty_cache"))
    for setter, name in names if hooks else names[:1]:
        address = ctypes.cast(getattr(functions, "memfit_torch_" + name), ctypes.c_void_p).value
        getattr(memfit.allocator(), setter)(address)
    torch.cuda.memory.change_current_allocator(memfit)
    return functions


def figures(torch, memfit):
    if not memfit:
        return dict(live=torch.cuda.max_memory_allocated(), reserved=torch.cuda.max_memory_reserved())
    values = (ctypes.c_uint64 * 16)()
    memfit.memfit_torch_stats(0, values, 16)
    v = dict(zip(STATS, values))
    return dict(live=v["live_peak"], reserved=v["reserved_peak"], held=v["reserved"], remaps=v["remaps"], remapped_pages=v["remapped_pages"], created_pages=v["created_pages"], stream_waits=v["stream_waits"], moving_us=v["moving_us"])


SLEEP = 20_000_000  # cycles: 10 ms or so


def order_trials(torch, trials):
    """{order: wrong reads}. The side stream sleeps, then reads; the main stream frees and overwrites meanwhile."""
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(3)]
    sizes, dice, writer = (64, 3000, 20_000, 300_000, 2_000_000), random.Random(2), main

    def read_late(a, side, n):
        out = torch.empty(n, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP)
            out.copy_(a)
        return out

    def overwrite(n):
        with torch.cuda.stream(writer):
            return [torch.full((n,), 9.0, device="cuda") for _ in range(6)]

    def after(a, n):
        outs = [read_late(a, sides[0], n)]
        a.record_stream(sides[0])
        return outs

    def before(a, n):
        a.record_stream(sides[0])
        return [read_late(a, sides[0], n)]

    def between(a, n):
        outs = [read_late(a, sides[0], n)]
        a.record_stream(sides[0])
        return outs + [read_late(a, sides[0], n)]

    def twice(a, n):
        a.record_stream(sides[0])
        outs = [read_late(a, sides[0], n)]
        a.record_stream(sides[0])
        return outs

    def several(a, n):
        outs = [read_late(a, s, n) for s in sides]
        for s in reversed(sides):
            a.record_stream(s)
        return outs

    def own_too(a, n):
        a.record_stream(main)
        outs = [read_late(a, sides[1], n)]
        a.record_stream(sides[1])
        a.record_stream(main)
        return outs

    def a_view(a, n):
        half = a[n // 2:]
        outs = [read_late(a, sides[2], n)]
        half.record_stream(sides[2])
        return outs

    def other_thread(a, n):
        outs = [read_late(a, sides[0], n)]
        t = threading.Thread(target=lambda: a.record_stream(sides[0]))
        t.start()
        t.join()
        return outs

    def freed_elsewhere(a, n):  # the last reference is another thread's
        outs, held = after(a, n), [a]
        del a
        gone, go = threading.Event(), threading.Event()

        def drop():
            go.wait()
            held.clear()
            gone.set()
        threading.Thread(target=drop).start()
        return outs, lambda: (go.set(), gone.wait())

    def drawn(a, n):  # uses and records of some streams in any order, then another stream asks for the memory
        nonlocal writer
        writer = dice.choice((main, *sides))
        used = dice.sample(sides, dice.randrange(1, 4))
        calls = [(what, side) for side in used for what in ("use", "record") for _ in range(dice.randrange(1, 3))]
        dice.shuffle(calls)
        outs = []
        for what, side in calls:
            if what == "use":
                outs.append(read_late(a, side, n))
            else:
                (a if dice.random() < 0.7 else a[n // 2:]).record_stream(side)
        return outs

    def unrecorded(a, n):
        return [read_late(a, sides[0], n)]

    def on_the_side(n, i):  # the other way round: made on the side stream, read late on another
        with torch.cuda.stream(sides[0]):
            a = torch.full((n,), 7.0, device="cuda")
        out = torch.empty(n, device="cuda")
        sides[1].wait_stream(sides[0])
        sides[1].wait_stream(main)
        with torch.cuda.stream(sides[1]):
            torch.cuda._sleep(SLEEP)
            out.copy_(a)
        a.record_stream(sides[1])
        del a
        with torch.cuda.stream(sides[0]):
            keep = overwrite(n)
        return [out], keep

    wrong = {}
    for name, order in (("recorded after the use", after), ("recorded before the use", before), ("recorded between two uses", between),
                        ("recorded twice", twice), ("three streams", several), ("its own stream, too", own_too), ("through a view", a_view),
                        ("by another thread", other_thread), ("freed by another thread", freed_elsewhere), ("drawn orders, streams and writers", drawn),
                        ("made on a side stream", None), ("freed, then empty_cache", after),
                        ("not recorded", unrecorded)):
        wrong[name] = 0
        for i in range(trials if order is not unrecorded else min(trials, 10)):
            n = sizes[i % len(sizes)]
            if order:
                a = torch.full((n,), 7.0, device="cuda")
                outs, free = order(a, n), None
                if isinstance(outs, tuple):
                    outs, free = outs
                del a
                if free:
                    free()
                if name.endswith("empty_cache"):
                    torch.cuda.empty_cache()
                keep = overwrite(n)
            else:
                outs, keep = on_the_side(n, i)
            torch.cuda.synchronize()
            wrong[name] += any(bool((o != 7.0).any()) for o in outs)
            del outs, keep
        torch.cuda.synchronize()
        writer = main
    return wrong


def graph_trials(torch):
    """{check: what is wrong, or ""}."""
    problems = {}

    def f(x):
        y = x
        for _ in range(4):
            y = (y * 2 + 1).relu()
        return y

    def want(x):
        for _ in range(4):
            x = x * 2 + 1
        return x

    def capture(x, pool=None):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            f(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = f(x)
        return graph, y

    def check(name, body):
        try:
            problems[name] = body() or ""
        except Exception as e:  # noqa: BLE001
            problems[name] = f"{type(e).__name__}: {str(e)[:160]}"

    def eager_is_left_alone():
        bad = 0
        for n in (100, 5000, 1_000_000):
            x = torch.ones(n, device="cuda")
            graph, y = capture(x)
            eager = [torch.full((n,), 9.0, device="cuda") for _ in range(12)]
            for value in (1.0, 2.0, 3.0):
                x.fill_(value)
                graph.replay()
                torch.cuda.synchronize()
                bad += bool((y != want(value)).any()) + sum(bool((e != 9.0).any()) for e in eager)
        return f"{bad} wrong" if bad else ""

    def graphs_share_a_pool():
        n, bad = 500_000, 0
        x = torch.ones(n, device="cuda")
        first, y1 = capture(x)
        second, y2 = capture(x, pool=first.pool())
        eager = [torch.full((n,), 9.0, device="cuda") for _ in range(12)]
        for graph, y in ((first, y1), (second, y2)) * 3:
            graph.replay()
            torch.cuda.synchronize()
            bad += bool((y != want(1.0)).any()) + sum(bool((e != 9.0).any()) for e in eager)
        return f"{bad} wrong" if bad else ""

    def recorded_in_a_capture():
        n, bad = 300_000, 0
        x, side = torch.ones(n, device="cuda"), torch.cuda.Stream()
        f(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            t = x * 3
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = t + 1
            t.record_stream(side)
            del t
            z = x * 5
            torch.cuda.current_stream().wait_stream(side)
        for value in (1.0, 2.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            bad += bool((y != value * 3 + 1).any()) + bool((z != value * 5).any())
        return f"{bad} wrong" if bad else ""

    def freed_graphs_give_back():
        for _ in range(8):
            x = torch.ones(30_000_000, device="cuda")
            graph, y = capture(x)
            graph.replay()
            torch.cuda.synchronize()
            del graph, x, y
        return ""

    def work_beside_a_capture():
        stop, bad = threading.Event(), []

        def eager():
            s = torch.cuda.Stream()
            with torch.cuda.stream(s):
                while not stop.is_set():
                    t = torch.full((200_000,), 4.0, device="cuda")
                    t += 1
            s.synchronize()

        x = torch.ones(100_000, device="cuda")
        f(x)
        torch.cuda.synchronize()
        thread = threading.Thread(target=eager)
        thread.start()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                y = f(x)
        finally:
            stop.set()
            thread.join()
        graph.replay()
        torch.cuda.synchronize()
        return "wrong" if bool((y != want(1.0)).any()) or bad else ""

    check("eager tensors stay what they are", eager_is_left_alone)
    check("two graphs share a pool", graphs_share_a_pool)
    check("record_stream in a capture", recorded_in_a_capture)
    check("graphs come and go", freed_graphs_give_back)
    check("eager work beside a capture", work_beside_a_capture)
    return problems


def refused_capture(torch):
    """memfit without its graph functions: the capture must raise, and nothing else be harmed."""
    x = torch.ones(100_000, device="cuda")
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2  # noqa: F841
        return "was not refused"
    except Exception as e:  # noqa: BLE001
        text = str(e)
    return "" if "graph" in text.lower() or "captur" in text.lower() else f"refused, but says {text[:120]}"


def dry_steps():
    while True:
        time.sleep(0.002)
        yield 0.0


def child(args):
    """Commands on standard input: "run N" times N steps, "end" gives the figures. Answers are lines of JSON."""
    def say(**what):
        print("ANSWER " + json.dumps(what), flush=True)

    torch = memfit = None
    if not args.dry_run:
        import torch
        if args.child.startswith("expandable"):
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        if args.child.startswith("memfit"):
            memfit = use_memfit(torch, args.child.partition("@")[2] or args.library, hooks=args.child != "memfit-without")
    if args.part in ("orders", "graphs"):
        if args.dry_run:
            say(result={"dry run": 0 if args.part == "orders" else ""})
        elif args.part == "orders":
            say(result=order_trials(torch, args.trials))
        elif args.child == "memfit-without":
            say(result={"a capture that was not announced is refused": refused_capture(torch)})
        else:
            say(result=graph_trials(torch))
        return
    steps = dry_steps() if args.dry_run else WORKLOADS[args.part][0](torch)
    sync = (lambda: None) if args.dry_run else torch.cuda.synchronize
    sync()  # the context is there
    say(ready=True)
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "end":
            break
        sync()
        before = figures(torch, memfit) if memfit else {}
        start = time.perf_counter()
        for _ in range(int(words[1])):
            loss = next(steps)
        sync()
        took = (time.perf_counter() - start) * 1e3 / int(words[1])
        after = figures(torch, memfit) if memfit else {}
        say(ms=took, spent={k: after[k] - before[k] for k in SPENT if k in after}, **{k: after[k] for k in ("live", "reserved", "held") if k in after})
    say(loss=float(loss), **(dict(live=100, reserved=102) if args.dry_run else figures(torch, memfit)))
    sys.stdout.flush()
    os._exit(0)  # workers and compilers may take their time


def run_child(args):
    """What a forked process does; it does not come back."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent
        if args.cores:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-args.cores:])
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        child(args)
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# ---- the parent ------------------------------------------------------------------------------------------------------------
class Process:
    """A child, its answers in a queue, a deadline for each. It is forked when PyTorch is loaded, before anything touches the card:
    loading takes ten seconds and more on a busy host."""

    def __init__(self, args, part, allocator):
        self.name, self.answers, self.last, self.there, self.warm = allocator, Queue(), [], None, None
        told, tell = os.pipe()
        readable, writable = os.pipe()
        errors, complain = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            for ours, standard in ((told, 0), (writable, 1), (complain, 2)):
                os.dup2(ours, standard)
            for theirs in (tell, readable, errors):
                os.close(theirs)
            run_child(argparse.Namespace(**{**vars(args), "child": allocator, "part": part}))
        for theirs in (told, writable, complain):
            os.close(theirs)
        self.tell, self.pipe, self.errors = os.fdopen(tell, "w"), os.fdopen(readable), os.fdopen(errors, errors="replace")
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=self.read_errors, daemon=True).start()

    def read(self):
        for line in self.pipe:
            if line.startswith("ANSWER "):
                self.answers.put(json.loads(line[7:]))
        self.answers.put(None)

    def read_errors(self):
        for line in self.errors:
            self.last = (self.last + [line.rstrip()])[-12:]

    def warm_up(self, steps, deadline):
        """Tells it to, once it is there."""
        self.there = self.answer(deadline)
        if self.there:
            self.say(f"run {steps}")

    def say(self, text):
        try:
            self.tell.write(text + "\n")
            self.tell.flush()
        except OSError:
            pass

    def answer(self, deadline):
        """None: it ended or took too long; the reason is in self.last."""
        try:
            got = self.answers.get(timeout=max(0.1, deadline - time.monotonic()))
        except Empty:
            self.last.append("took too long")
            got = None
        if got is None:
            time.sleep(0.2)
            self.stop()
        return got

    def stop(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def run_checks(args, part, deadline):
    """{allocator: result or None}, one after the other."""
    out = {}
    for allocator in ("default", "memfit") + (("memfit-without",) if part == "graphs" else ()):
        p = Process(args, part, allocator)
        got = p.answer(deadline)
        out[allocator] = got["result"] if got else None
        if got is None:
            print(f"{part}, {allocator}: failed\n  " + "\n  ".join(p.last), file=sys.stderr)
        p.stop()
    return out


def start(args, part):
    return [Process(args, part, allocator) for allocator in args.allocators.split(",")]


def warm_up(processes, deadline):
    """All at once: (process, steps), but for those that were."""
    processes = [(p, steps) for p, steps in processes if not p.there]
    for p, steps in processes:
        p.warm_up(steps, deadline)
    for p, _ in processes:
        p.warm = p.there and p.answer(deadline)


def run_turns(args, part, warm, steps, rounds, deadline, begun=None):
    """{allocator: figures or None}. All start at once, the peers are warmed up together, then memfit alone on the card, then all are timed in turns,
    no round beginning later than args.turns seconds after the first."""
    processes, times, spent, out = [], {}, {}, {}
    begun = begun or start(args, part)
    ours = [p for p in begun if p.name.startswith("memfit")]
    for group in ([p for p in begun if p not in ours], *([p] for p in ours)):
        warm_up([(p, warm) for p in group], deadline)
        for p in group:
            if not p.warm:
                print(f"{part}, {p.name}: failed\n  " + "\n  ".join(p.last), file=sys.stderr, flush=True)
                out[p.name] = None
                p.stop()
                continue
            processes.append(p)
            times[p.name], spent[p.name] = [], []
    dice, last, longest, began = random.Random(1), time.monotonic() + args.turns, 0, time.monotonic()
    for done in range(rounds):
        now = time.monotonic()
        longest, began = max(longest, now - began), now
        if done and (now > last or now + 1.1 * longest > deadline - 5):  # who is cut in a round loses its figures
            break
        for p in dice.sample(processes, len(processes)):
            p.say(f"run {steps}")
            got = p.answer(deadline)
            if got:
                times[p.name].append(got["ms"])
                spent[p.name].append({"steps": steps, **got.pop("spent"), **got})  # with what it holds, and its peaks
            else:
                print(f"{part}, {p.name}: failed\n  " + "\n  ".join(p.last), file=sys.stderr, flush=True)
                processes.remove(p)
                out[p.name] = None
    for p in sorted(processes, key=begun.index):
        p.say("end")
        got = p.answer(deadline + 10)
        if got and times[p.name]:
            ordered = sorted(times[p.name])
            got["ms"], got["times_ms"] = ordered[len(ordered) // 2], times[p.name]
            got["spent"] = spent[p.name]
        out[p.name] = got
        p.stop()
    return out


def show_checks(part, results):
    """True: all is right."""
    names = []
    for r in results.values():
        names += [n for n in (r or {}) if n not in names]
    print(f"\n{'wrong reads' if part == 'orders' else 'CUDA graphs':44}" + "".join(f"{a:>16}" for a in results))
    good = all(r is not None for r in results.values())
    for name in names:
        cells = ""
        for allocator, r in results.items():
            value = "failed" if r is None else r.get(name, "-") if part == "orders" else ("ok" if r[name] == "" else "WRONG") if name in r else "-"
            cells += f"{value:>16}"
            if r and name in r and name != "not recorded" and r[name]:
                good = good and not allocator.startswith("memfit")
                if part == "graphs":
                    print(f"  {allocator}: {name}: {r[name]}", file=sys.stderr)
        print(f"{name:44}{cells}")
    return good


def in_turns(r):
    """What the pool did in the timed turns, and what part of their time that was."""
    turns, whole = r.get("spent") or [], sum(t * s["steps"] for t, s in zip(r["times_ms"], r.get("spent") or []))
    if not turns or "moving_us" not in turns[0]:
        return ""
    halves = [sum(t["moving_us"] for t in part) / 1e3 for part in (turns[:len(turns) // 2], turns[len(turns) // 2:])]
    return (f"    in {len(turns)} turns, {whole:.0f} ms: {sum(t['remapped_pages'] for t in turns)} pages moved, {halves[0]:.1f} and {halves[1]:.1f} ms in their halves"
            f" ({100 * sum(halves) / whole:.2f} %), {sum(t['created_pages'] for t in turns)} pages made, {sum(t['stream_waits'] for t in turns)} waits")


def show_turns(part, results):
    """Times are beside the better of the peers; those of sums count every turn, the medians' none that was disturbed."""
    print(f"\n{part:16}{'ms/step':>12}{'of medians':>12}{'of sums':>10}{'of pairs':>10}{'their mean':>19}{'reserved/live':>15}{'live MiB':>10}{'remaps':>8}{'pages':>8}{'moving ms':>11}{'waits':>7}")
    timed = {a: r for a, r in results.items() if r and r.get("times_ms")}
    best = min((r for a, r in timed.items() if not a.startswith("memfit") and "#" not in a), key=lambda r: sum(r["times_ms"]), default=None)
    for allocator in results:
        r = timed.get(allocator)
        if not r:
            print(f"{allocator:16}{'failed':>12}")
            continue
        pairs = sorted(a / b for a, b in zip(r["times_ms"], (best or r)["times_ms"]))
        mean = sum(pairs) / len(pairs)
        error = (sum((p - mean) ** 2 for p in pairs) / max(1, len(pairs) - 1) / len(pairs)) ** 0.5
        ratios = (r["ms"] / best["ms"], sum(r["times_ms"]) / sum(best["times_ms"]), pairs[len(pairs) // 2]) if best else (0, 0, 0)
        print(f"{os.path.basename(allocator):16}{r['ms']:12.2f}{ratios[0]:12.3f}{ratios[1]:10.3f}{ratios[2]:10.3f}{mean:>9.4f} +- {error:.4f}{r['reserved'] / max(1, r['live']):15.3f}{r['live'] / 2**20:10.0f}"
              f"{r.get('remaps', ''):>8}{r.get('remapped_pages', ''):>8}{r['moving_us'] / 1e3 if 'moving_us' in r else '':>11}{r.get('stream_waits', ''):>7}")
        if in_turns(r):
            print(in_turns(r))
    return len(timed) == len(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "libmemfit.so"))
    parser.add_argument("--seconds", type=float, default=230, help="for everything")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--part", default="orders,graphs,cnn,growing,turns,gpt2")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS), help="of the workloads; expandable#again: once more")
    parser.add_argument("--turns", type=float, default=20, help="seconds for the turns of a workload")
    parser.add_argument("--steps", type=int, default=0, help="in a turn, instead of what the workload has; as many in all. Where the host is slow for seconds, short turns share that")
    parser.add_argument("--ahead", action="store_true", help="the processes of all parts start before the first part")
    parser.add_argument("--cores", type=int, default=0, help="all processes run on the last so many, by turns: where steps wait for Python, one core is faster than another")
    parser.add_argument("--json")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    args.library = os.path.abspath(args.library)
    parts = args.part.split(",")
    WORKLOADS.update({p: (drawn_steps(p[6:]), 20, 10, 60) for p in parts if p.startswith("drawn:")})
    if any(p not in ("orders", "graphs", *WORKLOADS) for p in parts):
        parser.error(f"--part {args.part}: orders, graphs, {', '.join(WORKLOADS)}")
    if args.steps < 0:
        parser.error(f"--steps {args.steps}: a number of steps")
    if not args.dry_run and not os.path.exists(args.library):
        parser.error(f"--library {args.library}: no such file; make builds it")
    end, good, results = time.monotonic() + args.seconds, True, {}
    if not args.dry_run:
        import torch  # noqa: F401, once for all children
        if any(p.startswith("drawn:") or any(n.startswith("torchvision") for n in WORKLOADS[p][0].__code__.co_names) for p in parts if p in WORKLOADS):
            import torchvision  # noqa: F401
    begun = {part: start(args, part) for part in parts if part in WORKLOADS} if args.ahead else {}
    peers = [(p, WORKLOADS[part][1]) for part, processes in begun.items() for p in processes if not p.name.startswith("memfit")]
    warm_up(peers, time.monotonic() + 0.4 * args.seconds)
    for i, part in enumerate(parts):
        left = end - time.monotonic()
        deadline = time.monotonic() + (left / (len(parts) - i) if args.ahead else left)
        if part in ("orders", "graphs"):
            results[part] = run_checks(args, part, deadline)
            good = show_checks(part, results[part]) and good
        else:
            _, warm, steps, rounds = WORKLOADS[part]
            if args.steps:
                steps, rounds = args.steps, max(1, rounds * steps // args.steps)
            results[part] = run_turns(args, part, warm, steps, rounds, deadline, begun.get(part))
            good = show_turns(part, results[part]) and good
        sys.stdout.flush()
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(results, f, indent=1)
    print("\n" + ("all as it should be" if good else "SOMETHING IS WRONG: see above"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
