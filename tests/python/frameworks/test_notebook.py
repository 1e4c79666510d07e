"""A real notebook: a cell that dies holding 1 GiB is explained, and with release its memory comes back."""

import os
import unittest

import nbclient
import nbformat

CELLS = [
    "%load_ext memfit",
    "import os\ndef resident():\n    a = open('/proc/self/statm').read().split()\n    return (int(a[1]) - int(a[2])) * os.sysconf('SC_PAGE_SIZE')\nprint(resident())",
    "def step():\n    held = bytearray(b'x' * (1 << 30))\n    raise MemoryError('Unable to allocate 8.00 GiB for an array')\nstep()",
    "print(resident())",
    "%memfit release on",
    "step()",
    "print(resident())",
    "%%memfit\nkept = bytearray(b'x' * (32 << 20))",
    "%memfit doctor",
    "raise ValueError('no')",
]


def text_of(cell):
    out = []
    for o in cell.get("outputs", []):
        out.append(o.get("text", "") or o.get("data", {}).get("text/plain", ""))
    return "\n".join(out)


class Notebook(unittest.TestCase):
    def test_failed_cells(self):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
        nbclient.NotebookClient(book, timeout=120, allow_errors=True, kernel_name="python3").execute()
        before = int(text_of(book.cells[1]))
        self.assertIn("why this cell ran out of memory", text_of(book.cells[2]))
        self.assertIn("what to change", text_of(book.cells[2]))
        self.assertGreater(int(text_of(book.cells[3])), before + (1 << 29))  # kept: %debug needs it
        self.assertIn("came back", text_of(book.cells[5]))
        after = int(text_of(book.cells[6]))
        print("resident: %.1f MiB before, %.1f with the failed cell kept, %.1f after release" % (before / 2**20, int(text_of(book.cells[3])) / 2**20, after / 2**20))
        self.assertLess(after, before + 0.05 * (1 << 30))
        self.assertIn("MiB kept by the cell", text_of(book.cells[7]))
        self.assertIn("memory", text_of(book.cells[8]))
        self.assertNotIn("memfit", text_of(book.cells[9]).split("ValueError")[0])


if __name__ == "__main__":
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    unittest.main()
