/* cmd_ps.c: memfit ps. */
#include "cli/cli.h"

int cli_ps(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
