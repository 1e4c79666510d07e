/* foreign.h: model files of other programs, told by what is in them. */
#ifndef MF_MODEL_FOREIGN_H
#define MF_MODEL_FOREIGN_H

#include "memfit/base.h"

/* UNSUPPORTED, with what the file is and the next step, when it is one that memfit does not read; OK when it is none that
 * is known here. */
memfit_status mf_foreign_model(const unsigned char *data, uint64_t bytes, memfit_error *err);

#endif
