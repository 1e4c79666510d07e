/* cards_look.c: the cards and who is on them, through NVML. What a process is (its framework) is told from the
 * libraries it has mapped, where /proc lets us look. */
#include "base/error.h"
#include "base/os.h"
#include "device/nvml.h"
#include "diagnose/look.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static void tell_kind(memfit_gpu_process *p)
{
    char path[64], line[512];
    snprintf(p->kind, sizeof p->kind, "%s", p->graphics ? "display" : "cuda");
    snprintf(path, sizeof path, "/proc/%u/maps", p->pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    bool torch = false, jax = false, tensorflow = false, cupy = false;
    while (fgets(line, sizeof line, f)) {
        torch |= strstr(line, "libtorch_cuda") != NULL;
        jax |= strstr(line, "xla_cuda_plugin") || strstr(line, "jaxlib/");
        tensorflow |= strstr(line, "libtensorflow") != NULL;
        cupy |= strstr(line, "/cupy/") != NULL;
    }
    fclose(f);
    if (torch + jax + tensorflow > 1)
        snprintf(p->kind, sizeof p->kind, "several frameworks");
    else if (torch || jax || tensorflow || cupy)
        snprintf(p->kind, sizeof p->kind, "%s", torch ? "pytorch" : jax ? "jax" : tensorflow ? "tensorflow" : "cupy");
}

static uint64_t age_of(unsigned pid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%u", pid);
    time_t now = time(NULL);
    return stat(path, &st) == 0 && now > st.st_ctime ? (uint64_t)(now - st.st_ctime) : 0;
}

/*
 * What a card uses, by cause. NVML counts more as used than its processes sum to, and that is the driver's own for
 * their contexts. Measured on an H200 (driver 580.159.04): nothing without a context, 8.8, 14.4 and 20.0 MiB with one,
 * two and three, whatever they hold: 3.2 MiB and 5.6 MiB a context. Up to 4 MiB and 8 MiB a context is taken for that;
 * more than that is not explained.
 */
static void account(const memfit_gpus *cards, size_t at, memfit_gpu *card)
{
    const uint64_t mib = UINT64_C(1) << 20;
    for (size_t i = 0; i < cards->process_count; i++)
        if (cards->processes[i].card == at) {
            card->processes_bytes += cards->processes[i].bytes;
            card->contexts += !cards->processes[i].graphics;
        }
    /* A process may have grown between the two readings: then nothing is left over. */
    uint64_t rest = card->used_bytes > card->processes_bytes ? card->used_bytes - card->processes_bytes : 0,
             most = card->contexts ? 4 * mib + 8 * mib * card->contexts : 0;
    card->driver_bytes = rest <= most ? rest : 0;
    card->unexplained_bytes = rest - card->driver_bytes;
}

static void look_at_card(mf_nvml *nvml, unsigned index, memfit_gpus *cards)
{
    mf_nvml_card c;
    if (cards->card_count == MEMFIT_DOCTOR_CARDS || mf_nvml_card_get(nvml, index, &c, NULL))
        return;
    size_t at = cards->card_count++;
    memfit_gpu *out = &cards->cards[at];
    *out = (memfit_gpu){.index = index,
                        .total_bytes = c.total_bytes,
                        .used_bytes = c.used_bytes,
                        .free_bytes = c.free_bytes,
                        .reserved_bytes = c.reserved_bytes,
                        .memory_known = c.memory_known,
                        .capability = c.capability_major < 0 ? -1 : c.capability_major * 10 + c.capability_minor};
    snprintf(out->name, sizeof out->name, "%s", c.name);
    snprintf(out->uuid, sizeof out->uuid, "%s", c.uuid);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", c.bus_id);
    mf_nvml_process list[MEMFIT_DOCTOR_PROCESSES];
    size_t count = 0;
    if (mf_nvml_processes(nvml, index, list, MEMFIT_DOCTOR_PROCESSES, &count, NULL))
        count = 0;
    for (size_t i = 0; i < count && i < MEMFIT_DOCTOR_PROCESSES && cards->process_count < MEMFIT_DOCTOR_PROCESSES;
         i++) {
        memfit_gpu_process *p = &cards->processes[cards->process_count++];
        *p = (memfit_gpu_process){.card = (unsigned)at,
                                  .pid = list[i].pid,
                                  .bytes = list[i].bytes,
                                  .bytes_known = list[i].bytes_known,
                                  .graphics = list[i].graphics,
                                  .age_seconds = age_of(list[i].pid)};
        snprintf(p->name, sizeof p->name, "%s", list[i].name);
        tell_kind(p);
    }
    account(cards, at, out);
}

memfit_status mf_cards_look(const memfit_host *host, memfit_gpus *cards, memfit_error *err)
{
    mf_nvml *nvml;
    unsigned count = 0;
    char library[80];
    memset(cards, 0, sizeof *cards);
    memfit_status status = mf_nvml_open(host, mf_finder_default(), &nvml, err);
    if (status)
        return status;
    mf_nvml_versions(nvml, cards->driver, library, &cards->cuda_version);
    status = mf_nvml_card_count(nvml, &count, err);
    for (unsigned i = 0; !status && i < count; i++)
        look_at_card(nvml, i, cards);
    mf_nvml_close(nvml);
    return status;
}

memfit_status memfit_gpus_look(memfit_gpus *cards, memfit_error *err)
{
    return mf_cards_look(NULL, cards, err);
}
