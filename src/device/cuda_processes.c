#include "device/cuda_processes.h"

#include "base/os.h"

#include <stdio.h>

static size_t list_all(const mf_card_processes *p, mf_nvml_process *list)
{
    size_t count = 0;
    if (!p->nvml || mf_nvml_processes(p->nvml, p->index, list, MF_CARD_PROCESSES, &count, NULL))
        return 0;
    return count < MF_CARD_PROCESSES ? count : MF_CARD_PROCESSES;
}

void mf_card_processes_begin(mf_card_processes *p, const memfit_host *host, const char *uuid)
{
    mf_nvml_process list[MF_CARD_PROCESSES];
    *p = (mf_card_processes){0};
    if (!uuid[0] || mf_nvml_open(host, mf_finder_default(), &p->nvml, NULL))
        return;
    if (mf_nvml_card_by_uuid(p->nvml, uuid, &p->index, NULL)) {
        p->unlisted = true;
        mf_nvml_close(p->nvml);
        p->nvml = NULL;
        return;
    }
    p->before_count = list_all(p, list);
    for (size_t i = 0; i < p->before_count; i++)
        p->before[i] = list[i].pid;
}

void mf_card_processes_end(mf_card_processes *p)
{
    mf_nvml_close(p->nvml);
    p->nvml = NULL;
}

static bool was_there(const mf_card_processes *p, unsigned pid)
{
    for (size_t i = 0; i < p->before_count; i++)
        if (p->before[i] == pid)
            return true;
    return false;
}

/* Which of them we are; 0: it cannot be told. */
static unsigned find_self(const mf_card_processes *p, const mf_nvml_process *list, size_t count)
{
    unsigned mine = (unsigned)mf_os_process(), came = 0, newcomers = 0, compute = 0, only = 0;
    for (size_t i = 0; i < count; i++) {
        if (list[i].pid == mine)
            return mine;
        if (list[i].graphics)
            continue;
        compute++;
        only = list[i].pid;
        if (!was_there(p, list[i].pid)) {
            newcomers++;
            came = list[i].pid;
        }
    }
    return newcomers == 1 ? came : compute == 1 ? only : 0;
}

uint64_t mf_card_processes_own(mf_card_processes *p)
{
    mf_nvml_process list[MF_CARD_PROCESSES];
    size_t count = list_all(p, list);
    if (!p->self)
        p->self = find_self(p, list, count);
    for (size_t i = 0; i < count; i++)
        if (p->self && list[i].pid == p->self && list[i].bytes_known)
            return list[i].bytes;
    return 0;
}

size_t mf_card_processes_others(mf_card_processes *p, char (*text)[128], uint64_t *bytes, size_t most)
{
    mf_nvml_process list[MF_CARD_PROCESSES];
    size_t count = list_all(p, list), out = 0;
    unsigned self = p->self ? p->self : (unsigned)mf_os_process();
    for (;;) { /* by selection: there are few */
        size_t best = count;
        for (size_t i = 0; i < count; i++)
            if (list[i].pid != self && list[i].pid && (best == count || list[i].bytes > list[best].bytes))
                best = i;
        if (best == count || out == most)
            return out;
        snprintf(text[out], 128, "%.80s (pid %u)", list[best].name[0] ? list[best].name : "a process", list[best].pid);
        bytes[out++] = list[best].bytes;
        list[best].pid = 0;
    }
}
