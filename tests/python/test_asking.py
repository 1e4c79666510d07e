"""memfit.plan, doctor, ps, explain_log and report against the program's own JSON, with the standard library alone."""

import json
import os
import subprocess
import sys
import tempfile
import types
import unittest

import memfit

SOURCE = os.environ["MEMFIT_SOURCE"]
PROGRAM = os.environ["MEMFIT_PROGRAM"]
CONV = os.path.join(SOURCE, "tests/fixtures/plan/conv_pool_1024.json")
CNN = os.path.join(SOURCE, "tests/fixtures/train/cnn.keras")
TIMES = {"plan_seconds"}


def told(*arguments):
    done = subprocess.run([PROGRAM, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(done.stdout)


def without_times(answer):
    return {k: v for k, v in answer.items() if k not in TIMES}


def of_a_live_model(answer):
    """What differs for a configuration whose weights exist: no input size that a Dense behind Flatten was not built for."""
    rest = without_times(answer)
    rest["suggestions"] = [s for s in answer["suggestions"] if not s["change"].startswith("input of")]
    rest["in_framework"] = dict(answer["in_framework"], max_input=None)
    return rest


class LiveModel:
    """What a Keras model offers, without Keras: its configuration and its layers."""

    __module__ = "keras.fake"
    layers = ()

    def __init__(self, text, name="conv_pool_1024"):
        self.text, self.name = text, name

    def to_json(self):
        return self.text


class Sequential(LiveModel):
    __module__ = "keras.fake"


class Plan(unittest.TestCase):
    def test_every_key_is_the_programs(self):
        p = memfit.plan(CONV, 256, card="rtx-3080")
        self.assertEqual(without_times(p.to_dict()), without_times(told("plan", CONV, "--batch-size", "256", "--for", "rtx-3080")))
        for key, value in p.to_dict().items():
            if not isinstance(value, (dict, list)):
                self.assertEqual(getattr(p, key), value)
        self.assertEqual(p.breakdown.fixed + p.arena_bytes, p.peak_bytes)
        self.assertEqual(p.layers[1].name, "conv2d")
        self.assertTrue(p.fits)
        self.assertFalse(p.as_asked.fits)

    def test_live_model(self):
        with open(CONV, encoding="utf-8") as f:
            live = Sequential(f.read())
        p = memfit.plan(live, 256, card="rtx-3080")
        alone = memfit.plan(CONV, 256, card="rtx-3080").to_dict()
        self.assertEqual(without_times(p.to_dict()), of_a_live_model(alone))
        self.assertNotEqual(without_times(alone), of_a_live_model(alone))
        with self.assertRaisesRegex(memfit.UsageError, "was built for"):
            memfit.plan(live, input_shape=(512, 512, 3), card="rtx-3080")

    def test_backend_of_a_live_model(self):
        with open(CONV, encoding="utf-8") as f:
            text = f.read()
        keras = types.ModuleType("keras")
        sys.modules["keras"] = keras
        try:
            for name, asked in (("tensorflow", []), ("torch", ["--runtime", "torch"]), ("jax", ["--runtime", "jax"])):
                keras.backend = types.SimpleNamespace(backend=lambda name=name: name)
                mine = memfit.plan(Sequential(text), 4, card="t4").to_dict()
                self.assertEqual(without_times(mine), of_a_live_model(told("plan", CONV, "--batch-size", "4", "--for", "t4", *asked)))
                self.assertEqual(mine["in_framework"]["runtime"], name)
        finally:
            del sys.modules["keras"]

    def test_a_live_model_has_no_path(self):
        with open(CONV, encoding="utf-8") as f:
            p = memfit.plan(Sequential(f.read()), card="t4")
        self.assertNotIn(tempfile.gettempdir() + "/memfit-", p._repr_html_() + str(p))

    def test_text_is_the_terminals(self):
        done = subprocess.run([PROGRAM, "plan", CONV, "--for", "t4"], stdout=subprocess.PIPE, check=False, encoding="utf-8")
        self.assertEqual(str(memfit.plan(CONV, card="t4")), done.stdout.rstrip("\n"))

    def test_page(self):
        p = memfit.plan(CONV, card="t4")
        part = p._repr_html_()
        self.assertIn("batch 32 ", part)
        self.assertIn("@scope", part)
        for word in ("<script", "http:", "https:", "<html", ":root"):
            self.assertNotIn(word, part)
        with tempfile.TemporaryDirectory() as folder:
            p.page(os.path.join(folder, "p.html"))
            p.page(os.path.join(folder, "p.html"))
            other = os.path.join(folder, "mine.txt")
            with open(other, "w", encoding="utf-8") as f:
                f.write("mine")
            with self.assertRaises(memfit.InputError):
                p.page(other)
            with open(other, encoding="utf-8") as f:
                self.assertEqual(f.read(), "mine")

    def test_does_not_fit_is_an_answer(self):
        p = memfit.plan(CONV, 256, card="rtx-3080", gradient_accumulation="off", recompute="off")
        self.assertFalse(p.fits)
        self.assertTrue(p.suggestions)

    def test_suggestions_are_code(self):
        p = memfit.plan(CONV, 256, card="rtx-3080")
        code = [s.code for s in p.suggestions]
        self.assertEqual(code[0], "memfit.fit(model, x, y, batch_size=256, gradient_accumulation=3)")
        lines = [s.line for s in p.in_framework.suggestions]
        self.assertTrue(any("gradient_accumulation_steps=" in line for line in lines), lines)
        self.assertTrue(any("mixed_bfloat16" in c for c in code))
        self.assertTrue(all(code), code)

    def test_several_cards(self):
        p = memfit.plan(CONV, card=["t4", "rtx-3080"])
        self.assertEqual(without_times(p.to_dict()).keys(), without_times(told("plan", CONV, "--for", "t4,rtx-3080")).keys())

    def test_nothing_stays(self):
        with tempfile.TemporaryDirectory() as folder, open(CONV, encoding="utf-8") as f:
            before, tempfile.tempdir = tempfile.tempdir, folder
            try:
                str(memfit.plan(Sequential(f.read())))
            finally:
                tempfile.tempdir = before
            self.assertEqual(os.listdir(folder), [])


class BadUse(unittest.TestCase):
    def refused(self, kind, words, *arguments, **options):
        with self.assertRaises(kind) as caught:
            memfit.plan(*arguments, **options)
        self.assertIsInstance(caught.exception, memfit.Error)
        self.assertIn(words, str(caught.exception))

    def test_messages_are_the_programs(self):
        self.refused(memfit.InputError, "No such file", "/nowhere/m.keras")
        self.refused(memfit.UsageError, "--batch-size 0", CONV, 0)
        self.refused(memfit.UsageError, "no-such-card", CONV, card="no-such-card")
        self.refused(memfit.UsageError, "80", CONV, memory=80)

    def test_true_is_no_number(self):
        for options in ({"batch_size": True}, {"batch_size": 8, "memory": True}):
            with self.assertRaisesRegex(memfit.UsageError, "True: it takes a value"):
                memfit.plan(CONV, **options)

    def test_what_is_no_model(self):
        self.refused(memfit.InputError, "neither a Keras model nor a path", object())
        self.refused(memfit.InputError, "torch_trace", [1, 2])

    def test_a_configuration_that_cannot_be_written(self):
        class Stubborn(Sequential):
            __module__ = "keras.fake"

            def to_json(self):
                raise NotImplementedError("Layer Mine must override get_config\nmore")

        self.refused(memfit.UnsupportedError, "Mine must override get_config", Stubborn(""))

    def test_a_configuration_that_is_nonsense(self):
        self.refused(memfit.InputError, "", Sequential("{"))

    def test_program_missing(self):
        for name in ("/nowhere/memfit", SOURCE):
            code = "import memfit\ntry: memfit.plan('x')\nexcept memfit.ProgramNotFoundError as e: print('said:', e)"
            env = dict(os.environ, MEMFIT_PROGRAM=name)
            done = subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, encoding="utf-8", check=True)
            self.assertIn("said:", done.stdout)
            self.assertIn(name, done.stdout)

    def test_no_such_attribute(self):
        with self.assertRaisesRegex(AttributeError, "peak_bytes"):
            memfit.plan(CONV, card="t4").peek_bytes


class Others(unittest.TestCase):
    def test_doctor(self):
        d = memfit.doctor()
        self.assertEqual(set(d.to_dict()), set(told("doctor")))
        self.assertIn(d.verdict.split()[0], str(d))

    def test_explain(self):
        path = os.path.join(SOURCE, "tests/fixtures/oom-logs/torch-other-process.log")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        for log in (path, text):
            e = memfit.explain_log(log)
            self.assertEqual(e.cause, "other-process")
            self.assertEqual(e.to_dict(), told("explain", path))
            self.assertIn("kill 456", str(e))
        self.assertEqual(memfit.explain_log(text.encode()).to_dict(), told("explain", path))  # of subprocess
        for line in ("CUDA error: out of memory", "torch.OutOfMemoryError: CUDA error: out of memory", b"CUDA error: out of memory"):
            self.assertEqual(memfit.explain_log(line).cause, "library")  # of str(e)
        for missing in ("/nowhere.log", "my run.log", "nowhere"):
            with self.assertRaises(memfit.InputError):
                memfit.explain_log(missing)
        with self.assertRaises(memfit.UsageError):
            memfit.explain_log("  \n")

    def test_report(self):
        traces = os.path.join(SOURCE, "tests", "fixtures", "traces")
        one = memfit.report(os.path.join(traces, "generated.csv"))
        self.assertEqual(one.peak_live_bytes, sum(owner.bytes for owner in one.owners))
        self.assertIn("at the peak", str(one))
        two = memfit.report(os.path.join(traces, "generated.csv"), os.path.join(traces, "snapshot-p4.pickle"))
        self.assertEqual(two.peak_difference_bytes, sum(change.bytes for change in two.differences))
        with self.assertRaises(memfit.InputError):
            memfit.report(os.path.join(SOURCE, "README.md"))

    def test_import_is_light(self):
        code = (
            "import sys; before = set(sys.modules); import memfit\n"
            "maps = open('/proc/self/maps').read()\n"
            "print([m for m in ('numpy', 'keras', 'torch', 'tensorflow', 'jax', 'IPython') if m in sys.modules])\n"
            "print([l for l in ('libdnnl', 'libgomp', 'libOpenCL', 'libcuda', 'libmemfit') if l in maps])\n"
            "print([m for m in sys.modules if m.split('.')[0] in ('socket', 'ssl', 'http', 'asyncio')])\n"
        )
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8", check=True)
        self.assertEqual(done.stdout.split("\n")[:3], ["[]", "[]", "[]"])

    def test_sums(self):
        """What PyTorch's allocator was asked for on an H200 by the gradient of a bias."""
        from memfit._trace import _sum_bytes

        self.assertEqual(_sum_bytes(12800, 512), 52428800)
        self.assertEqual(_sum_bytes(12800, 128), 13107200)
        for rows, columns in ((863, 2048), (0, 4), (5, 0), (1, 1), (100000, 1)):
            self.assertEqual(_sum_bytes(rows, columns), 0)

    def test_command(self):
        done = subprocess.run([sys.executable, "-m", "memfit", "--version"], stdout=subprocess.PIPE, encoding="utf-8", check=True)
        self.assertEqual(done.stdout, subprocess.check_output([PROGRAM, "--version"], encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
