"""Called too late, with a framework of an unknown version, without a program, on a model that cannot be read: an exception of memfit's own with what to do,
and everything as it was. Frameworks are stood in for by what memfit touches of them."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest
import warnings
from unittest import mock

import memfit
from memfit import _versions

SOURCE = os.environ["MEMFIT_SOURCE"]
CONV = os.path.join(SOURCE, "tests/fixtures/plan/conv_pool_1024.json")
CNN = os.path.join(SOURCE, "tests/fixtures/train/cnn.keras")

# PyTorch as memfit.torch.use() finds it; `told` is what it was told.
TORCH = """
    import os, sys, types
    told = []
    class Allocator:
        def __init__(self, path, allocate, free): pass
        def allocator(self): return self
    for name in ("set_record_stream_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool", "set_reset_fn"):
        setattr(Allocator, name, lambda self, address, name=name: told.append(name))
    N = types.SimpleNamespace
    memory = N(CUDAPluggableAllocator=Allocator, change_current_allocator=lambda a: told.append("change"))
    cuda = N(is_initialized=lambda: False, is_available=lambda: True, memory=memory, MemPool=lambda a: told.append("pool"), init=lambda: told.append("init"), device_count=lambda: 1,
             memory_reserved=lambda: 0, get_device_properties=lambda d: N(total_memory=80 << 30), set_per_process_memory_fraction=lambda p, d: told.append("fraction"))
    torch = sys.modules["torch"] = types.ModuleType("torch")
    torch.__version__, torch.cuda, torch._C = "2.11.0+cu128", cuda, N(_cuda_beginAllocateToPool=lambda d, p: told.append("begin"))
    import memfit
    before = dict(os.environ)
    def refused(call):
        try: call()
        except memfit.Error as e: print(type(e).__name__, "|", str(e).replace(chr(10), " "), "|", told, os.environ == before, memfit.torch.in_use())
        else: print("not refused")
