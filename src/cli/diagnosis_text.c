/* diagnosis_text.c: see diagnosis_text.h. */
#include "cli/diagnosis_text.h"

#include "base/visible.h"

#include <string.h>

void cli_put_diagnosis(mf_json_writer *w, const memfit_diagnosis *d)
{
    mf_json_put_string(w, "framework", d->framework);
    mf_json_put_string(w, "source", d->source);
    mf_json_put_string(w, "cause", memfit_diagnosis_cause_name(d->cause));
    mf_json_put_double(w, "certainty", d->certainty);
    mf_json_put_string(w, "evidence", d->evidence);
    mf_json_put_string(w, "settle", d->settle);
    mf_json_put_string(w, "operation", d->operation);
    mf_json_put_string(w, "line", d->line);
    mf_json_put_u64(w, "request_bytes", d->request_bytes);
    mf_json_put_u64(w, "limit_bytes", d->limit_bytes);
    mf_json_put_u64(w, "in_use_bytes", d->in_use_bytes);
    mf_json_put_u64(w, "reserved_bytes", d->reserved_bytes);
    mf_json_put_u64(w, "card_bytes", d->card_bytes);
    mf_json_put_u64(w, "card_free_bytes", d->card_free_bytes);
    mf_json_put_u64(w, "process_bytes", d->process_bytes);
    if (d->replay_bytes)
        mf_json_put_u64(w, "replay_bytes", d->replay_bytes);
    mf_json_open(w, "owners", '[');
    for (size_t i = 0; i < d->owner_count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "name", d->owners[i].name);
        mf_json_put_u64(w, "bytes", d->owners[i].bytes);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
    mf_json_open(w, "suggestions", '[');
    for (size_t i = 0; i < d->suggestion_count; i++) {
        mf_json_open(w, NULL, '{');
        mf_json_put_string(w, "change", d->suggestions[i].change);
        mf_json_put_string(w, "why", d->suggestions[i].why);
        mf_json_put_string(w, "class", d->suggestions[i].kind);
        mf_json_close(w, '}');
    }
    mf_json_close(w, ']');
}

static void print_size(FILE *file, const char *what, uint64_t bytes)
{
    char text[24];
    if (bytes)
        mf_print(file, "  %-22s %s\n", what, memfit_size_format(bytes, text, sizeof text));
}

/* The limit of a container, a job or a unit, and not what the machine has. */
static bool by_container(const memfit_diagnosis *d)
{
    for (size_t i = 0; i < d->suggestion_count; i++)
        if (strcmp(d->suggestions[i].kind, "limit-container") == 0)
            return true;
    return false;
}

/* What held the rest, without what is too small to matter beside the largest. */
static void print_owners(FILE *file, const memfit_diagnosis *d)
{
    if (!d->owner_count)
        return;
    mf_print(file, "\nwhat held the rest\n");
    for (size_t i = 0; i < d->owner_count && d->owners[i].bytes >= d->owners[0].bytes / 200; i++) {
        char text[24];
        mf_print(file, "  %12s  %s\n", memfit_size_format(d->owners[i].bytes, text, sizeof text), d->owners[i].name);
    }
}

void cli_print_diagnosis(FILE *file, const memfit_diagnosis *d, bool quiet)
{
    mf_print(file, "%s: %s\n", memfit_diagnosis_cause_name(d->cause), memfit_diagnosis_cause_words(d->cause));
    mf_print(file, "  %s", d->evidence);
    if (d->certainty > 0)
        mf_print(file, " (%.0f %% sure)", d->certainty * 100);
    mf_print(file, "\n");
    if (d->settle[0])
        mf_print(file, "  to be sure: %s\n", d->settle);
    mf_print(file, "\nwhat to change\n");
    for (size_t i = 0; i < d->suggestion_count; i++)
        mf_print(file, "  %zu. %s\n     %s\n", i + 1, d->suggestions[i].change, d->suggestions[i].why);
    if (quiet)
        return;
    if (d->request_bytes || d->line[0] || d->limit_bytes || d->in_use_bytes)
        mf_print(file, "\nthe figures\n");
    print_size(file, "asked", d->request_bytes);
    if (d->operation[0])
        mf_print(file, "  %-22s %s\n", "by", d->operation);
    if (d->line[0])
        mf_print(file, "  %-22s %s\n", "from your line", d->line);
    print_size(file, d->host && !by_container(d) ? "machine" : "limit", d->limit_bytes);
    if (strcmp(d->source, "log") != 0) {
        print_size(file, "in use", d->in_use_bytes);
        print_size(file, "taken from the card", d->reserved_bytes);
        print_size(file, "with memfit's pool", d->replay_bytes);
    }
    print_size(file, "card", d->card_bytes);
    print_size(file, "free on the card", d->card_free_bytes);
    print_owners(file, d);
}
