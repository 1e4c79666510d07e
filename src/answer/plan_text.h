/* plan_text.h: an answer for people and for programs. */
#ifndef MF_ANSWER_PLAN_TEXT_H
#define MF_ANSWER_PLAN_TEXT_H

#include "answer/answer.h"

#include <stdio.h>

/* What the text says about the question beside the answer. */
typedef struct mf_answer_context {
    const char *path;        /* of the model's file */
    const char *device;      /* "GeForce RTX 3080 10GB" */
    const char *basis;       /* "table", "queried", "measured" */
    unsigned margin_percent; /* of the fixed cost; 0: none stated */
    uint64_t memory_bytes;
    const mf_model *model;
} mf_answer_context;

/* Only the first lines: does it fit, and as asked? */
void mf_answer_print_verdict(FILE *file, const mf_answer *answer, const mf_answer_context *context);
void mf_answer_print(FILE *file, const mf_answer *answer, const mf_answer_context *context, bool detail);
void mf_answer_print_json(FILE *file, const mf_answer *answer, const mf_answer_context *context);
/* Several cards side by side, and what differs. */
void mf_answers_compare(FILE *file, uint32_t count, mf_answer *const *answers, const mf_answer_context *contexts);
/* One object: the first card's keys as mf_answer_print_json writes them, and "cards", a list of all. */
void mf_answers_print_json(FILE *file, uint32_t count, mf_answer *const *answers, const mf_answer_context *contexts);

#endif
