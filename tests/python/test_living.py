"""explain, install, Watch, limit, find_batch_size and sizes, with the standard library alone."""

import concurrent.futures
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest
from unittest import mock

import memfit
from memfit import _explain, _growth, _limit, _measure  # noqa: F401 (_limit: as after memfit.limit)

SOURCE = os.environ["MEMFIT_SOURCE"]
LOGS = os.path.join(SOURCE, "tests/fixtures/oom-logs")
TORCH_TEXT = (
    "CUDA out of memory. Tried to allocate 64.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 10.36 GiB is free. "
    "Including non-PyTorch memory, this process has 129.43 GiB memory in use. Of the allocated memory 128.82 GiB is allocated "
    "by PyTorch, and 6.17 MiB is reserved by PyTorch but unallocated."
)


class OutOfMemoryError(RuntimeError):
    pass


def run(code, **more):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False, **more)


class Explain(unittest.TestCase):
    def test_an_error_that_passes(self):
        said = []
        with self.assertRaises(OutOfMemoryError):
            with memfit.explain(show=said.append) as e:
                raise OutOfMemoryError(TORCH_TEXT)
        self.assertEqual(e.answer.cause, "too-large")
        self.assertEqual(e.answer.framework, "pytorch")
        self.assertIn("what to change", said[0])

    def test_what_was_printed_counts(self):
        with open(os.path.join(LOGS, "torch-growing-graph.log"), encoding="utf-8") as f:
            log = f.read()
        printed, error = log.split("Traceback", 1)
        quiet = io.StringIO()
        keep, sys.stdout = sys.stdout, quiet
        try:
            with self.assertRaises(OutOfMemoryError):
                with memfit.explain(show=lambda text: None) as e:
                    print(printed)
                    raise OutOfMemoryError(error.strip().split("\n")[-1].split(": ", 1)[1])
        finally:
            sys.stdout = keep
        self.assertEqual(e.answer.cause, "growing")
        self.assertEqual(quiet.getvalue(), printed + "\n")

    def test_a_pool_in_pieces(self):
        """JAX's pool with room that refuses: asked once more; only a second refusal makes it fragmentation."""
        text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2.00GiB with allocator GPU_0_bfc on device 0. [executable_name='jit_broadcast_in_dim']"
        code = """
            import sys, types
            import memfit
            class JaxRuntimeError(RuntimeError): pass
            JaxRuntimeError.__module__ = "jax.errors"
            text, in_use, again = %r, %d, %r
            asked = []
            jax, bridge = types.ModuleType("jax"), types.ModuleType("jax._src.xla_bridge")
            bridge._backends = {"cuda": 1}
            device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 7 << 30, "bytes_in_use": in_use})
            def zeros(shape, dtype):
                asked.append(shape[0])
                if again: raise JaxRuntimeError(text)
            jax.local_devices, jax.block_until_ready, jax.numpy = (lambda: [device]), (lambda x: x), types.SimpleNamespace(zeros=zeros)
            sys.modules.update({"jax": jax, "jax._src.xla_bridge": bridge})
            try:
                with memfit.explain(show=lambda t: None) as e: raise JaxRuntimeError(text)
            except JaxRuntimeError: print(e.answer.cause, asked)
        """
        for in_use, again, want in ((4 << 30, True, "fragmentation [%d]" % (2 << 30)), (4 << 30, False, "limit [%d]" % (2 << 30)), (6 << 30, True, "limit []")):
            done = run(code % (text, in_use, again))
            self.assertEqual(done.stdout.strip(), want, done.stderr)

    def test_a_card_that_others_hold(self):
        """XLA says past Python that the driver refused its pool. Whose the memory is tells the card: other processes, or PyTorch in this one."""
        text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 40.00GiB with allocator GPU_0_bfc on device 0. [executable_name='jit_broadcast_in_dim']"
        code = """
            import os, sys, types
            import memfit
            from memfit import _diagnose
            class JaxRuntimeError(RuntimeError): pass
            JaxRuntimeError.__module__ = "jax.errors"
            G, N = 1 << 30, types.SimpleNamespace
            text, free, others, here, torch_held, pool, limit, visible = %r, %s
            asked = []
            device = N(platform="gpu", memory_stats=lambda: {"bytes_limit": limit * G, "bytes_in_use": 0, "pool_bytes": pool * G})
            def again(shape, dtype):
                asked.append(shape[0] >> 30)
                raise JaxRuntimeError(text)
            jax = N(local_devices=lambda: [device], block_until_ready=lambda x: x, numpy=N(zeros=again))
            sys.modules.update({"jax": jax, "jax._src.xla_bridge": N(_backends={"cuda": 1})})
            if torch_held:
                sys.modules["torch"] = N(cuda=N(is_available=lambda: True, is_initialized=lambda: True, memory_allocated=lambda: torch_held * G, device_count=lambda: 1,
                                                memory_reserved=lambda i=0: torch_held * G))
            told = {"gpus": [{"index": 0, "uuid": "GPU-a", "free_bytes": free * G}, {"index": 1, "uuid": "GPU-b", "free_bytes": 130 * G}],
                    "processes": [{"gpu": 0, "pid": os.getpid(), "bytes": here * G}, {"gpu": 0, "pid": 7, "bytes": others * G}, {"gpu": 0, "pid": 8, "bytes": None}]}
            _diagnose.ps = lambda: N(to_dict=lambda: told)
            if visible: os.environ["CUDA_VISIBLE_DEVICES"] = visible
            try:
                with memfit.explain(show=lambda t: None) as e: raise JaxRuntimeError(text)
            except JaxRuntimeError: print(e.answer.cause, asked)
        """
        for figures, want in (
            ("20, 110, 9, 0, 8, 104, ''", "other-process []"),
            ("20, 110, 9, 0, 8, 104, 'GPU-a'", "other-process []"),
            ("10, 0, 128, 120, 8, 104, ''", "other-framework []"),
            ("10, 60, 60, 50, 8, 104, ''", "other-process []"),
            ("130, 1, 9, 0, 8, 104, ''", "too-large [40]"),  # there is room: asked again
            ("20, 110, 9, 0, 8, 104, '1'", "too-large [40]"),  # held is another card
            ("20, 5, 9, 0, 8, 104, ''", "too-large [40]"),  # would not fit without the others either
            ("20, 110, 9, 0, 8, 39, ''", "limit []"),  # more than the pool may ever have
        ):
            done = run(code % (text, figures))
            self.assertEqual(done.stdout.strip(), want, figures + done.stderr)

    def test_a_part_of_the_card(self):
        """What memfit.limit refused counts: PyTorch sees a card of that size, and other processes beside it."""
        text = "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 3.78 GiB is free. Process 7 has 5.00 GiB memory in use."
        story = "memfit: refused 8.00 GiB of card 0 to process 9 (python3): of 8.00 GiB, 4.22 GiB were in use"
        for told, want in ((story, "limit"), (story.replace(" (python3)", ""), "limit"), ("", "other-process")):  # a process that memfit did not start has no name there
            with mock.patch("memfit._limit.refusals", lambda told=told: told), self.assertRaises(OutOfMemoryError):
                with memfit.explain(show=lambda t: None) as e:
                    raise OutOfMemoryError(text)
            self.assertEqual(e.answer.cause, want)

    def test_other_errors_pass_in_silence(self):
        said = []
        for error in (ValueError("no"), KeyboardInterrupt(), RuntimeError("shape mismatch")):
            out, err = sys.stdout, sys.stderr
            with self.assertRaises(type(error)):
                with memfit.explain(show=said.append) as e:
                    raise error
            self.assertIs(sys.stdout, out)
            self.assertIs(sys.stderr, err)
            self.assertIsNone(e.answer)
        self.assertEqual(said, [])

    def test_nothing_went_wrong(self):
        with memfit.explain() as e:
            pass
        self.assertIsNone(e.answer)

    def test_every_error_that_was_provoked_is_known(self):
        looked = 0
        for name in sorted(os.listdir(LOGS)):
            with open(os.path.join(LOGS, name), encoding="utf-8", errors="replace") as f:
                _, found, after = f.read().rpartition("Traceback (most recent call last)")
            if found:
                error = "\n".join(line for line in after.split("\n")[1:] if not line.startswith("  "))
                self.assertTrue(_explain.is_out_of_memory(RuntimeError(error)), name)
                looked += 1
        self.assertGreater(looked, 100)

    def test_the_cause_of_an_error_counts(self):
        try:
            try:
                raise MemoryError("Unable to allocate 8.00 GiB")
            except MemoryError as e:
                raise ValueError("could not load") from e
        except ValueError as e:
            self.assertTrue(_explain.is_out_of_memory(e))
        self.assertFalse(_explain.is_out_of_memory(None))

    def test_frames_let_go(self):
        size = 64 << 20

        def fails():
            held = bytearray(size)
            held[::4096] = b"x" * len(held[::4096])
            raise MemoryError("Unable to allocate 8.00 GiB for an array")

        kept = None
        try:
            fails()
        except MemoryError as e:
            kept = e
        self.assertEqual(len(kept.__traceback__.tb_next.tb_frame.f_locals["held"]), size)  # as a printer of variables looks
        back = _explain.release_frames(kept)
        self.assertGreater(back, size * 0.95)
        self.assertIsNotNone(kept.__traceback__)  # the lines are still there to be read

    def test_install(self):
        done = run("import memfit; memfit.install(); memfit.install()\nraise MemoryError('Unable to allocate 8.00 GiB for an array')")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Traceback", done.stderr)
        self.assertEqual(done.stderr.count("why this ran out of memory"), 1)
        done = run("import memfit; memfit.install()\nraise ValueError('no')")
        self.assertNotIn("memfit:", done.stderr)

    def test_install_in_a_thread(self):
        done = run(
            """
            import memfit, threading
            memfit.install()
            def work(): raise MemoryError('Unable to allocate 8.00 GiB for an array')
            t = threading.Thread(target=work); t.start(); t.join()
            """
        )
        self.assertEqual(done.returncode, 0)
        self.assertIn("why this ran out of memory", done.stderr)


