"""The package as people's programs meet it: other interpreters and folders, threads and forks, pickling, Control-C; and what every result shows of itself."""

import concurrent.futures
import copy
import html.parser
import inspect
import os
import pickle
import pydoc
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from unittest import mock

import memfit
from memfit import _growth

SOURCE = os.environ["MEMFIT_SOURCE"]
PROGRAM = os.environ["MEMFIT_PROGRAM"]
PACKAGE = os.path.join(SOURCE, "python")
CONV = os.path.join(SOURCE, "tests/fixtures/plan/conv_pool_1024.json")
CNN = os.path.join(SOURCE, "tests/fixtures/train/cnn.keras")
LOG = os.path.join(SOURCE, "tests/fixtures/oom-logs/torch-growing-graph.log")
PLAN = "import memfit; p = memfit.plan(%r, 8, card='t4'); print(p.batch, 'batch 8 ' in str(p))"


def python(words, code, **more):
    done = subprocess.run([sys.executable, *words, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False, **more)
    return done.stdout.strip() or done.stderr


def without(*names):
    return {k: v for k, v in os.environ.items() if k not in names}


class Interpreters(unittest.TestCase):
    def test_options(self):
        for words in (["-S"], ["-O"], ["-OO"], ["-B"], ["-s", "-E"], ["-I"], ["-I", "-S"], ["-X", "utf8=0"], ["-W", "error"], ["-X", "dev", "-W", "error"]):
            with self.subTest(words):
                code = "import sys, os; sys.path.insert(0, %r); os.environ['MEMFIT_PROGRAM'] = %r; " % (PACKAGE, PROGRAM)
                self.assertEqual(python(words, code + PLAN % CONV), "8 True")

    def test_a_locale_without_letters(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "größe 模型.json")
            shutil.copy(CONV, path)
            for env in ({"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C.UTF-8"}):
                self.assertEqual(python([], PLAN % path, env=dict(without("LC_ALL", "LANG"), **env)), "8 True")

    def test_from_an_archive(self):
        """zipimport: there is no program in it, so PATH's is used; without one that is said."""
        with tempfile.TemporaryDirectory() as folder:
            archive = os.path.join(folder, "memfit.zip")
            with zipfile.ZipFile(archive, "w") as z:
                for name in os.listdir(os.path.join(PACKAGE, "memfit")):
                    if name.endswith(".py"):
                        z.write(os.path.join(PACKAGE, "memfit", name), "memfit/" + name)
            env = dict(without("MEMFIT_PROGRAM", "MEMFIT_LIBRARY"), PYTHONPATH=archive)
            self.assertEqual(python([], PLAN % CONV, env=dict(env, PATH=os.path.dirname(PROGRAM))), "8 True")
            said = python([], "import memfit\ntry: memfit.doctor()\nexcept memfit.ProgramNotFoundError as e: print(e.message)", env=dict(env, PATH="/nowhere"))
            self.assertEqual(said, "the program memfit is not in this package and not on PATH")

    def test_a_package_that_cannot_be_written(self):
        """Spaces and letters in its path, no place for compiled files."""
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, "mein ordner ü")
            shutil.copytree(os.path.join(PACKAGE, "memfit"), os.path.join(place, "memfit"), ignore=shutil.ignore_patterns("__pycache__"))
            os.makedirs(os.path.join(place, "memfit", "_bin"))
            shutil.copy(PROGRAM, os.path.join(place, "memfit", "_bin", "memfit"))
            for at, _, _ in os.walk(place, topdown=False):
                os.chmod(at, 0o555)
            try:
                env = dict(without("MEMFIT_PROGRAM", "MEMFIT_LIBRARY", "PYTHONDONTWRITEBYTECODE"), PYTHONPATH=place, PATH="/nowhere")
                self.assertEqual(python([], PLAN % CONV + "; print(memfit.program())", env=env).split("\n"), ["8 True", os.path.join(place, "memfit/_bin/memfit")])
            finally:
                for at, _, _ in os.walk(place):
                    os.chmod(at, 0o755)

    def test_names_that_look_like_options(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(CONV, os.path.join(folder, "-b.json"))
            shutil.copy(LOG, os.path.join(folder, "--help"))
            code = "import memfit; print(memfit.plan('-b.json', 8).batch, memfit.explain_log('--help').cause)"
            self.assertEqual(python([], code, cwd=folder), "8 growing")


class Folders(unittest.TestCase):
    def test_the_folder_changes(self):
        """The text is asked for when it is first shown: from where the question was asked."""
        code = "import os, memfit; p = memfit.plan('m.json', 8, card='t4'); os.chdir('/'); print('batch 8 ' in str(p))"
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(CONV, os.path.join(folder, "m.json"))
            self.assertEqual(python([], code, cwd=folder), "True")

    def test_the_folder_is_gone(self):
        code = "import os, memfit; os.mkdir('here'); os.chdir('here'); os.rmdir('../here'); p = memfit.plan(%r, 8, card='t4'); print('batch 8 ' in str(p), memfit.doctor().verdict != '')" % CONV
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(python([], code, cwd=folder), "True True")

    def test_the_model_is_gone(self):
        """What was answered stays; a debugger that shows it gets no exception."""
        with tempfile.TemporaryDirectory() as folder:
            path = shutil.copy(CONV, os.path.join(folder, "m.json"))
            p = memfit.plan(path, 8)
            os.remove(path)
            self.assertIn("its text cannot be had any more: ", repr(p))
            self.assertIn("'batch': 8", str(p))
            self.assertEqual(p.batch, 8)

    def test_a_page_is_whole_or_as_before(self):
        p = memfit.plan(CONV, 8, card="t4")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "p.html")
            p.page(path)
            with open(path, encoding="utf-8") as f:
                first = f.read()
            with mock.patch("os.replace", side_effect=OSError(28, "No space left on device")), self.assertRaises(OSError):
                memfit.plan(CONV, 16, card="t4").page(path)
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), first)
            self.assertEqual(os.listdir(folder), ["p.html"])
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o666 & ~umask())
            with open(os.path.join(folder, "mine.html"), "w", encoding="utf-8") as f:
                f.write("words of my own")
            with self.assertRaises(memfit.InputError):
                p.page(os.path.join(folder, "mine.html"))