"""


def after(head, code):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    return done.stdout.strip() or done.stderr


class Late(unittest.TestCase):
    def test_use_after_the_first_tensor(self):
        for mode in ("pluggable", "mempool"):
            said = after(TORCH, "cuda.is_initialized = lambda: True; refused(lambda: memfit.torch.use(%r, memory='6GiB'))" % mode)
            self.assertRegex(said, r"^LateError \| PyTorch has used the card already.* right after import torch \| \[\] True None$")

    def test_limit_after_the_first_tensor(self):
        said = after(TORCH, "cuda.is_initialized = lambda: True; cuda.memory_reserved = lambda: 1 << 30; refused(lambda: memfit.limit('8GiB', total='80GiB'))")
        self.assertRegex(said, r"^LateError \| PyTorch already holds 1.00 GiB of the card.* \| \[\] True None$")

    def test_limit_when_another_has_begun(self):
        """PyTorch could still be told, JAX no more: neither is."""
        said = after(TORCH, "sys.modules['jax._src.xla_bridge'] = N(_backends={'cuda': 1}); refused(lambda: memfit.limit('8GiB', total='80GiB'))")
        self.assertRegex(said, r"^LateError \| JAX has begun.* \| \[\] True None$")


class Versions(unittest.TestCase):
    def test_too_old(self):
        said = after(TORCH, "torch.__version__ = '1.13.1'; refused(memfit.torch.use)")
        self.assertRegex(said, r"^UnsupportedError \| PyTorch 1.13.1 has no pluggable allocators .*2.1 or newer.* \| \[\] True None$")

    def test_an_allocator_that_is_not_known(self):
        """A later PyTorch that has given up one of the functions: refused before the first of them is called."""
        for mode in ("pluggable", "mempool"):
            said = after(TORCH, "torch.__version__ = '3.0.0'; del Allocator.set_reset_fn; refused(lambda: memfit.torch.use(%r, memory='6GiB', trace='t.csv'))" % mode)
            self.assertRegex(said, r"^UnsupportedError \| PyTorch 3.0.0 is not known to memfit: its pluggable allocator has no set_reset_fn .* \| \[\] True None$")

    def test_no_way_to_route_all_threads(self):
        said = after(TORCH, "torch._C = N(); refused(lambda: memfit.torch.use('mempool', memory='6GiB'))")
        self.assertRegex(said, r'^UnsupportedError \| PyTorch 2.11.0\+cu128 cannot route all threads to a pool .*mode="pluggable" \| \[\] True None$')

    def test_a_library_of_another_memfit(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as empty:
            said = after(TORCH, "os.environ['MEMFIT_LIBRARY'] = %r; before = dict(os.environ); refused(lambda: memfit.torch.use(memory='6GiB'))" % empty.name)
        self.assertRegex(said, r"^RunError \| .* cannot be used: .*MEMFIT_LIBRARY.* \| \[\] True None$")

    def test_a_limit_that_tensorflow_does_not_know(self):
        """PyTorch is loaded too, and is not told either."""
        said = after(TORCH, "sys.modules['tensorflow'] = N(__version__='1.15.5', config=N()); refused(lambda: memfit.limit('8GiB', total='80GiB'))")
        self.assertRegex(said, r"^UnsupportedError \| TensorFlow 1.15.5 is not known to memfit: .*memfit run.* \| \[\] True None$")

    def test_a_step_of_a_pytorch_that_is_not_known(self):
        """Recording uses PyTorch's insides: one without them is refused by its version, and no file is begun."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "step.csv")
            said = after(TORCH, "torch.__version__ = '9.0'; refused(lambda: memfit.torch_trace(lambda: None, %r))" % path)
            self.assertRegex(said, r"^UnsupportedError \| PyTorch 9.0 is not known to memfit: .*recorded with.* \| \[\] True None$")
            self.assertEqual(os.listdir(folder), [])

    def test_figures_of_another_version(self):
        """An estimate is of the version it names. Another one that is loaded is said, once; the answer is the same."""
        plain = memfit.plan(CONV, 8, card="t4")
        known = plain.in_framework.version
        self.assertRegex(known, r"^TensorFlow \d+\.\d+, Keras \d+\.\d+$")
        same = dict(zip(("tensorflow", "keras"), [part.split()[1] for part in known.split(", ")]))
        loaded = {name: types.SimpleNamespace(__version__=version + ".7rc1+local") for name, version in same.items()}
        with mock.patch.dict(sys.modules, loaded), mock.patch.object(_versions, "_told", set()), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            memfit.plan(CONV, 8, card="t4")
            self.assertEqual(said, [])
            loaded["keras"].__version__ = "9.0.0"
            first, second = memfit.plan(CONV, 8, card="t4"), memfit.plan(CONV, 16, card="t4")
        self.assertEqual([w.category for w in said], [memfit.VersionWarning])
        self.assertRegex(str(said[0].message), r"^Keras 9.0.0 is loaded; memfit knows the memory of Keras %s: " % same["keras"])
        self.assertEqual(said[0].filename, __file__)  # the line that asked, not memfit's own
        self.assertEqual(first.in_framework, plain.in_framework)
        self.assertEqual(second.batch, 16)

    def test_a_warning_that_is_made_an_error(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder), mock.patch.object(_versions, "_told", set()):
            with mock.patch.dict(sys.modules, {"keras": types.SimpleNamespace(__version__="9.0.0")}), warnings.catch_warnings():
                warnings.simplefilter("error", memfit.VersionWarning)
                with self.assertRaises(memfit.VersionWarning):
                    memfit.plan(CONV, 8, card="t4")
            self.assertEqual(os.listdir(folder), [])

    def test_numbers(self):
        for text, pair in (("2.11.0", (2, 11)), ("2.11.0a0+gitabc12", (2, 11)), ("3.15", (3, 15)), ("main", ()), ("", ())):
            self.assertEqual(_versions.number(text), pair)


