/*
 * settings.c: a pool's options: the caller's, then what MEMFIT_* variables say, then what follows from the device.
 *
 * A variable fills what the program left at its default. If both speak and differ, that is a conflict and named:
 * neither wins silently. A MEMFIT_ variable nobody knows is an error with the nearest known name, because a misspelt
 * limit is no limit.
 */
#include "pool/calls.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/text.h"
#include "device/finder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

/* Known names: the pool's own, then those of other parts of memfit and of its tests. Each is read somewhere: a name
 * that is accepted and ignored would be worse than one that is refused. */
static const char *const known[] = {
    "MEMFIT_MEMORY",
    "MEMFIT_POLICY",
    "MEMFIT_SOFT_LIMIT",
    "MEMFIT_PURGE_MS",
    "MEMFIT_PAGE",
    "MEMFIT_BULK",
    "MEMFIT_SLACK",
    "MEMFIT_SLICE",
    "MEMFIT_KEEP_IDLE",
    "MEMFIT_NO_THREAD_CACHES",
    "MEMFIT_NO_STREAM_WAIT",
    "MEMFIT_DEBUG",
    "MEMFIT_TRACE",
#define X(id, name, stem, driver, wheel13, wheel12) "MEMFIT_LIB_" name,
    MF_LIBRARY_LIST(X)
#undef X
        "MEMFIT_CUDA_LIBDIR",
    "MEMFIT_CACHE",
    "MEMFIT_DOCTOR_ROOT",
    "MEMFIT_SHARED_DATA",
    "MEMFIT_SOURCE",
    NULL,
};

static bool is_known(const char *name, size_t length)
{
    if (!strncmp(name, "MEMFIT_TEST_", 12))
        return true;
    for (size_t i = 0; known[i]; i++)
        if (strlen(known[i]) == length && !strncmp(known[i], name, length))
            return true;
    return false;
}

static memfit_status check_names(memfit_error *err)
{
    for (char **e = environ; e && *e; e++) {
        const char *equal = strchr(*e, '=');
        if (strncmp(*e, "MEMFIT_", 7) || !equal || is_known(*e, (size_t)(equal - *e)))
            continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(equal - *e), *e);
        const char *near = mf_nearest(name, known);
        return mf_fail(err, MEMFIT_INVALID, "environment: %s is not a setting of memfit\n%s%s%s", name,
                       near ? "Did you mean " : "", near ? near : "", near ? "?" : "");
    }
    return MEMFIT_OK;
}

static memfit_status conflict(const char *name, const char *text, memfit_error *err)
{
    return mf_fail(err, MEMFIT_CONFLICT,
                   "%s=%s contradicts what the program set\nUnset the variable, or leave the option at its default",
                   name, text);
}

/* A size from the environment into an option that is 0 when not set. */
static memfit_status take_size(const char *name, uint64_t whole, uint64_t *option, memfit_error *err)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return MEMFIT_OK;
    uint64_t bytes;
    memfit_status status = memfit_size_parse(text, whole, &bytes, err);
    if (status)
        return mf_error_prefix(err, status, "%s=%s", name, text);
    if (*option && *option != bytes)
        return conflict(name, text, err);
    *option = bytes;
    return MEMFIT_OK;
}

/* A limit of 0 is the program's way to say "all that is free"; who types it means something else. */
static memfit_status take_limit(memfit_pool_options *o, uint64_t total, memfit_error *err)
{
    uint64_t by_fraction = o->limit_fraction > 0.0 ? (uint64_t)((double)total * o->limit_fraction) : 0;
    uint64_t given = o->limit_bytes ? o->limit_bytes : by_fraction, limit = given;
    const char *text = getenv("MEMFIT_MEMORY");
    memfit_status status = take_size("MEMFIT_MEMORY", total, &limit, err);
    if (!status && text && *text && !limit)
        return mf_fail(
            err, MEMFIT_INVALID,
            "MEMFIT_MEMORY=%s: a limit of nothing\nUnset it for all that is free, or write it as 8GiB or 80%%", text);
    if (!status && limit != given)
        o->limit_bytes = limit, o->limit_fraction = 0.0;
    return status;
}

/* "1%" of the peak in use; millionths, so that a size's reader serves. */
static memfit_status take_slack(memfit_pool_options *o, memfit_error *err)
{
    const char *text = getenv("MEMFIT_SLACK");
    if (text && *text && !strchr(text, '%'))
        return mf_fail(err, MEMFIT_INVALID, "MEMFIT_SLACK=%s: must be a percentage of the peak in use, as 2%%", text);
    uint64_t given = (uint64_t)(o->slack * 1e6), slack = given;
    memfit_status status = take_size("MEMFIT_SLACK", 1000000, &slack, err);
    if (!status && slack != given)
        o->slack = (double)slack / 1e6;
    return status;
}

static memfit_status take_policy(memfit_pool_options *o, memfit_error *err)
{
    const char *text = getenv("MEMFIT_POLICY");
    if (!text || !*text)
        return MEMFIT_OK;
    bool all = !strcmp(text, "preallocate");
    if (!all && strcmp(text, "growth") != 0)
        return mf_fail(err, MEMFIT_INVALID, "MEMFIT_POLICY=%s: must be growth or preallocate", text);
    if (!all && o->policy == MEMFIT_POLICY_PREALLOCATE)
        return conflict("MEMFIT_POLICY", text, err);
    if (all)
        o->policy = MEMFIT_POLICY_PREALLOCATE;
    return MEMFIT_OK;
}