def umask():
    now = os.umask(0o077)
    os.umask(now)
    return now


class Colours(unittest.TestCase):
    def test_none_where_everything_is_asked_for_them(self):
        """A notebook sets these for every program it starts. What memfit reads and shows is text, and errors are the same words."""
        code = "import memfit; p = memfit.plan(%r, 8, card='t4'); print(p); print(memfit.doctor(), memfit.explain_log(%r))\ntry: memfit.plan('/nowhere.keras')\nexcept memfit.InputError as e: print(e)\ntry: memfit.report('/nowhere.csv')\nexcept memfit.InputError as e: print(e)"
        plain = python([], code % (CONV, LOG), env=without("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR"))
        asked = python([], code % (CONV, LOG), env=dict(without("NO_COLOR"), FORCE_COLOR="1", CLICOLOR="1", CLICOLOR_FORCE="1", TERM="xterm-color"))
        self.assertNotIn("\x1b", asked)
        self.assertEqual([line for line in asked.split("\n") if " s" not in line], [line for line in plain.split("\n") if " s" not in line])
        self.assertIn("batch 8 ", asked)


class Together(unittest.TestCase):
    def test_threads(self):
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            batches = list(pool.map(lambda n: memfit.plan(CONV, n, card="t4").batch, range(1, 13)))
        self.assertEqual(batches, list(range(1, 13)))

    def test_asyncio(self):
        code = "import asyncio, memfit\nasync def main(): return await asyncio.gather(*(asyncio.to_thread(memfit.plan, %r, n) for n in (1, 2)))\nprint([p.batch for p in asyncio.run(main())])"
        self.assertEqual(python([], code % CONV), "[1, 2]")

    def test_forks_and_workers(self):
        for way in ("fork", "spawn"):
            code = "import multiprocessing as m, memfit\nif __name__ == '__main__':\n    memfit.program()\n    with m.get_context(%r).Pool(2) as pool: print([p.batch for p in pool.map(functools.partial(memfit.plan, %r), [3, 4])])"
            with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as f:
                f.write("import functools\n" + code % (way, CONV))
                f.flush()
                done = subprocess.run([sys.executable, f.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", check=False)
            self.assertEqual(done.stdout.strip(), "[3, 4]", done.stderr)


class Pickled(unittest.TestCase):
    def results(self):
        p = memfit.plan(CONV, 256, card="t4")
        yield p
        yield from p.suggestions
        yield p.in_framework
        yield memfit.doctor()
        yield memfit.explain_log(LOG)
        yield memfit.find_batch_size(CONV, card="t4")
        yield memfit.Limited(1 << 30, ["the driver's functions"], ["the rest"])
        yield _growth.Grown("history", 4, 1 << 20, True)
        yield memfit.TorchTrace("step.csv", 4, 1 << 20, {"activations": 1 << 20})

    def test_results(self):
        for one in self.results():
            for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
                self.assertIs(type(other), type(one))
                self.assertEqual(other, one)
                self.assertEqual(str(other), str(one))
                if hasattr(one, "_repr_html_"):
                    self.assertEqual(other._repr_html_(), one._repr_html_())

    def test_where_there_is_no_program(self):
        """The one who gets an answer need not have the program: its text comes along."""
        p = memfit.plan(CONV, 256, card="t4")
        code = "import pickle, sys; p = pickle.load(open(sys.argv[1], 'rb')); print(p.suggestions[0].code != ''); print(p)"
        with tempfile.NamedTemporaryFile() as f:
            pickle.dump(p, f)
            f.flush()
            done = subprocess.run([sys.executable, "-c", code, f.name], env=dict(os.environ, MEMFIT_PROGRAM="/nowhere"), stdout=subprocess.PIPE, encoding="utf-8", check=True)
        self.assertEqual(done.stdout.rstrip("\n"), "True\n" + str(p))

    def test_errors(self):
        for kind in (memfit.Error, memfit.RunError, memfit.UsageError, memfit.DoesNotFitError, memfit.UnsupportedError, memfit.InputError, memfit.ProgramNotFoundError, memfit.LateError):
            one = kind("it is short", "take less", "no-memory")
            other = pickle.loads(pickle.dumps(one))
            self.assertIs(type(other), kind)
            self.assertEqual((other.message, other.hint, other.code, str(other)), (one.message, one.hint, one.code, "it is short\n  take less"))


SLOW = """#!/bin/sh
echo $$ > "$SEEN"
ls "$TMPDIR" > "$SEEN.files"
exec sleep 60
"""


def gone(number):
    """Whether the process ends: it was killed, but its parent is gone, and whoever buries it then may take a while."""
    until = time.monotonic() + 30  # it sleeps for 60
    while time.monotonic() < until:
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


class ControlC(unittest.TestCase):
    def interrupted(self, code):
        """Runs code with a program that takes its time; Control-C reaches Python alone, as in a notebook."""
        with tempfile.TemporaryDirectory() as folder:
            program, seen, place = (os.path.join(folder, n) for n in ("memfit", "seen", "tmp"))
            os.mkdir(place)
            with open(program, "w", encoding="utf-8") as f:
                f.write(SLOW)
            os.chmod(program, 0o755)
            env = dict(os.environ, MEMFIT_PROGRAM=program, SEEN=seen, TMPDIR=place)
            child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True)
            until = time.monotonic() + 60
            while not (os.path.exists(seen + ".files") and os.path.getsize(seen + ".files")) and time.monotonic() < until:
                time.sleep(0.02)
            with open(seen, encoding="utf-8") as f:
                number = int(f.read())
            os.kill(child.pid, signal.SIGINT)
            out, err = child.communicate(timeout=60)
            self.assertTrue(gone(number), "the program is still there")
            with open(seen + ".files", encoding="utf-8") as f:
                self.assertIn("memfit-", f.read())  # there was something to take away
            self.assertEqual(os.listdir(place), [], "temporary files")
            self.assertIn("KeyboardInterrupt", err)
            return out

    def test_plan(self):
        code = """
import memfit
class Sequential:
    __module__, name, layers = "keras.fake", "m", ()
    def to_json(self): return "{}"
memfit.plan(Sequential())
"""
        self.interrupted(code)

    def test_fit(self):
        code = """
import tempfile
from memfit import _fit
with tempfile.TemporaryDirectory(prefix="memfit-"): _fit._run(["train"], [], True)
"""
        self.interrupted(code)

    def test_a_long_answer_beside_long_progress(self):
        """Both of a training's streams hold more than a pipe does."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "memfit")
            with open(program, "w", encoding="utf-8") as f:
                f.write("#!/usr/bin/env python3\nimport sys\nfor n in range(3):\n    sys.stdout.write(' ' * 300000); sys.stdout.flush(); sys.stderr.write('step\\n' * 40000); sys.stderr.flush()\nprint('{\"steps\": 7}')\n")
            os.chmod(program, 0o755)
            code = "from memfit import _fit; print(_fit._run(['train'], [], False)['steps'])"
            self.assertEqual(python([], code, env=dict(os.environ, MEMFIT_PROGRAM=program), timeout=120), "7")


class Shown(unittest.TestCase):
    def test_mapping(self):
        p = memfit.plan(CONV, 8, card="t4")
        self.assertEqual(dict(p), {k: p[k] for k in p.to_dict()})
        self.assertEqual((p.get("batch"), p.get("nothing", 3), "batch" in p, "nothing" in p, len(p)), (8, 3, True, False, len(p.to_dict())))
        self.assertEqual(sorted(p.breakdown.values()), sorted(p.to_dict()["breakdown"].values()))
        with self.assertRaises(AttributeError) as told:
            p.peek_bytes
        self.assertIn("there are: ", str(told.exception))
        with self.assertRaises(KeyError):
            p["peek_bytes"]

    def test_pages_in_a_notebook(self):
        class Balanced(html.parser.HTMLParser):
            VOID = {"br", "hr", "img", "input", "link", "meta", "rect", "line", "path", "circle", "polyline", "polygon", "use", "stop"}

            def __init__(self):
                super().__init__()
                self.open = []

            def handle_starttag(self, tag, attrs):
                if tag not in self.VOID:
                    self.open.append(tag)

            def handle_endtag(self, tag):
                if tag not in self.VOID:
                    assert self.open.pop() == tag, tag

        for answer in (memfit.plan(CONV, 8, card="t4"), memfit.plan(CNN, 8), memfit.doctor(), memfit.explain_log(LOG)):
            page = answer._repr_html_()
            reader = Balanced()
            reader.feed(page)
            self.assertEqual(reader.open, [])
            self.assertNotIn("<body", page)
            self.assertGreater(len(page), 40)

    def test_version(self):
        self.assertRegex(memfit.__version__, r"^\d+\.\d+\.\d+")
        self.assertIn(memfit.__version__, subprocess.run([PROGRAM, "--version"], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout)

    def test_help(self):
        """Everything public has words of its own, and types on every argument."""
        text = pydoc.plain(pydoc.render_doc(memfit))
        for name in memfit.__all__:
            value = getattr(memfit, name)
            if name.startswith("__"):
                continue
            self.assertIn(name, text)
            self.assertTrue((value.__doc__ or "").strip(), name)
            calls = [value] if inspect.isfunction(value) else [f for n, f in vars(value).items() if inspect.isfunction(f) and not n.startswith("_")] if inspect.isclass(value) else []
            for call in calls:
                call = inspect.unwrap(call)
                signature = inspect.signature(call)
                self.assertIsNot(signature.return_annotation, inspect.Signature.empty, "%s.%s" % (name, call.__name__))
                for parameter in list(signature.parameters.values())[inspect.isclass(value):]:
                    self.assertIsNot(parameter.annotation, inspect.Parameter.empty, "%s.%s(%s)" % (name, call.__name__, parameter.name))

    def test_import_brings_nothing(self):
        """What an import costs is what it loads: nothing beyond the package's two files, not even typing."""
        code = "import sys; before = set(sys.modules); import memfit; print(sorted(set(sys.modules) - before - {'__future__'}))"
        self.assertEqual(python(["-I", "-S"], "import sys; sys.path.insert(0, %r); " % PACKAGE + code), "['memfit', 'memfit.errors']")


if __name__ == "__main__":
    unittest.main()
