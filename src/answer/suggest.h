/* suggest.h: changes that would help, each tried as a packed plan. */
#ifndef MF_ANSWER_SUGGEST_H
#define MF_ANSWER_SUGGEST_H

#include "answer/answer.h"
#include "plan/fit/fit.h"

memfit_status mf_suggest(mf_answer *answer, mf_fitter *fitter, const mf_question *question, memfit_error *err);

#endif
