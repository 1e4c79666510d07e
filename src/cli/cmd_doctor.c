/* cmd_doctor.c: memfit doctor: is this machine set up right, and how does it differ from another? */
#include "cli/cli.h"
#include "base/visible.h"

#include "memfit/doctor.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DIFFERENCES = 32 };

static void put_cards(mf_json_writer *w, const memfit_gpus *c)
{
    mf_json_open(w, "gpus", '[');
    for (size_t i = 0; i < c->card_count; i++) {
        const memfit_gpu *card = &c->cards[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_u64(w, "index", card->index);
        mf_json_put_string(w, "name", card->name);
        mf_json_put_string(w, "uuid", card->uuid);
        mf_json_put_u64(w, "total_bytes", card->total_bytes);
        mf_json_put_u64(w, "free_bytes", card->free_bytes);
        mf_json_put_i64(w, "capability", card->capability);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
    mf_json_open(w, "processes", '[');
    for (size_t i = 0; i < c->process_count; i++) {
        const memfit_gpu_process *p = &c->processes[i];
        mf_json_open(w, NULL, '{');
        mf_json_put_u64(w, "gpu", c->cards[p->card].index);
        mf_json_put_u64(w, "pid", p->pid);
        mf_json_put_string(w, "name", p->name);
        mf_json_put_string(w, "kind", p->kind);
        mf_json_put_u64(w, "bytes", p->bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void print_json(const memfit_doctor *d, const memfit_difference *list, size_t count, bool compared)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "verdict", d->verdict);
    mf_json_put_string(&w, "state", memfit_check_state_name(d->state));
    mf_json_open(&w, "checks", '[');
    for (size_t i = 0; i < d->check_count; i++) {
        const memfit_check *c = &d->checks[i];
        mf_json_open(&w, NULL, '{');
        mf_json_put_string(&w, "name", c->name);
        mf_json_put_string(&w, "state", memfit_check_state_name(c->state));
        mf_json_put_string(&w, "found", c->found);
        mf_json_put_string(&w, "wanted", c->wanted);
        mf_json_put_string(&w, "fix", c->fix);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, ']');
    put_cards(&w, &d->cards);
    if (compared) {
        mf_json_open(&w, "differences", '[');
        for (size_t i = 0; i < count && i < MOST_DIFFERENCES; i++) {
            mf_json_open(&w, NULL, '{');
            mf_json_put_string(&w, "what", list[i].what);
            mf_json_put_string(&w, "here", list[i].here);
            mf_json_put_string(&w, "there", list[i].there);
            mf_json_put_bool(&w, "matters", list[i].matters);
            mf_json_put_string(&w, "why", list[i].why);
            mf_json_close(&w, '}');
        }
        mf_json_close(&w, ']');
    }
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

/* The verdict, and under it every check; with --quiet the verdict alone. */
static void print_checks(const memfit_doctor *d, const cli_common *common)
{
    mf_print(stdout, "%s\n", d->verdict);
    if (common->quiet)
        return;
    mf_print(stdout, "\n");
    for (size_t i = 0; i < d->check_count; i++) {
        const memfit_check *c = &d->checks[i];
        mf_print(stdout, "  %-5s %-16s %s\n", memfit_check_state_name(c->state), c->name, c->found);
        if (c->wanted[0] && (c->state >= MEMFIT_CHECK_WARN || common->verbose || c->state == MEMFIT_CHECK_NOTE))
            mf_print(stdout, "  %-5s %-16s needs:  %s\n", "", "", c->wanted);
        if (c->fix[0])
            mf_print(stdout, "  %-5s %-16s fix:    %s\n", "", "", c->fix);
    }
}

static void print_differences(const char *path, const memfit_difference *list, size_t count)
{
    mf_print(stdout, "\ncompared with %s: %zu difference%s\n", path, count, count == 1 ? "" : "s");
    for (size_t i = 0; i < count && i < MOST_DIFFERENCES; i++) {
        mf_print(stdout, "  %-8s %-18s here %s, there %s\n", list[i].matters ? "matters" : "", list[i].what,
                 list[i].here, list[i].there);
        if (list[i].why[0])
            mf_print(stdout, "  %-8s %-18s %s\n", "", "", list[i].why);
    }
}

int cli_doctor(const cli_command *command, int argc, char **argv)
{
    const char *save = NULL, *compare = NULL, *card_file = NULL;
    const cli_binding bindings[] = {
        CLI_BIND("--save", &save), CLI_BIND("--compare", &compare), CLI_BIND("--card-file", &card_file), {0}};
    cli_common common;
    int status = cli_parse(command, argc, argv, bindings, &common,
                           "Looks only: needs no root, changes nothing. --card-file opens each card for a moment.\n");
    if (status || common.help)
        return status;
    static memfit_doctor d;
    static memfit_difference list[MOST_DIFFERENCES];
    memfit_error err;
    size_t count = 0;
    const char *root = getenv("MEMFIT_DOCTOR_ROOT"); /* another machine's files: tests, and trees copied from afar */
    memfit_status st = memfit_doctor_look(root ? root : "", &d, &err);
    if (!st && compare)
        st = memfit_doctor_compare(&d, compare, list, MOST_DIFFERENCES, &count, &err);
    if (!st && card_file) /* first: without a card nothing is written */
        st = memfit_doctor_save_cards(card_file, &err);
    if (!st && save)
        st = memfit_doctor_save(&d, save, &err);
    if (st)
        return cli_report(&common, &err);
    if (common.json) {
        print_json(&d, list, count, compare != NULL);
        return CLI_DONE;
    }
    print_checks(&d, &common);
    if (compare)
        print_differences(compare, list, count);
    if (save)
        cli_note(&common, "\nsaved to %s", save);
    if (card_file)
        cli_note(&common, "\n%s holds what the cards say: name, memory, rates, what a context takes; no identities",
                 card_file);
    return CLI_DONE;
}
