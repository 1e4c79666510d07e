/* cmd_pack.c: memfit pack. */
#include "cli/cli.h"

int cli_pack(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
