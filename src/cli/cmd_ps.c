/* cmd_ps.c: memfit ps: every process on every card, and what is used beside them, by cause: the lines sum to NVML's. */
#include "cli/cli.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"
#include "memfit/doctor.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void print_json(const memfit_gpus *c)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "driver", c->driver);
    mf_json_open(&w, "gpus", '[');
    for (size_t k = 0; k < c->card_count; k++) {
        const memfit_gpu *card = &c->cards[k];
        mf_json_open(&w, NULL, '{');
        mf_json_put_u64(&w, "index", card->index);
        mf_json_put_string(&w, "name", card->name);
        mf_json_put_string(&w, "uuid", card->uuid);
        mf_json_put_bool(&w, "memory_known", card->memory_known);
        mf_json_put_u64(&w, "total_bytes", card->total_bytes);
        mf_json_put_u64(&w, "used_bytes", card->used_bytes);
        mf_json_put_u64(&w, "free_bytes", card->free_bytes);
        mf_json_put_u64(&w, "reserved_bytes", card->reserved_bytes);
        mf_json_put_u64(&w, "processes_bytes", card->processes_bytes);
        mf_json_put_u64(&w, "unaccounted_bytes", card->driver_bytes + card->unexplained_bytes);
        mf_json_put_u64(&w, "driver_bytes", card->driver_bytes);
        mf_json_put_u64(&w, "unexplained_bytes", card->unexplained_bytes);
        mf_json_put_u64(&w, "contexts", card->contexts);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_open(&w, "processes", '[');
    for (size_t i = 0; i < c->process_count; i++) {
        const memfit_gpu_process *p = &c->processes[i];
        mf_json_open(&w, NULL, '{');
        mf_json_put_u64(&w, "gpu", c->cards[p->card].index);
        mf_json_put_u64(&w, "pid", p->pid);
        mf_json_put_string(&w, "name", p->name);
        mf_json_put_string(&w, "kind", p->kind);
        if (p->bytes_known)
            mf_json_put_u64(&w, "bytes", p->bytes);
        else
            mf_json_put_null(&w, "bytes");
        mf_json_put_u64(&w, "age_seconds", p->age_seconds);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

static void print_age(uint64_t s)
{
    if (!s)
        mf_print(stdout, "%9s", "-");
    else if (s < 3600)
        mf_print(stdout, "%5llum%02llus", (unsigned long long)(s / 60), (unsigned long long)(s % 60));
    else
        mf_print(stdout, "%5lluh%02llum", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60));
}

static void print_card(const memfit_gpu *card)
{
    char a[24], b[24], r[24], t[24];
    if (!card->memory_known) {
        mf_print(stdout, "%u  %s: the driver does not tell its memory\n", card->index, card->name);
        return;
    }
    mf_print(stdout, "%u  %s: %s used, %s free", card->index, card->name,
             memfit_size_format(card->used_bytes, a, sizeof a), memfit_size_format(card->free_bytes, b, sizeof b));
    if (card->reserved_bytes)
        mf_print(stdout, ", %s reserved", memfit_size_format(card->reserved_bytes, r, sizeof r));
    mf_print(stdout, " of %s\n", memfit_size_format(card->total_bytes, t, sizeof t));
}

/* A line of what is used beside the processes. */
static void print_rest(uint64_t bytes, const char *format, ...) MEMFIT_PRINTF(2, 3);

static void print_rest(uint64_t bytes, const char *format, ...)
{
    char a[24];
    if (!bytes)
        return;
    mf_print(stdout, "   %8s  %12s  %9s  ", "", memfit_size_format(bytes, a, sizeof a), "");
    va_list args;
    va_start(args, format);
    mf_vprint(stdout, format, args);
    va_end(args);
    mf_print(stdout, "\n");
}

static void print_text(const memfit_gpus *c)
{
    for (size_t k = 0; k < c->card_count; k++) {
        const memfit_gpu *card = &c->cards[k];
        bool silent = false; /* a process without a figure */
        print_card(card);
        for (size_t i = 0; i < c->process_count; i++) {
            const memfit_gpu_process *p = &c->processes[i];
            char a[24];
            if (p->card != k)
                continue;
            silent |= !p->bytes_known;
            mf_print(stdout, "   %8u  %12s  ", p->pid,
                     p->bytes_known ? memfit_size_format(p->bytes, a, sizeof a) : "unknown");
            print_age(p->age_seconds);
            mf_print(stdout, "  %-18s %s\n", p->kind, p->name[0] ? p->name : "(not visible from here)");
        }
        if (!card->memory_known)
            continue;
        print_rest(card->driver_bytes, "the driver, for %u context%s", card->contexts, card->contexts == 1 ? "" : "s");
        print_rest(card->unexplained_bytes, "%s, driver%s",
                   silent ? "processes of unknown size" : "processes not shown",
                   card->reserved_bytes ? "" : ", firmware");
    }
    if (!c->card_count)
        mf_print(stdout, "no card\n");
}

/* A machine without a driver is no input that is missing: the question cannot be answered there. */
static int report(const cli_common *common, memfit_error *err)
{
    if (err->code == MEMFIT_NOT_FOUND) {
        if (common->verbose)
            mf_error_prefix(err, MEMFIT_DEVICE, "no NVIDIA driver found");
        else
            snprintf(err->message, sizeof err->message, "no NVIDIA driver found");
        err->code = MEMFIT_DEVICE;
        snprintf(err->hint, sizeof err->hint,
                 "everything on the cpu works without one; `memfit doctor` says what this machine has; "
                 "MEMFIT_LIB_NVML=PATH names the driver's library");
    }
    return cli_report(common, err);
}

int cli_ps(const cli_command *command, int argc, char **argv)
{
    bool watch = false;
    const cli_binding bindings[] = {CLI_BIND("--watch", &watch), {0}};
    cli_common common;
    int status = cli_parse(command, argc, argv, bindings, &common, NULL);
    if (status || common.help)
        return status;
    do {
        static memfit_gpus cards;
        memfit_error err;
        if (memfit_gpus_look(&cards, &err))
            return report(&common, &err);
        if (watch && mf_os_terminal_columns(stdout))
            mf_print(stdout, "\033[H\033[J");
        if (common.json)
            print_json(&cards);
        else
            print_text(&cards);
        fflush(stdout);
        if (watch)
            sleep(1);
    } while (watch);
    return CLI_DONE;
}
