/* diagnosis_text.h: a diagnosis (memfit/diagnosis.h) as `explain` and `run` show it. */
#ifndef MF_CLI_DIAGNOSIS_TEXT_H
#define MF_CLI_DIAGNOSIS_TEXT_H

#include "cli/cli.h"
#include "memfit/diagnosis.h"

/* The cause, the change, then the figures, which `quiet` leaves out. */
void cli_print_diagnosis(FILE *file, const memfit_diagnosis *d, bool quiet);
/* Its members of a JSON object that is open. */
void cli_put_diagnosis(mf_json_writer *w, const memfit_diagnosis *d);

#endif
