/* plan_html.h: an answer as one page for the browser: no scripts, nothing fetched. */
#ifndef MF_ANSWER_PLAN_HTML_H
#define MF_ANSWER_PLAN_HTML_H

#include "answer/plan_text.h"

/* One page with a section for each answer; the host gives the memory for the timeline. */
memfit_status mf_answers_print_html(FILE *file, const memfit_host *host, uint32_t count, mf_answer *const *answers,
                                    const mf_answer_context *contexts, memfit_error *err);

#endif