class NoProgram(unittest.TestCase):
    CALLS = ("memfit.plan(%r)" % CONV, "memfit.doctor()", "memfit.ps()", "memfit.explain_log('a\\nb')", "memfit.report('t.csv')", "memfit.find_batch_size(%r, memory='1GiB')" % CONV, "memfit.program()")

    def ask(self, environment):
        code = "import memfit\nfor call in %r:\n    try: eval(call)\n    except memfit.Error as e: print(type(e).__name__, isinstance(e, FileNotFoundError), '|', e.message)" % (self.CALLS,)
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, TMPDIR=folder, **environment)
            env = {k: v for k, v in env.items() if v is not None}
            done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
            self.assertEqual((os.listdir(folder), done.stderr), ([], ""))
        return done.stdout.strip().split("\n")

    def test_named_but_not_there(self):
        lines = self.ask({"MEMFIT_PROGRAM": "/nowhere/memfit"})
        self.assertEqual(set(lines), {"ProgramNotFoundError True | MEMFIT_PROGRAM names /nowhere/memfit, which is no program"})
        self.assertEqual(len(lines), len(self.CALLS))

    def test_none_at_all(self):
        lines = self.ask({"MEMFIT_PROGRAM": None, "PATH": "/nowhere"})
        self.assertEqual(set(lines), {"ProgramNotFoundError True | the program memfit is not in this package and not on PATH"})

    def test_a_program_of_another_machine(self):
        """Executable, but nothing this system can run."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "memfit")
            with open(path, "wb") as f:
                f.write(b"\x7fELF\x02\x01\x01" + b"\0" * 60)
            os.chmod(path, 0o755)
            lines = self.ask({"MEMFIT_PROGRAM": path})
        self.assertEqual(len(lines), len(self.CALLS) - 1)  # where it is can be said
        for line in lines:
            self.assertRegex(line, r"^ProgramNotFoundError True \| %s cannot be run: " % path)

    def test_a_program_that_dies(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "memfit")
            with open(path, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\nkill -9 $$\n")
            os.chmod(path, 0o755)
            with mock.patch.dict(os.environ, MEMFIT_PROGRAM=path), self.assertRaises(memfit.Error) as told:
                memfit.plan(CONV)
        self.assertIsInstance(told.exception, memfit.RunError)
        self.assertRegex(str(told.exception), r"^memfit was ended by signal 9 \(SIGKILL\) and said nothing\n  .*memory is short")


class Arguments(unittest.TestCase):
    def test_what_cannot_be(self):
        """The program's words, with Python's own help; nothing is taken for something else in silence."""
        for options, words in (
            ({"batch_size": 0}, "--batch-size 0: must be at least 1\n  help(memfit.plan) lists the arguments"),
            ({"card": "nope"}, 'no card "nope" in the table'),
            ({"card": []}, "card is empty"),
            ({"card": ""}, "card is empty"),
            ({"memory": 8}, "a bare number is bytes"),
            ({"runtime": "theano"}, "must be memfit, tensorflow, torch or jax"),
        ):
            with self.assertRaises(memfit.UsageError) as told:
                memfit.plan(CONV, **options)
            self.assertIn(words, str(told.exception))
        with self.assertRaises(TypeError):
            memfit.plan(CONV, batchsize=8)


class Unreadable(unittest.TestCase):
    def refused(self, model, kind, word):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder):
            with self.assertRaises(kind) as told:
                memfit.plan(model)
            self.assertIn(word, str(told.exception))
            self.assertEqual(os.listdir(folder), [])

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            def made(name, data, mode=0o644):
                path = os.path.join(folder, name)
                with open(path, "wb") as f:
                    f.write(data)
                os.chmod(path, mode)
                return path

            with open(CNN, "rb") as f:
                whole = f.read()
            self.refused(os.path.join(folder, "none.keras"), memfit.InputError, "none.keras")
            self.refused(folder, memfit.InputError, folder)
            self.refused(made("empty.keras", b""), memfit.InputError, "empty.keras")
            self.refused(made("half.keras", whole[: len(whole) // 2]), memfit.InputError, "half.keras")
            self.refused(made("text.keras", b"these are words\n"), memfit.InputError, "text.keras")
            self.refused(made("cut.json", b'{"class_name": "Sequential", "config"'), memfit.InputError, "cut.json")
            self.refused(made("weights.pt", b"PK\x03\x04 a PyTorch file"), memfit.Error, "weights.pt")
            if os.geteuid():
                self.refused(made("mine.keras", whole, stat.S_IWUSR), memfit.InputError, "mine.keras")

    def test_things(self):
        for thing in (None, 3, b"model.keras", [CNN], object()):
            self.refused(thing, memfit.InputError, "neither a Keras model nor a path")

    def test_a_layer_of_ones_own(self):
        with open(CONV, encoding="utf-8") as f:
            config = json.load(f)
        config["config"]["layers"][1].update(class_name="Swirl", module="mine", registered_name="mine>Swirl")
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as f:
            json.dump(config, f)
            f.flush()
            self.refused(f.name, memfit.UnsupportedError, "Swirl")


if __name__ == "__main__":
    unittest.main()
