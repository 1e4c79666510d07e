/* cmd_train.c: memfit train. */
#include "cli/cli.h"

int cli_train(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
