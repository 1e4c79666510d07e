/* cmd_predict.c: memfit predict. */
#include "cli/train_cli.h"

int cli_predict(const cli_command *command, int argc, char **argv)
{
    return train_cli_forward(command, argc, argv, memfit_predict, "predicted");
}
