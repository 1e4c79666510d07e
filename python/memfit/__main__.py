"""`memfit` on the command line: this process becomes the program."""

from __future__ import annotations

import os
import sys

from ._program import program
from .errors import ProgramNotFoundError


def main() -> None:
    try:
        path = program()
        os.execv(path, ["memfit", *sys.argv[1:]])
    except ProgramNotFoundError as e:
        sys.exit("memfit: %s" % e)


if __name__ == "__main__":
    main()