class Kept:
    """An object that looks like an array to the one who weighs it."""

    dtype, shape = "uint8", (1,)

    def __init__(self, size):
        self.data = bytearray(b"x" * size)
        self.nbytes = size


class Watch(unittest.TestCase):
    def test_a_callback_of_what_is_loaded(self):
        """Lightning and Hugging Face ask for an instance of their own class, and call their own names; stood in for by their shapes."""
        code = """
            import sys, types
            class Callback:
                def setup(self, trainer, module, stage): pass
            class TrainerCallback: pass
            lightning, transformers = types.ModuleType("lightning"), types.ModuleType("transformers")
            lightning.pytorch = types.SimpleNamespace(callbacks=types.SimpleNamespace(Callback=Callback))
            transformers.TrainerCallback = TrainerCallback
            for name, module, base, calls in (
                ("lightning", lightning, Callback, [("setup", 3), ("on_fit_start", 2), ("on_train_batch_end", 5), ("on_train_batch_end", 5), ("on_train_epoch_end", 2), ("on_fit_end", 2)]),
                ("transformers", transformers, TrainerCallback, [("on_train_begin", 3), ("on_step_end", 3), ("on_step_end", 3), ("on_epoch_end", 3), ("on_train_end", 3)]),
            ):
                sys.modules[name] = module
                import memfit
                watch = memfit.Watch(bar=False)
                assert isinstance(watch, base) and isinstance(watch, memfit.Watch)
                for call, count in calls:
                    assert getattr(watch, call)(*[None] * count) is None  # Hugging Face takes what is returned for its control
                print(name, watch.steps, watch.epochs, watch.peak_bytes > 0)
                del sys.modules[name]
            print(type(memfit.Watch(bar=False)) is memfit.Watch)
        """
        done = run(code)
        self.assertEqual(done.stdout.split("\n")[:3], ["lightning 2 1 True", "transformers 2 1 True", "True"], done.stderr)

    def watch(self, **options):
        said = []
        watch = memfit.Watch(say=said.append, bar=False, **options)
        watch._place = None
        return watch, said

    def test_growth_is_named(self):
        history = []
        watch, said = self.watch(limit="64GiB")
        with watch:
            for _ in range(40):
                history.append(Kept(4 << 20))
                watch._next = 0
                watch.step()
        self.assertEqual(len(said), 1, said)
        self.assertIn("history", said[0])
        self.assertIn("at this rate", said[0])
        self.assertAlmostEqual(watch.growth_bytes_per_step() / (4 << 20), 1, delta=0.25)
        self.assertEqual(watch.growing[0].name.split()[0], "history")

    def test_growth_now_and_then(self):
        """A list that grows every thirtieth step is named too; growth that no container shows is told of without a name."""
        for kept, word in (([], "grows: kept"), (None, "grows by")):
            watch, said = self.watch(limit="64GiB")
            level = [1 << 30]
            watch._place, watch._limit = _measure.Place("this card", lambda: level[0], None), 4 << 30
            for step in range(1, 200):
                if step % 30 == 0 and kept is not None:
                    kept.append(Kept(1))
                level[0] += 4 << 20
                watch._next = 0
                watch.step()
            self.assertEqual(len(said), 1, said)
            self.assertIn(word, said[0])

    def test_a_beginning_is_no_growth(self):
        """What a framework takes in its first steps, in a few large pieces and many small ones, is not taken for a leak, and containers are not looked at."""
        watch, said = self.watch(limit="64GiB")
        level = [1 << 30]
        watch._place = _measure.Place("this process of a framework", lambda: level[0], None)
        for rise in (300, 200, 1, 80, 1, 1, 40, 1, 1, 20, 1, 1, 1, 1, 10, 1, 1, 1) + (0,) * 40:
            level[0] += rise << 16
            watch._next = 0
            watch.step()
        self.assertEqual((said, watch._searches), ([], 0))

    def test_what_looking_may_take(self):
        """Two looks at all containers are free. More of them only within a 400th of the time, or where memory is full soon."""
        watch, _ = self.watch()
        began = time.perf_counter()
        watch._first, watch.steps, watch._searched, watch._search = (began - 100, 0), 1000, 0.2, 0.1  # 100 s: 0.1 s a step
        self.assertTrue(watch._may_look(1e9))
        watch._searches = 2
        self.assertFalse(watch._may_look(1e9))
        self.assertFalse(watch._may_look(601))
        self.assertTrue(watch._may_look(590))
        watch._searches = 8
        self.assertFalse(watch._may_look(590))
        watch._first = (began - 121, 0)
        self.assertTrue(watch._may_look(1e9))

    def test_steady_is_silent(self):
        watch, said = self.watch(limit="64GiB")
        with watch:
            for _ in range(100):
                one = Kept(4 << 20)
                del one
                watch._next = 0
                watch.step()
            watch.epoch()
        self.assertEqual(said, [])
        self.assertEqual((watch.steps, watch.epochs), (100, 1))

    def test_full_is_said_once(self):
        watch, said = self.watch(limit=_explain.resident_bytes() + (64 << 20), warn=0.01)
        with watch:
            for _ in range(5):
                watch._next = 0
                watch.step()
        self.assertEqual(len(said), 1)
        self.assertIn("in use", said[0])

    def test_steps_from_many_threads(self):
        """Keras calls from a pool of threads: every step counts once, and a list that leaks is named all the same."""
        history = []
        watch, said = self.watch(limit="64GiB")
        with watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(40):
                history.append(Kept(4 << 20))
                watch._next = 0
                pool.submit(watch.step).result()
            for told in [pool.submit(watch.step) for _ in range(1000)]:
                told.result()
        self.assertEqual(watch.steps, 1040)
        self.assertEqual(len(said), 1, said)
        self.assertIn("history", said[0])
        self.assertIs(type(watch).async_safe, True)

    def test_no_framework_is_made_to_begin(self):
        """JAX takes three quarters of a card when it is asked for its devices, TensorFlow a context: one that is only imported is not asked."""
        asked = []
        jax = types.SimpleNamespace(local_devices=lambda: asked.append("jax") or [])
        tf = types.SimpleNamespace(config=types.SimpleNamespace(list_logical_devices=lambda kind: asked.append("tensorflow") or []))
        bridge, context = types.SimpleNamespace(_backends={}), types.SimpleNamespace(_context=None)
        modules = {"jax": jax, "jax._src.xla_bridge": bridge, "tensorflow": tf, "tensorflow.python.eager.context": context}
        with mock.patch.dict(sys.modules, modules):
            self.assertEqual(_measure.place().name, "this process")
            self.assertEqual(asked, [])
            context._context = types.SimpleNamespace(_initialized=False)
            _measure.place()
            self.assertEqual(asked, [])
            bridge._backends, context._context = {"cuda": 1}, types.SimpleNamespace(_initialized=True)
            _measure.place()
            self.assertEqual(asked, ["tensorflow", "jax"])

    def test_what_it_says_of_itself(self):
        watch, _ = self.watch(limit="64GiB")
        self.assertEqual(repr(watch), "Watch: 0 steps, 0 epochs")
        watch.step()
        self.assertRegex(repr(watch), r"^Watch: 1 steps, 0 epochs, [\d.]+ .iB of 64.00 GiB, peak [\d.]+ .iB$")
        self.assertRegex(watch.bar(4), r"^[█░]{4} [\d.]+ .iB of 64.00 GiB$")
        for options in ({"limit": "much"}, {"limit": 80}, {"warn": 2}, {"warn": 0}):
            with self.assertRaises(memfit.UsageError):
                memfit.Watch(**options)

    def test_trace_and_scalars(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "run.csv")
            watch, _ = self.watch(trace=trace, tensorboard=os.path.join(folder, "tb"))
            held = []
            with watch:
                for _ in range(4):
                    held.append(bytearray(b"x" * (2 << 20)))
                    watch._next = 0
                    watch.step()
                watch.epoch()
            done = subprocess.run([os.environ["MEMFIT_PROGRAM"], "replay", trace, "--json"], stdout=subprocess.PIPE, check=True, encoding="utf-8")
            self.assertIn('"failed": 0', done.stdout)
            events = os.listdir(os.path.join(folder, "tb"))
            self.assertEqual(len(events), 1)
            with open(os.path.join(folder, "tb", events[0]), "rb") as f:
                data = f.read()
            self.assertIn(b"memory/peak_bytes", data)
            with self.assertRaises(memfit.UsageError):
                memfit.Watch(trace=trace).begin()
            with watch:  # a second training with the same watch goes on in the same trace, and in another file of events
                held.append(bytearray(b"x" * (2 << 20)))
                watch._next = 0
                watch.step()
                watch.epoch()
            again = subprocess.run([os.environ["MEMFIT_PROGRAM"], "replay", trace, "--json"], stdout=subprocess.PIPE, check=True, encoding="utf-8")
            self.assertIn('"failed": 0', again.stdout)
            self.assertGreater(json.loads(again.stdout)["events"], json.loads(done.stdout)["events"])
            self.assertEqual(len(os.listdir(os.path.join(folder, "tb"))), 2)