static memfit_status take_purge(memfit_pool_options *o, memfit_error *err)
{
    const char *text = getenv("MEMFIT_PURGE_MS");
    if (!text || !*text)
        return MEMFIT_OK;
    uint64_t ms = MEMFIT_PURGE_NEVER;
    bool never = !strcmp(text, "never"), digits = !text[strspn(text, "0123456789")];
    errno = 0;
    if (digits)
        ms = strtoull(text, NULL, 10);
    if (!never && (!digits || errno == ERANGE || ms == MEMFIT_PURGE_NEVER))
        return mf_fail(err, MEMFIT_INVALID, "MEMFIT_PURGE_MS=%s: must be milliseconds or never", text);
    if (o->purge_ms != 10000 && o->purge_ms != ms)
        return conflict("MEMFIT_PURGE_MS", text, err);
    o->purge_ms = ms;
    return MEMFIT_OK;
}

static memfit_status take_flag(const char *name, bool *option, memfit_error *err)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return MEMFIT_OK;
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return mf_fail(err, MEMFIT_INVALID, "%s=%s: must be 0 or 1", name, text);
    if (*option && *text == '0')
        return conflict(name, text, err);
    *option = *text == '1';
    return MEMFIT_OK;
}

static memfit_status take_flags(memfit_pool_options *o, memfit_error *err)
{
    memfit_status status = take_flag("MEMFIT_SLICE", &o->slice, err);
    if (!status)
        status = take_flag("MEMFIT_KEEP_IDLE", &o->keep_idle, err);
    if (!status)
        status = take_flag("MEMFIT_NO_THREAD_CACHES", &o->no_thread_caches, err);
    if (!status)
        status = take_flag("MEMFIT_NO_STREAM_WAIT", &o->no_stream_wait, err);
    return status ? status : take_flag("MEMFIT_DEBUG", &o->debug, err);
}

static memfit_status take_environment(memfit_pool_options *o, uint64_t total, memfit_error *err)
{
    memfit_status status = check_names(err);
    if (!status)
        status = take_limit(o, total, err);
    if (!status)
        status = take_size("MEMFIT_SOFT_LIMIT", total, &o->soft_limit_bytes, err);
    if (!status)
        status = take_size("MEMFIT_PAGE", 0, &o->page_bytes, err);
    if (!status)
        status = take_size("MEMFIT_BULK", 0, &o->bulk_bytes, err);
    if (!status)
        status = take_slack(o, err);
    if (!status)
        status = take_policy(o, err);
    if (!status)
        status = take_purge(o, err);
    if (!status)
        status = take_flags(o, err);
    return status;
}

static memfit_status take_struct(const memfit_pool_options *given, memfit_pool_options *o, memfit_error *err)
{
    *o = (memfit_pool_options)MEMFIT_POOL_OPTIONS;
    memfit_status status = mf_abi_read(o, given, "MEMFIT_POOL_OPTIONS", err);
    if (status)
        return status;
    if (o->limit_bytes && o->limit_fraction != 0.0)
        return mf_fail(err, MEMFIT_CONFLICT,
                       "pool options: a limit in bytes and a limit as a fraction\nSet one of them");
    return o->limit_fraction == 0.0 ? MEMFIT_OK : mf_fraction_sane(o->limit_fraction, err);
}

memfit_status mf_fraction_sane(double fraction, memfit_error *err)
{
    if (fraction > 0.0 && fraction <= 1.0)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_INVALID, "pool: limit_fraction %g: must be more than 0 and at most 1", fraction);
}

memfit_status mf_slack_sane(double slack, memfit_error *err)
{
    if (slack >= 0.0 && slack <= 1.0)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_INVALID, "pool: slack %g: must be a fraction of at most 1", slack);
}

static bool power_of_two(uint64_t n)
{
    return n && !(n & (n - 1));
}

static memfit_status check_values(const mf_device *device, memfit_pool_options *o, memfit_error *err)
{
    if (o->policy != MEMFIT_POLICY_GROWTH && o->policy != MEMFIT_POLICY_PREALLOCATE)
        return mf_fail(err, MEMFIT_INVALID, "pool options: no such policy as %d", (int)o->policy);
    if (!o->page_bytes)
        o->page_bytes = device->granularity > UINT64_C(2) << 20 ? device->granularity : UINT64_C(2) << 20;
    if (!power_of_two(o->page_bytes) || o->page_bytes < 65536 || o->page_bytes > UINT64_C(1) << 40 ||
        o->page_bytes % device->granularity)
        return mf_fail(err, MEMFIT_INVALID,
                       "pool options: a page of %llu bytes: must be a power of two, at least 64 KiB and a multiple of "
                       "the device's granularity of %llu",
                       (unsigned long long)o->page_bytes, (unsigned long long)device->granularity);
    if (o->bulk_bytes % o->page_bytes)
        return mf_fail(err, MEMFIT_INVALID, "pool options: bulk_bytes %llu is not a multiple of the page",
                       (unsigned long long)o->bulk_bytes);
    return mf_slack_sane(o->slack, err);
}

memfit_status mf_settings_take(memfit_device *device, const memfit_pool_options *given, memfit_pool_options *options,
                               memfit_error *err)
{
    uint64_t total, free_bytes;
    memfit_status status = take_struct(given, options, err);
    if (!status) /* before it is compared with a variable */
        status = mf_slack_sane(options->slack, err);
    if (!status)
        status = device->table->memory(device, &total, &free_bytes, err);
    if (!status && !options->ignore_environment)
        status = take_environment(options, total, err);
    if (!status)
        status = check_values(device, options, err);
    if (!status && options->limit_fraction > 0.0)
        options->limit_bytes = (uint64_t)((double)total * options->limit_fraction);
    return status;
}
