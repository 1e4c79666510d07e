/* cmd_doctor.c: memfit doctor. */
#include "cli/cli.h"

int cli_doctor(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv, "It comes with a later version.");
}
