/* cmd_evaluate.c: memfit evaluate. */
#include "cli/train_cli.h"

int cli_evaluate(const cli_command *command, int argc, char **argv)
{
    return train_cli_forward(command, argc, argv, memfit_evaluate, "evaluated");
}
