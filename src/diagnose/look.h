/* look.h: doctor and ps with host memory from elsewhere (NULL: the C library), for tests in which it runs out. */
#ifndef MF_DIAGNOSE_LOOK_H
#define MF_DIAGNOSE_LOOK_H

#include "memfit/doctor.h"

memfit_status mf_cards_look(const memfit_host *host, memfit_cards *cards, memfit_error *err);
memfit_status mf_doctor_look(const memfit_host *host, const char *root, memfit_doctor *doctor, memfit_error *err);
memfit_status mf_doctor_compare(const memfit_host *host, const memfit_doctor *here, const char *path,
                                memfit_difference *list, size_t most, size_t *count, memfit_error *err);

#endif