class Growth(unittest.TestCase):
    def test_names(self):
        class Trainer:
            pass

        trainer = Trainer()
        trainer.outputs = []
        self.assertIn("outputs of Trainer", _growth.name_of(trainer.outputs))
        Trainer.all_of_them = []
        self.assertIn("all_of_them of Trainer", _growth.name_of(Trainer.all_of_them))
        before = _growth.look()
        trainer.outputs += [Kept(1000), Kept(1000)]
        found = _growth.grown(before)
        self.assertEqual((found[0].elements, found[0].bytes), (2, 2000))


class Sizes(unittest.TestCase):
    def test_as_the_program_reads_them(self):
        for text, size in (("6GiB", 6 << 30), ("1.5GB", 1500000000), ("512 MiB", 512 << 20), ("4G", 4 << 30), (1 << 30, 1 << 30)):
            self.assertEqual(_measure.size_bytes(text), size)
        self.assertEqual(_measure.size_bytes("50%", 1000), 500)
        for bad in ("80", 80, "six", "-1GiB", "50%", 0.8):
            with self.assertRaises(memfit.UsageError):
                _measure.size_bytes(bad)


class Limit(unittest.TestCase):
    def test_variables_for_what_comes_later(self):
        done = run(
            """
            import os, memfit
            told = memfit.limit("8GiB", total="80GiB")
            print(os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"], os.environ["PYTORCH_CUDA_ALLOC_CONF"])
            print(told)
            """
        )
        self.assertIn("0.1000 per_process_memory_fraction:0.1000", done.stdout, done.stderr)
        self.assertIn("not covered: the context", done.stdout)
        self.assertIn("TensorFlow", done.stdout)

    @unittest.skipUnless("FAKE_NVML_LIBRARY" in os.environ, "the fake NVML is named by the build's tests")
    def test_a_part_of_the_card(self):
        env = dict(os.environ, MEMFIT_LIB_NVML=os.environ["FAKE_NVML_LIBRARY"])
        done = run("import memfit\nt = memfit.limit('50%')\nprint(2 * t.bytes, memfit.doctor().gpus[0].total_bytes)", env=env)
        half, whole = done.stdout.split()
        self.assertEqual(half, whole)

    @unittest.skipUnless("FAKE_NVML_LIBRARY" in os.environ and "MINI_DRIVER_FOLDER" in os.environ, "the fake driver is named by the build's tests")
    def test_at_the_drivers_functions(self):
        env = dict(os.environ, MEMFIT_LIB_NVML=os.environ["FAKE_NVML_LIBRARY"], LD_LIBRARY_PATH=os.environ["MINI_DRIVER_FOLDER"])
        take = """
            import ctypes, memfit, os, subprocess, sys
            cu = ctypes.CDLL("libcuda.so.1")
            def take(n=64):
                p = ctypes.c_uint64(); n = 0
                while cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20)) == 0 and n < 200: n += 1
                return n
        """
        done = run(take + """
            t = memfit.limit("4GiB"); cu.cuInit(0); folder = os.path.dirname(os.environ["MEMFIT_GOVERN"]); print(take())
            memfit.limit("5GiB"); print(take(), memfit.doctor().gpus[0].total_bytes >> 30)
            child = "import ctypes; cu = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_uint64(); cu.cuInit(0); print(cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20)))"
            print(subprocess.check_output([sys.executable, "-c", child], text=True).strip()); print(folder); print(t)
            """, env=env)
        lines = done.stdout.split("\n")
        self.assertEqual(lines[:3], ["55", "16 8", "2"], done.stderr)  # 4 GiB less the context; a GiB more; nothing is left for a child
        self.assertFalse(os.path.exists(lines[3]), "the limit's files are left")
        self.assertIn("the driver's functions", done.stdout)
        done = run(take + """
            cu.cuInit(0)
            t = memfit.limit("4GiB"); print(take()); print(t, "MEMFIT_GOVERN" in os.environ)
            """, env=env)
        self.assertIn("200", done.stdout.split(), done.stderr)
        self.assertIn("the driver is in use already", done.stdout)
        self.assertIn("False", done.stdout)
        # What the driver has taken beyond the 576 MiB (as NVML shows it) is not there for others: 4096 less 1000 and one block that is there already.
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(os.environ["FAKE_NVML_LIBRARY"], os.path.join(folder, "libnvidia-ml.so.1"))
            done = run(take + """
            import time; os.environ["MEMFIT_GOVERN_TRACE"] = "%s/trace" % os.environ["LD_LIBRARY_PATH"].split(":")[0]
            os.environ["FAKE_NVML_PROCESSES"] = "0:%d:1064" % os.getpid()
            memfit.limit("4GiB"); cu.cuInit(0); p = ctypes.c_uint64(); cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20)); time.sleep(0.2)
            print(1 + take()); print(memfit.refusals())
            """, env=dict(env, LD_LIBRARY_PATH="%s:%s" % (folder, env["LD_LIBRARY_PATH"])))
            trace = next(os.path.join(folder, f) for f in os.listdir(folder) if f.startswith("trace."))
            self.assertIn("the driver's own beyond the context", "".join(o.name for o in memfit.report(trace).owners))
        self.assertEqual(done.stdout.split("\n")[0], str((4096 - 1000) // 64), done.stderr)
        self.assertIn("424.00 MiB  the driver's own beyond the context", done.stdout)
        # The story of a refusal: when asked for, and behind the traceback of a program that an error ends.
        done = run(take + """
            memfit.limit("4GiB"); cu.cuInit(0); print(repr(memfit.refusals())); take(); print(memfit.refusals()); raise RuntimeError("its own error")
            """, env=env)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout.startswith("''\n"), done.stdout)  # nothing is held yet
        for told in (done.stdout, done.stderr):
            for line in ("refused 64.00 MiB of card 0 to process", ": of 4.00 GiB, 4.00 GiB were in use", "cuMemAlloc, 55 blocks", "576.00 MiB  CUDA context"):
                self.assertIn(line, told)
        self.assertLess(done.stderr.index("its own error"), done.stderr.index("refused 64.00 MiB"))
        done = run(take + """
            memfit.limit("4GiB"); cu.cuInit(0); take(); sys.exit(3)
            """, env=env)
        self.assertEqual((done.returncode, done.stderr), (3, ""))
        done = run(take + """
            memfit.limit("4GiB"); cu.cuInit(0); p = ctypes.c_uint64(); cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30))
            if len(sys.argv) == 1: raise MemoryError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes.")
            """, env=env)
        self.assertIn("the limit of 4.00 GiB refused nothing; 3.56 GiB of card 0 were held", done.stderr)  # a pool of the framework's own was full
        self.assertIn("3.00 GiB  libffi.so.8: cuMemAlloc, 1 block", done.stderr)
        done = run(take + """
            memfit.limit("4GiB"); cu.cuInit(0); p = ctypes.c_uint64(); cu.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(3 << 30)); raise ValueError("another thing")
            """, env=env)
        self.assertNotIn("memfit:", done.stderr)  # it knows what it does

    def test_refused(self):
        for code, word in (
            ("memfit.limit('100GiB', total='80GiB')", "UsageError"),
            ("memfit.limit(80, total='80GiB')", "UsageError"),
            # TensorFlow as it is since 2.16: no tf.python; what it has begun is seen before PyTorch or a variable is told.
            ("import types, sys; N = types.SimpleNamespace; sys.modules['tensorflow'] = N(config=N(list_physical_devices=lambda kind: ['GPU:0'])); "
             "sys.modules['tensorflow.python.eager.context'] = N(_context=N(_initialized=True)); memfit.limit('8GiB', total='80GiB')", "LateError"),
            ("import types, sys; b = types.ModuleType('b'); b._backends = {'cuda': 1}; sys.modules['jax._src.xla_bridge'] = b; memfit.limit('8GiB', total='80GiB')", "LateError"),
        ):
            done = run("import memfit, os\ntry:\n    %s\nexcept memfit.Error as e: print(type(e).__name__, 'XLA_PYTHON_CLIENT_MEM_FRACTION' in os.environ)" % code)
            self.assertEqual(done.stdout.strip(), word + " False", done.stderr)


class BatchSize(unittest.TestCase):
    CNN = os.path.join(SOURCE, "tests/fixtures/train/cnn.keras")

    def test_confirmed_by_a_step_of_the_engine(self):
        found = memfit.find_batch_size(self.CNN, memory="24MiB", threads=2)
        self.assertGreater(found.batch_size, 1)
        self.assertLessEqual(found.measured_bytes, found.limit_bytes)
        self.assertEqual(found.limit_bytes, int((24 << 20) * 0.95))

    def test_for_a_card(self):
        found = memfit.find_batch_size(self.CNN, card="t4")
        larger = memfit.plan(self.CNN, found.batch_size + 1, card="t4", memory=str(found.limit_bytes))
        self.assertFalse(larger.as_asked.fits)
        self.assertIsNone(found.measured_bytes)

    def test_own_step(self):
        sizes = []

        def step(n):
            sizes.append(n)
            bytearray(b"x" * (n * 1000))

        found = memfit.find_batch_size(self.CNN, memory=str(_explain.resident_bytes() + (400 << 20)), step=step)
        self.assertLessEqual(found.measured_bytes, found.limit_bytes)
        self.assertEqual(sizes[-1], found.batch_size)
        self.assertLessEqual(len(sizes), 3)

    def test_nothing_fits(self):
        with self.assertRaises(memfit.DoesNotFitError):
            memfit.find_batch_size(self.CNN, memory="1MiB")


class Torch(unittest.TestCase):
    def test_without_torch(self):
        done = run(
            """
            import sys
            sys.modules["torch"] = None  # as if it were not installed
            import memfit
            for call in (memfit.torch.use, lambda: memfit.torch.use("sideways"), memfit.torch.statistics, lambda: memfit.torch_trace(lambda: None, "/tmp/never.csv")):
                try: call()
                except memfit.Error as e: print(type(e).__name__)
            """
        )
        self.assertEqual(done.stdout.split(), ["RunError", "UsageError", "UsageError", "RunError"], done.stderr)


if __name__ == "__main__":
    unittest.main()
