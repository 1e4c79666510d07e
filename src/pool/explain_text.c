/*
 * explain_text.c: an explanation as text of at most 60 lines and as JSON, into the caller's memory. Nothing here looks
 * at a pool: an explanation can be kept and shown later.
 */
#include "base/chart.h"
#include "pool/explain.h"

#include <inttypes.h>
#include <string.h>

typedef char size_text[24];
#define SIZE(bytes, text) memfit_size_format((bytes), (text), sizeof(text))

/* ---- sentences -------------------------------------------------------------------------------------------- */

void mf_action_sentence(const memfit_explanation *e, const memfit_action *a, char *text, size_t bytes)
{
    size_text by, frees, to, live;
    mf_text out;
    mf_text_init(&out, text, bytes);
    SIZE(a->bytes, by);
    SIZE(a->frees_bytes, frees);
    SIZE(a->limit_bytes, to);
    SIZE(a->live_bytes, live);
    switch (a->kind) {
    case MEMFIT_ACTION_WAIT:
        if (a->stream == MEMFIT_EVERY_STREAM)
            mf_text_add(&out, "wait for every stream: frees %s that their work still holds", frees);
        else
            mf_text_add(&out, "wait for stream %" PRIu64 ": frees %s that its work still holds", a->stream, frees);
        break;
    case MEMFIT_ACTION_TRIM:
        mf_text_add(&out, "trim pool \"%s\" on the same device: gives back %s it does not use", a->name, frees);
        break;
    case MEMFIT_ACTION_FREE_SMALL:
        mf_text_add(&out,
                    "free, or move, %" PRIu64 " small block%s (%s, most of them \"%s\"): frees %s of pages they pin",
                    a->blocks, a->blocks == 1 ? "" : "s", live, a->name, frees);
        break;
    case MEMFIT_ACTION_MOVE_LIMIT:
        mf_text_add(&out, "lower the limit of \"%s\" by %s, which it does not use", a->name, by);
        if (a->limit_bytes > e->limit_bytes)
            mf_text_add(&out, ", and raise this one's to %s (%" PRIu64 " bytes)", to, a->limit_bytes);
        break;
    case MEMFIT_ACTION_RAISE_LIMIT:
        mf_text_add(&out, "raise the limit by %s to %s (%" PRIu64 " bytes)", by, to, a->limit_bytes);
        break;
    case MEMFIT_ACTION_FREE_OWNER:
        mf_text_add(&out, "free the %" PRIu64 " block%s of \"%s\" (%s): frees %s", a->blocks, a->blocks == 1 ? "" : "s",
                    a->name, live, frees);
        break;
    case MEMFIT_ACTION_SMALLER:
        mf_text_add(&out, "ask for %s (%" PRIu64 " bytes) less, or in several smaller requests", by, a->bytes);
        break;
    case MEMFIT_ACTION_OTHERS:
        mf_text_add(&out, "have other processes give back %s%s%s", by, a->name[0] ? ": " : "", a->name);
        break;
    case MEMFIT_ACTION_LARGER_DEVICE:
        mf_text_add(&out, "use a device with %s more", by);
        if (a->limit_bytes > e->limit_bytes)
            mf_text_add(&out, ", and a limit of %s", to);
        break;
    default:
        mf_text_add(&out, "nothing helps");
        break;
    }
}

static void cause_sentence(const memfit_explanation *e, mf_text *out)
{
    size_text a, b, c;
    switch (e->cause) {
    case MEMFIT_CAUSE_LIMIT:
        mf_text_add(out, "pages in use (%s) and those the request needs (%s) are more than the limit (%s)",
                    SIZE(e->live_pages_bytes + e->pending_bytes, a), SIZE(e->needed_bytes, b), SIZE(e->limit_bytes, c));
        break;
    case MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE:
        mf_text_add(out, "other pools on this device hold %s and have %s more set aside", SIZE(e->other_pools_bytes, a),
                    SIZE(e->set_aside_bytes, b));
        break;
    case MEMFIT_CAUSE_PENDING_STREAM:
        mf_text_add(out, "%s are free, but work on another stream may still use them",
                    SIZE(e->pending_bytes ? e->pending_bytes : e->idle_bytes, a));
        break;
    case MEMFIT_CAUSE_PINNED_BY_SMALL:
        mf_text_add(out, "small blocks of %s in all keep %s of pages", SIZE(e->small_live_bytes, a),
                    SIZE(e->small_pages_bytes, b));
        break;
    case MEMFIT_CAUSE_TAKEN_BY_OTHERS:
        mf_text_add(out, "the device has %s free; other processes hold %s of it", SIZE(e->device_free_bytes, a),
                    SIZE(e->others_bytes, b));
        break;
    case MEMFIT_CAUSE_GRANULARITY:
        mf_text_add(out, "the bytes would fit, but not in whole pages of %s: %s are lost to rounding",
                    SIZE(e->page_bytes, a), SIZE(e->pinned_bytes, b));
        break;
    case MEMFIT_CAUSE_LARGER_THAN_DEVICE:
        mf_text_add(out, "the device has %s in all", SIZE(e->device_bytes, a));
        break;
    default:
        mf_text_add(out, "none found");
        break;
    }
}

