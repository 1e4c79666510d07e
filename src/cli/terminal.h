/* terminal.h: what people see: lines as wide as their terminal, and a little colour. */
#ifndef MF_CLI_TERMINAL_H
#define MF_CLI_TERMINAL_H

#include <stdbool.h>

/* For main, before anything is printed: from here on what is printed to standard output (unless it is JSON) and to
 * standard error is broken between words at the terminal's width, and verdicts are coloured there. Written to a file or
 * a pipe, text is left as it is unless COLUMNS says how wide it may be. `colour` is --color's word, NULL when not given:
 * then NO_COLOR, CLICOLOR and CLICOLOR_FORCE are heard. */
void cli_terminal_begin(bool json, const char *colour);
/* The width of standard output: the terminal's, else what COLUMNS says; 0: any. */
unsigned cli_terminal_width(void);

#endif
