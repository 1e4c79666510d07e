#!/bin/bash
# test_terminal.sh: what people look at: every command's output at 80 and 120 columns, in a pipe with COLUMNS and on a
# terminal; colour where it is wanted and nowhere else; text in a plain pipe as it was written.
exec python3 "$MEMFIT_SOURCE/tests/e2e/terminal.py" "$MEMFIT" "$MEMFIT_SOURCE/tests/fixtures"
