/* cmd_evaluate.c: memfit evaluate. */
#include "cli/cli.h"

int cli_evaluate(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
