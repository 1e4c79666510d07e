/* look.h: doctor and ps with host memory from elsewhere (NULL: the C library), for tests in which it runs out; and
 * what the parts of doctor share. */
#ifndef MF_DIAGNOSE_LOOK_H
#define MF_DIAGNOSE_LOOK_H

#include "memfit/doctor.h"

memfit_status mf_cards_look(const memfit_host *host, memfit_gpus *cards, memfit_error *err);
memfit_status mf_doctor_look(const memfit_host *host, const char *root, memfit_doctor *doctor, memfit_error *err);
memfit_status mf_doctor_compare(const memfit_host *host, const memfit_doctor *here, const char *path,
                                memfit_difference *list, size_t most, size_t *count, memfit_error *err);

/* Adds a check; when there are too many the last one makes room. */
memfit_check *mf_doctor_check(memfit_doctor *d, const char *name, memfit_check_state state, const char *format, ...)
    MEMFIT_PRINTF(4, 5);
/* What a check wants, and the command or line that brings it about. */
void mf_doctor_mend(memfit_check *c, const char *wanted, const char *format, ...) MEMFIT_PRINTF(3, 4);
void mf_doctor_environment(memfit_doctor *d);
void mf_doctor_frameworks(const char *root, memfit_doctor *d);
/* A path as the examined machine would name it. */
const char *mf_doctor_below(const char *root, const char *path);
/* The beginning of a file below the root as text; false: it is not there, or empty. */
bool mf_doctor_read(const char *root, const char *path, char *text, size_t bytes);

#endif
