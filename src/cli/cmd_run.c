/*
 * cmd_run.c: memfit run: somebody else's program, unchanged: watched, and explained when it dies.
 *
 * Standard output belongs to the program, standard error to it and, after its end, to us: the story if it failed, what
 * is left of it, and one closing line. The exit status is the program's.
 */
#include "cli/diagnosis_text.h"
#include "cli/run_story.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"
#include "memfit/doctor.h"
#include "memfit/run.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUN_FAILED = 125 };

typedef struct told {
    const memfit_run *run;
    memfit_run_result result;
    memfit_diagnosis diagnosis;
    bool diagnosed; /* the text holds a failure of memory */
    char *const *command;
} told;

static const char closing[] = "The program's standard error is passed on and read: if it fails for lack of\n"
                              "memory, the cause and the change that mends it follow. A closing line says how\n"
                              "much memory it took. Its exit status is passed through; 128 + n after signal\n"
                              "n, 126 or 127 when it cannot be executed, 125 when memfit itself fails.\n";

/* ---- what is said ----------------------------------------------------------------------------------------- */

static void say_end(const told *t)
{
    const memfit_run_result *r = &t->result;
    if (r->start_error == ENOENT && strchr(t->command[0], '/') && access(t->command[0], F_OK) == 0)
        mf_print(stderr, "memfit: %s cannot be executed: the interpreter that its first line names is not there\n",
                 t->command[0]);
    else if (r->start_error)
        mf_print(stderr, "memfit: %s: %s\n", t->command[0],
                 r->start_error == ENOENT ? "there is no such command" : strerror(r->start_error));
    cli_tell_denials(t->run, r);
    if (r->out_of_memory) {
        char a[24];
        mf_print(stderr, "memfit: the kernel's out-of-memory killer ended it: the %s memory was used up%s%s\n  %s\n",
                 r->oom_limit_bytes ? "cgroup's" : "machine's", r->oom_limit_bytes ? ", limit " : "",
                 r->oom_limit_bytes ? memfit_size_format(r->oom_limit_bytes, a, sizeof a) : "", r->oom_evidence);
        mf_print(stderr, "  use fewer data-loading workers, smaller batches, or allow it more memory\n");
    }
    if (t->diagnosed && r->limit_bytes && !r->refused)
        cli_tell_held(r);
    if (t->diagnosed) {
        mf_print(stderr, "memfit: why it failed\n");
        cli_print_diagnosis(stderr, &t->diagnosis, false);
        fputc('\n', stderr);
    }
}

static void say_left(const memfit_run_result *r, bool ended)
{
    if (r->leftover_count && !ended)
        mf_print(stderr, "memfit: %zu process%s of the program still run%s (--end-leftovers ends them):\n",
                 r->leftover_count, r->leftover_count == 1 ? "" : "es", r->leftover_count == 1 ? "s" : "");
    for (size_t i = 0; i < r->leftover_count && !ended; i++)
        mf_print(stderr, "  %u %s\n", r->leftovers[i].pid, r->leftovers[i].name);
    if (r->ended)
        mf_print(stderr, "memfit: %u process%s that the program had left behind %s ended\n", r->ended,
                 r->ended == 1 ? "" : "es", r->ended == 1 ? "was" : "were");
}

/* How many times the memory the program took would have fitted. What it took is an upper bound of what it needed, and a
 * part of it does not grow with the batch, so this is what is possible at least. */
static void say_room(double times)
{
    if (times >= 10)
        mf_print(stderr, "; the batch could be more than ten times as large");
    else if (times >= 2.75)
        mf_print(stderr, "; the batch could be about %.0f times as large", times);
    else if (times >= 1.85)
        mf_print(stderr, "; the batch could be about twice as large");
    else if (times >= 1.4)
        mf_print(stderr, "; the batch could be about one and a half times as large");
}

