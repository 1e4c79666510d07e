/* oom_text.h: logs that are no plain text: packed by gzip, as rotated logs are, or UTF-16, as PowerShell's `>` writes. */
#ifndef MF_DIAGNOSE_OOM_TEXT_H
#define MF_DIAGNOSE_OOM_TEXT_H

#include "memfit/base.h"

typedef struct mf_oom_text {
    const void *data; /* what to read: the bytes given, or made ones */
    size_t bytes;
    const memfit_host *host;
    void *made; /* NULL: none */
    size_t made_bytes;
} mf_oom_text;

/* DAMAGED for a packed file that is cut off, damaged, or holds more than 256 MiB. */
memfit_status mf_oom_text_open(const memfit_host *host, const void *data, size_t bytes, mf_oom_text *text,
                               memfit_error *err);
void mf_oom_text_close(mf_oom_text *text);

#endif
