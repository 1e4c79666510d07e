/* cmd_explain.c: memfit explain. */
#include "cli/cli.h"

int cli_explain(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