static void say_cards(const memfit_run_result *r, int signal)
{
    for (size_t i = 0; i < r->card_count; i++) {
        char a[24], b[24], c[24];
        uint64_t peak = r->cards[i].peak_bytes, total = r->cards[i].total_bytes, others = r->cards[i].others_bytes;
        if (r->limit_bytes && r->limit_bytes < total) /* then others do not matter */
            total = r->limit_bytes, others = 0;
        if (!peak)
            continue;
        mf_print(stderr, "memfit: peak %s of %s on card %u", memfit_size_format(peak, a, sizeof a),
                 memfit_size_format(total, b, sizeof b), r->cards[i].index);
        if (others)
            mf_print(stderr, ", %s more held by other processes", memfit_size_format(others, c, sizeof c));
        if (total > others && !signal && r->status == 0)
            say_room((double)(total - others) / (double)peak);
        fputc('\n', stderr);
    }
}

static bool on_card(const memfit_run_result *r)
{
    for (size_t i = 0; i < r->card_count; i++)
        if (r->cards[i].peak_bytes)
            return true;
    return false;
}

static void say_refused(const memfit_run_result *r)
{
    char a[24], b[24];
    if (r->refused)
        mf_print(stderr, "memfit: %llu request%s over the limit of %s %s refused; at most %s was charged\n",
                 (unsigned long long)r->refused, r->refused == 1 ? "" : "s",
                 memfit_size_format(r->limit_bytes, a, sizeof a), r->refused == 1 ? "was" : "were",
                 memfit_size_format(r->charged_peak_bytes, b, sizeof b));
}

static void say_outside(const memfit_run_result *r)
{
    char a[24];
    if (r->outside.pid)
        mf_print(
            stderr,
            "memfit: process %u (%s) was not limited: it had %s on a card, and memfit's library is not at work in it "
            "(LD_PRELOAD was cleared, or it runs as another user)\n",
            r->outside.pid, r->outside.name, memfit_size_format(r->outside.card_peak_bytes, a, sizeof a));
}

static void say_closing(const memfit_run_result *r)
{
    char a[24], b[24];
    say_refused(r);
    say_outside(r);
    if (r->suspended)
        mf_print(stderr, "memfit: gave way %u time%s, %.0f s of %.0f off the cards\n", r->suspended,
                 r->suspended == 1 ? "" : "s", r->away_seconds, r->seconds);
    if (r->turns_refused[0])
        mf_print(stderr, "memfit: it could not be suspended, so it kept the cards to its end: %s\n", r->turns_refused);
    say_cards(r, r->signal);
    if (on_card(r) || r->start_error)
        return;
    mf_print(stderr, "memfit: peak %s of %s of host memory", memfit_size_format(r->host_peak_bytes, a, sizeof a),
             memfit_size_format(r->host_limit_bytes ? r->host_limit_bytes : mf_os_total_memory(), b, sizeof b));
    if (r->host_peak_processes > 1)
        mf_print(stderr, " in %u processes (pages they share counted in each)", r->host_peak_processes);
    if (r->signal)
        mf_print(stderr, "; ended by signal %d (%s)", r->signal, strsignal(r->signal));
    fputc('\n', stderr);
}

/* ---- the report ------------------------------------------------------------------------------------------- */

static uint64_t peak_of(const memfit_run_result *r)
{
    uint64_t peak = 0;
    for (size_t i = 0; i < r->card_count; i++)
        peak = r->cards[i].peak_bytes > peak ? r->cards[i].peak_bytes : peak;
    return on_card(r) ? peak : r->host_peak_bytes;
}