/* ---- text ------------------------------------------------------------------------------------------------- */

static void figure(mf_text *out, const char *label, uint64_t bytes, const char *note)
{
    size_text size;
    mf_text_add(out, "  %-14s %12s%s%s\n", label, SIZE(bytes, size), *note ? "  " : "", note);
}

static void put_figures(const memfit_explanation *e, mf_text *out)
{
    char note[128];
    size_text size;
    snprintf(note, sizeof note, "%s, pages of %s", e->policy == MEMFIT_POLICY_GROWTH ? "growth" : "preallocate",
             SIZE(e->page_bytes, size));
    figure(out, "limit", e->limit_bytes, note);
    if (e->fixed_bytes)
        figure(out, "fixed", e->fixed_bytes, "context and libraries");
    figure(out, "in use", e->in_use_bytes, "");
    figure(out, "reserved", e->reserved_bytes, "");
    figure(out, "idle", e->idle_bytes, "reserved, no live byte");
    if (e->pending_bytes)
        figure(out, "pending", e->pending_bytes, "freed, a stream may still use it");
    figure(out, "pinned", e->pinned_bytes, "free bytes in pages that hold a live one");
    figure(out, "largest hole", e->largest_hole_bytes, "of addresses between live blocks");
    figure(out, "available", e->available_bytes, "the largest request that would succeed");
    snprintf(note, sizeof note, "of %s on %s", SIZE(e->device_bytes, size), e->device);
    figure(out, "device free", e->device_free_bytes, note);
    if (e->other_pools_bytes || e->set_aside_bytes) {
        snprintf(note, sizeof note, "and %s set aside", SIZE(e->set_aside_bytes, size));
        figure(out, "other pools", e->other_pools_bytes, note);
    }
    if (e->others_bytes)
        figure(out, "others", e->others_bytes, e->other_process);
}

static void put_holders(const memfit_explanation *e, const mf_chart_options *options, mf_text *out)
{
    mf_chart_bar bars[MEMFIT_KIND_COUNT] = {{0}};
    unsigned count = 0;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        if (e->kind_bytes[k])
            bars[count++] = (mf_chart_bar){memfit_kind_name((memfit_kind)k), {e->kind_bytes[k]}, 1};
    if (count) {
        mf_text_add(out, "\nby kind\n");
        mf_chart_draw_bars(out, bars, count, e->limit_bytes, options);
    }
    char labels[MEMFIT_EXPLANATION_OWNERS][96];
    mf_chart_bar owners[MEMFIT_EXPLANATION_OWNERS];
    for (unsigned i = 0; i < e->owner_count; i++) {
        snprintf(labels[i], sizeof labels[i], "%s (%s)", e->owners[i].name, memfit_kind_name(e->owners[i].kind));
        owners[i] = (mf_chart_bar){labels[i], {e->owners[i].bytes}, 1};
    }
    if (!e->owner_count)
        return;
    mf_text_add(out, "\nby owner (%" PRIu64 " in all)\n", e->owners_in_all);
    mf_chart_draw_bars(out, owners, e->owner_count, e->limit_bytes, options);
}

char *memfit_explanation_text(const memfit_explanation *e, unsigned columns, bool utf8, char *text, size_t text_bytes)
{
    mf_chart_options options = {.columns = columns ? columns : 80, .utf8 = utf8};
    if (options.columns > 120)
        options.columns = 120; /* so that MEMFIT_EXPLANATION_TEXT suffices */
    size_text size;
    char sentence[400];
    mf_text out;
    mf_text_init(&out, text, text_bytes);
    mf_text_add(&out, "out of memory: pool \"%s\" on %s has no %s (%" PRIu64 " bytes", e->pool, e->device,
                SIZE(e->request_bytes, size), e->request_bytes);
    if (e->request_alignment > MF_UNIT)
        mf_text_add(&out, ", aligned to %" PRIu64, e->request_alignment);
    if (e->request_stream)
        mf_text_add(&out, ", stream %" PRIu64, e->request_stream);
    mf_text_add(&out, ") for %s \"%s\"\n", memfit_kind_name(e->request_kind), e->request_name);
    mf_text_add(&out, "cause: %s: ", memfit_cause_name(e->cause));
    cause_sentence(e, &out);
    mf_text_add(&out, "\n\n");
    put_figures(e, &out);
    put_holders(e, &options, &out);
    mf_text_add(&out, e->action_count ? "\nwould have worked, cheapest first (each was tried on a copy)\n"
                                      : "\nnothing that was tried would have worked\n");
    for (unsigned i = 0; i < e->action_count; i++) {
        mf_action_sentence(e, &e->actions[i], sentence, sizeof sentence);
        mf_text_add(&out, "  %u. %s\n", i + 1, sentence);
    }
    return text;
}

/* ---- JSON ------------------------------------------------------------------------------------------------- */

static void put_string(mf_text *out, const char *key, const char *value)
{
    mf_text_add(out, "\"%s\":\"", key);
    for (const char *p = value; *p;) {
        unsigned length = mf_utf8_length(p);
        if (!length)
            mf_text_add(out, "\\ufffd");
        else if (*p == '"' || *p == '\\')
            mf_text_add(out, "\\%c", *p);
        else if ((unsigned char)*p < 0x20)
            mf_text_add(out, "\\u%04x", (unsigned)*p);
        else
            mf_text_add(out, "%.*s", (int)length, p);
        p += length ? length : 1;
    }
    mf_text_add(out, "\"");
}

static void put_number(mf_text *out, const char *key, uint64_t value)
{
    mf_text_add(out, ",\"%s\":%" PRIu64, key, value);
}

static void put_action(const memfit_explanation *e, const memfit_action *a, mf_text *out)
{
    char sentence[400];
    mf_action_sentence(e, a, sentence, sizeof sentence);
    mf_text_add(out, "{");
    put_string(out, "action", memfit_action_name(a->kind));
    mf_text_add(out, ",");
    put_string(out, "text", sentence);
    put_number(out, "bytes", a->bytes);
    put_number(out, "frees_bytes", a->frees_bytes);
    if (a->limit_bytes)
        put_number(out, "limit_bytes", a->limit_bytes);
    if (a->blocks) {
        put_number(out, "blocks", a->blocks);
        put_number(out, "live_bytes", a->live_bytes);
    }
    if (a->kind == MEMFIT_ACTION_WAIT)
        put_number(out, "stream", a->stream);
    if (a->name[0]) {
        mf_text_add(out, ",");
        put_string(out, "name", a->name);
    }
    mf_text_add(out, "}");
}

static void put_owners_json(const memfit_explanation *e, mf_text *out)
{
    mf_text_add(out, ",\"kinds\":{");
    bool first = true;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++) {
        if (!e->kind_bytes[k])
            continue;
        mf_text_add(out, "%s\"%s\":%" PRIu64, first ? "" : ",", memfit_kind_name((memfit_kind)k), e->kind_bytes[k]);
        first = false;
    }
    mf_text_add(out, "},\"owners\":[");
    for (unsigned i = 0; i < e->owner_count; i++) {
        mf_text_add(out, i ? ",{" : "{");
        put_string(out, "name", e->owners[i].name);
        mf_text_add(out, ",");
        put_string(out, "kind", memfit_kind_name(e->owners[i].kind));
        put_number(out, "bytes", e->owners[i].bytes);
        put_number(out, "blocks", e->owners[i].blocks);
        mf_text_add(out, "}");
    }
    mf_text_add(out, "]");
}

char *memfit_explanation_json(const memfit_explanation *e, char *text, size_t text_bytes)
{
    mf_text out;
    mf_text_init(&out, text, text_bytes);
    mf_text_add(&out, "{");
    put_string(&out, "cause", memfit_cause_name(e->cause));
    mf_text_add(&out, ",");
    put_string(&out, "pool", e->pool);
    mf_text_add(&out, ",");
    put_string(&out, "device", e->device);
    put_number(&out, "failure", e->failure);
    put_number(&out, "request_bytes", e->request_bytes);
    put_number(&out, "request_alignment", e->request_alignment);
    put_number(&out, "request_stream", e->request_stream);
    mf_text_add(&out, ",");
    put_string(&out, "request_owner", e->request_name);
    mf_text_add(&out, ",");
    put_string(&out, "request_kind", memfit_kind_name(e->request_kind));
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"needed_bytes", e->needed_bytes},
                   {"page_bytes", e->page_bytes},
                   {"limit_bytes", e->limit_bytes},
                   {"fixed_bytes", e->fixed_bytes},
                   {"in_use_bytes", e->in_use_bytes},
                   {"reserved_bytes", e->reserved_bytes},
                   {"live_pages_bytes", e->live_pages_bytes},
                   {"idle_bytes", e->idle_bytes},
                   {"pending_bytes", e->pending_bytes},
                   {"pinned_bytes", e->pinned_bytes},
                   {"small_pages_bytes", e->small_pages_bytes},
                   {"small_live_bytes", e->small_live_bytes},
                   {"largest_hole_bytes", e->largest_hole_bytes},
                   {"available_bytes", e->available_bytes},
                   {"device_bytes", e->device_bytes},
                   {"device_free_bytes", e->device_free_bytes},
                   {"other_pools_bytes", e->other_pools_bytes},
                   {"set_aside_bytes", e->set_aside_bytes},
                   {"others_bytes", e->others_bytes}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        put_number(&out, numbers[i].key, numbers[i].value);
    put_owners_json(e, &out);
    mf_text_add(&out, ",\"actions\":[");
    for (unsigned i = 0; i < e->action_count; i++) {
        if (i)
            mf_text_add(&out, ",");
        put_action(e, &e->actions[i], &out);
    }
    mf_text_add(&out, "]}");
    return text;
}