static void put_processes(mf_json_writer *w, const char *key, const memfit_run_process *list, size_t count)
{
    mf_json_open(w, key, '[');
    for (size_t i = 0; i < count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_u64(w, "pid", list[i].pid);
        mf_json_put_string(w, "name", list[i].name);
        mf_json_put_u64(w, "host_peak_bytes", list[i].host_peak_bytes);
        mf_json_put_u64(w, "card_peak_bytes", list[i].card_peak_bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_cards(mf_json_writer *w, const memfit_run_result *r)
{
    mf_json_open(w, "cards", '[');
    for (size_t i = 0; i < r->card_count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_u64(w, "index", r->cards[i].index);
        mf_json_put_string(w, "name", r->cards[i].name);
        mf_json_put_string(w, "uuid", r->cards[i].uuid);
        mf_json_put_u64(w, "total_bytes", r->cards[i].total_bytes);
        mf_json_put_u64(w, "peak_bytes", r->cards[i].peak_bytes);
        mf_json_put_u64(w, "others_bytes", r->cards[i].others_bytes);
        mf_json_put_bool(w, "by_arrival", r->cards[i].by_arrival);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void put_report(mf_json_writer *w, const told *t)
{
    const memfit_run_result *r = &t->result;
    mf_json_open(w, NULL, '{');
    mf_json_put_string(w, "report", "memfit run");
    mf_json_open(w, "command", '[');
    for (char *const *word = t->command; *word; word++)
        mf_json_put_string(w, NULL, *word);
    mf_json_close(w, ']');
    mf_json_put_i64(w, "status", r->status);
    mf_json_put_i64(w, "signal", r->signal);
    mf_json_put_double(w, "seconds", r->seconds);
    mf_json_put_u64(w, "peak_bytes", peak_of(r));
    if (r->limit_bytes)
        mf_json_put_u64(w, "limit_bytes", r->limit_bytes);
    else
        mf_json_put_null(w, "limit_bytes");
    mf_json_put_u64(w, "refused", r->refused);
    mf_json_put_u64(w, "charged_peak_bytes", r->charged_peak_bytes);
    cli_put_denials(w, t->run, r);
    cli_put_held(w, r);
    mf_json_put_string(w, "cause",
                       r->out_of_memory          ? "oom-killer"
                       : t->diagnosed            ? memfit_diagnosis_cause_name(t->diagnosis.cause)
                       : r->refused && r->status ? memfit_diagnosis_cause_name(MEMFIT_DIAGNOSIS_LIMIT)
                                                 : NULL);
    mf_json_put_u64(w, "suspended", r->suspended);
    mf_json_put_double(w, "away_seconds", r->away_seconds);
    mf_json_put_double(w, "switching_seconds", r->switching_seconds);
    mf_json_put_string(w, "turns_refused", r->turns_refused[0] ? r->turns_refused : NULL);
    mf_json_put_u64(w, "samples", r->samples);
    mf_json_put_u64(w, "host_peak_bytes", r->host_peak_bytes);
    mf_json_put_u64(w, "host_peak_processes", r->host_peak_processes);
    if (r->host_limit_bytes)
        mf_json_put_u64(w, "host_limit_bytes", r->host_limit_bytes);
    else
        mf_json_put_null(w, "host_limit_bytes");
    put_cards(w, r);
    put_processes(w, "processes", r->processes, r->process_count);
    put_processes(w, "leftovers", r->leftovers, r->leftover_count);
    put_processes(w, "outside", &r->outside, r->outside.pid ? 1 : 0);
    mf_json_put_u64(w, "ended", r->ended);
    mf_json_put_string(w, "oom_killer", r->out_of_memory ? r->oom_evidence : NULL);
    if (t->diagnosed) {
        mf_json_open(w, "explanation", '{');
        cli_put_diagnosis(w, &t->diagnosis);
        mf_json_close(w, '}');
    } else {
        mf_json_put_null(w, "explanation");
    }
    mf_json_close(w, '}');
}

static memfit_status write_report(const char *path, const told *t, memfit_error *err)
{
    mf_outfile out;
    mf_json_writer w;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    mf_json_begin(&w, out.file);
    put_report(&w, t);
    mf_json_end(&w);
    return mf_os_out_commit(&out, err);
}

/* ---- the command ------------------------------------------------------------------------------------------ */

static int find_command(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0)
            return i + 1;
    return argc;
}

/* The failure, if its text tells one. */
static void diagnose(const memfit_run *run, told *t)
{
    size_t bytes;
    const char *text = memfit_run_stderr(run, &bytes);
    t->diagnosis = (memfit_diagnosis)MEMFIT_DIAGNOSIS;
    t->diagnosed = t->result.status != 0 && bytes &&
                   memfit_explain_log(text, bytes, &t->diagnosis, NULL) == MEMFIT_OK &&
                   t->diagnosis.cause != MEMFIT_DIAGNOSIS_UNKNOWN;
}

/* A limit without a card would be a promise about nothing; one above it no limit; one below the context's cost no room. */
static int read_limit(const cli_command *command, const char *text, uint64_t *bytes)
{
    enum { LEAST_MIB = 640 };
    static memfit_gpus gpus;
    memfit_error err;
    char a[24];
    /* NVML may start a thread of its own and keep it. It must not take signals that are meant for the program. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    memfit_status looked = memfit_gpus_look(&gpus, &err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (looked || !gpus.card_count || !gpus.cards[0].memory_known)
        return cli_usage_error(command,
                               "--memory %s: there is no card to limit: %s\n"
                               "--host-memory SIZE limits the host's memory",
                               text, gpus.card_count ? "the driver does not say how much memory it has" : err.message);
    uint64_t total = UINT64_MAX;
    for (size_t i = 0; i < gpus.card_count; i++)
        total = gpus.cards[i].total_bytes < total ? gpus.cards[i].total_bytes : total;
    if (memfit_size_parse(text, total, bytes, &err))
        return cli_usage_error(command, "--memory: %s\n%s", err.message, err.hint);
    if (*bytes > total)
        return cli_usage_error(command, "--memory %s: the card has %s", text, memfit_size_format(total, a, sizeof a));
    if (*bytes < (uint64_t)LEAST_MIB << 20)
        return cli_usage_error(command, "--memory %s: a context of the driver alone may take %d MiB", text, LEAST_MIB);
    return CLI_DONE;
}

/* "auto", "60" or "60s". */
static int read_turns(const cli_command *command, const char *text, uint32_t *seconds)
{
    enum { MOST_S = 86400 };
    char *end = NULL;
    if (strcmp(text, "auto") == 0) {
        *seconds = MEMFIT_RUN_TURNS_AUTO;
        return CLI_DONE;
    }
    unsigned long n = strspn(text, "0123456789") ? strtoul(text, &end, 10) : 0;
    if (!n || n > MOST_S || (*end && strcmp(end, "s") != 0))
        return cli_usage_error(command, "--turns %s: must be auto, or seconds from 1 to %d, as 60", text, MOST_S);
    *seconds = (uint32_t)n;
    return CLI_DONE;
}

/* 0.8 * 1024**3, where a part of the card is meant: JAX takes it, and has no limit then. */
static void say_slips(void)
{
    static const char *const names[] = {"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        char *end;
        if (value && mf_text_to_double(value, &end) > 1)
            mf_print(stderr, "memfit: %s=%s is no part of a card (0 to 1): JAX has no limit of its own with it\n",
                     names[i], value);
    }
}

static bool is_about_others(const char *kind)
{
    return strcmp(kind, "stop-process") == 0 || strncmp(kind, "growth-", 7) == 0;
}

/* A program that was refused memory by its own limit tells of the card as it sees it, and of all who use it: to a reader of its
 * text others seem to hold what the limit keeps back. We know better. */
static void blame_limit(told *t)
{
    const memfit_run_result *r = &t->result;
    memfit_diagnosis *d = &t->diagnosis;
    char a[24], b[24];
    size_t owners = 0, kept = 1;
    if (!t->diagnosed || !r->refused)
        return;
    d->cause = MEMFIT_DIAGNOSIS_LIMIT;
    d->certainty = 1;
    d->limit_bytes = r->limit_bytes;
    d->settle[0] = 0;
    snprintf(d->evidence, sizeof d->evidence, "--memory %s: %llu request%s over it refused, at most %s charged",
             memfit_size_format(r->limit_bytes, a, sizeof a), (unsigned long long)r->refused,
             r->refused == 1 ? "" : "s", memfit_size_format(r->charged_peak_bytes, b, sizeof b));
    for (size_t i = 0; i < d->owner_count; i++)
        if (strncmp(d->owners[i].name, "process ", 8) != 0)
            d->owners[owners++] = d->owners[i];
    d->owner_count = owners;
    memfit_diagnosis before = *d;
    snprintf(d->suggestions[0].change, sizeof d->suggestions[0].change, "memfit run --memory SIZE, larger than %s", a);
    snprintf(d->suggestions[0].why, sizeof d->suggestions[0].why, "it was this limit, not the card");
    snprintf(d->suggestions[0].kind, sizeof d->suggestions[0].kind, "limit");
    for (size_t i = 0; i < before.suggestion_count && kept < MEMFIT_DIAGNOSIS_SUGGESTIONS; i++)
        if (!is_about_others(before.suggestions[i].kind))
            d->suggestions[kept++] = before.suggestions[i];
    d->suggestion_count = kept;
}

/* memfit run --set NAME --memory SIZE: nothing is run. */
static int set_share(const cli_command *command, const cli_common *common, const char *name, const char *memory)
{
    memfit_share_state state = MEMFIT_SHARE_STATE;
    memfit_error err;
    uint64_t bytes = 0;
    char a[24], b[24], c[24];
    memfit_status set = memfit_share_set(name, 0, NULL, &err); /* a share that is not there needs no card to say so */
    int status = set ? CLI_DONE : read_limit(command, memory, &bytes);
    if (status)
        return status;
    if (!set)
        set = memfit_share_set(name, bytes, &state, &err);
    if (set) {
        cli_report(common, &err);
        return set == MEMFIT_INVALID ? CLI_USAGE : CLI_BAD_INPUT;
    }
    if (common->quiet)
        return CLI_DONE;
    mf_print(stdout, "%s: %s, was %s; %u job%s, %s in use", name, memfit_size_format(bytes, a, sizeof a),
             memfit_size_format(state.before_bytes, b, sizeof b), state.jobs, state.jobs == 1 ? "" : "s",
             memfit_size_format(state.in_use_bytes, c, sizeof c));
    if (state.in_use_bytes > bytes)
        mf_print(stdout, ": no program gets more until that is below the limit");
    fputc('\n', stdout);
    return CLI_DONE;
}

/* memfit run --story FILE: nothing is run. */
static int tell_story(const cli_common *common, const char *path)
{
    memfit_error err;
    memfit_run *run;
    memfit_run_result result = MEMFIT_RUN_RESULT;
    if (memfit_run_read(path, NULL, &run, &err))
        return cli_report(common, &err), CLI_BAD_INPUT;
    memfit_run_get(run, &result, NULL);
    if (common->json) {
        mf_json_writer w;
        mf_json_begin(&w, stdout);
        mf_json_open(&w, NULL, '{');
        cli_put_denials(&w, run, &result);
        cli_put_held(&w, &result);
        mf_json_close(&w, '}');
        mf_json_end(&w);
    } else {
        cli_tell_denials(run, &result);
        if (!result.denial_count)
            cli_tell_held(&result);
    }
    memfit_run_destroy(run);
    return CLI_DONE;
}

/* What is wrong with how we were called is exit status 2; all else is our own failure. */
static int failed_status(memfit_status status)
{
    bool usage = status == MEMFIT_UNSUPPORTED || status == MEMFIT_INVALID || status == MEMFIT_CONFLICT ||
                 status == MEMFIT_NOT_FOUND;
    return usage ? CLI_USAGE : RUN_FAILED;
}

/* A card that is not there is refused: the program would run on none, and say something else. */
static int check_card(const cli_command *command, int64_t device)
{
    static memfit_gpus cards;
    memfit_error err;
    if (memfit_gpus_look(&cards, &err) != MEMFIT_OK)
        return cli_usage_error(command, "--device %lld: %s\n%s", (long long)device, err.message, err.hint);
    for (size_t i = 0; i < cards.card_count; i++)
        if (cards.cards[i].index == (unsigned)device)
            return CLI_DONE;
    return cli_usage_error(command, "--device %lld: this machine has %zu card%s, counted from 0\nmemfit ps shows them",
                           (long long)device, cards.card_count, cards.card_count == 1 ? "" : "s");
}

int cli_run(const cli_command *command, int argc, char **argv)
{
    bool growth = false, end_leftovers = false;
    int64_t device = -1;
    char card[24];
    const char *report = NULL, *memory = NULL, *share = NULL, *set = NULL, *trace = NULL, *story = NULL,
               *host_memory = NULL, *turns = NULL;
    const cli_binding bindings[] = {
        CLI_BIND("--memory", &memory), CLI_BIND("--share", &share),   CLI_BIND("--set", &set),
        CLI_BIND("--trace", &trace),   CLI_BIND("--story", &story),   CLI_BIND("--host-memory", &host_memory),
        CLI_BIND("--turns", &turns),   CLI_BIND("--growth", &growth), CLI_BIND("--end-leftovers", &end_leftovers),
        CLI_BIND("--report", &report), CLI_BIND("--device", &device), {0}};
    cli_common common;
    int first = find_command(argc, argv),
        status = cli_parse(command, first < argc ? first - 1 : argc, argv, bindings, &common, closing);
    if (status || common.help)
        return status;
    if (set && first < argc)
        return cli_usage_error(command, "--set changes the limit of programs that run: it runs none");
    if (set && !common.json)
        return set_share(command, &common, set, memory);
    if (story && first < argc)
        return cli_usage_error(command, "--story tells of a program that was limited before: it runs none");
    if (story)
        return tell_story(&common, story);
    if (first >= argc)
        return cli_usage_error(command, "which command? memfit %s", command->usage);
    if (common.json)
        return cli_usage_error(command, "--json: standard output belongs to the program\n"
                                        "--report FILE writes the JSON object to a file");
    told t = {.command = argv + first};
    memfit_error err;
    memfit_run *run;
    memfit_run_options o = MEMFIT_RUN_OPTIONS;
    o.command = (const char *const *)(argv + first);
    o.growth = growth;
    o.end_leftovers = end_leftovers;
    o.share = share;
    o.trace = trace;
    if (turns && (status = read_turns(command, turns, &o.turns_s)) != CLI_DONE)
        return status;
    snprintf(card, sizeof card, "%lld", (long long)device);
    o.device = device >= 0 ? card : NULL;
    if (o.device && (status = check_card(command, device)) != CLI_DONE)
        return status;
    if (memory && (status = read_limit(command, memory, &o.limit_bytes)) != CLI_DONE)
        return status;
    if (host_memory && memfit_size_parse(host_memory, mf_os_total_memory(), &o.host_limit_bytes, &err))
        return cli_usage_error(command, "--host-memory: %s\n%s", err.message, err.hint);
    if (report && mf_os_raw_probe(report, &err)) /* before hours of work, not after */
        return cli_report(&common, &err), RUN_FAILED;
    say_slips();
    memfit_status ran = memfit_run_command(&o, &run, &err);
    if (ran) {
        cli_report(&common, &err);
        return failed_status(ran);
    }
    t.result = (memfit_run_result)MEMFIT_RUN_RESULT;
    memfit_run_get(run, &t.result, NULL);
    t.run = run;
    diagnose(run, &t);
    blame_limit(&t);
    say_end(&t);
    say_left(&t.result, end_leftovers);
    if (!common.quiet)
        say_closing(&t.result);
    status = t.result.status;
    if (report && write_report(report, &t, &err)) {
        cli_report(&common, &err);
        status = status ? status : RUN_FAILED;
    }
    memfit_run_destroy(run);
    return status;
}
