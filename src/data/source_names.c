/*
 * source_names.c: arrays of a file by other names than it gives them.
 *
 *   --features x=train/images,y=train/labels     the array at the right is found by the name at the left
 *   groups/of/x                                  is found as x too, where there is no other x; of several, none is:
 *                                                whoever asks for it is told which there are
 */
#include "data/source.h"

#include "base/error.h"

#include <string.h>

static memfit_status add_again(mf_source *source, const char *name, uint32_t index, memfit_error *err)
{
    memfit_error none = {.code = MEMFIT_DAMAGED};
    mf_array copy = source->arrays[index];
    memfit_status status = mf_source_add_unusable(source, name, &none, err); /* grows the list; filled in below */
    if (status != MEMFIT_OK)
        return status;
    copy.name = source->arrays[source->count - 1].name;
    source->arrays[source->count - 1] = copy;
    return MEMFIT_OK;
}

static uint32_t find(const mf_source *source, const char *name, size_t bytes, uint32_t from)
{
    for (uint32_t i = from; i < source->count; i++)
        if (strlen(source->arrays[i].name) == bytes && memcmp(source->arrays[i].name, name, bytes) == 0)
            return i;
    return source->count;
}

static memfit_status not_there(const mf_source *source, const char *name, size_t bytes, memfit_error *err)
{
    char text[300] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < source->count && n + 70 < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.60s", i ? ", " : "", source->arrays[i].name);
    return mf_fail(err, MEMFIT_INVALID, "--features: %s has no array %.*s\nit has %s", source->path, (int)bytes, name,
                   *text ? text : "none that was asked for");
}

static memfit_status take_features(mf_source *source, const char *list, memfit_error *err)
{
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ","), equals = strcspn(p, "=,");
        const char *from = equals < n ? p + equals + 1 : p;
        size_t from_bytes = n - (size_t)(from - p);
        uint32_t at = find(source, from, from_bytes, 0);
        if (at == source->count)
            return not_there(source, from, from_bytes, err);
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)(equals < n ? equals : n), p);
        uint32_t taken = find(source, name, strlen(name), 0);
        if (taken < source->count && taken != at) /* the name is another array's: that one is not meant */
            source->arrays[taken].name = "";
        memfit_status status = taken == at ? MEMFIT_OK : add_again(source, name, at, err);
        if (status != MEMFIT_OK)
            return status;
        p += n + (p[n] == ',');
    }
    return MEMFIT_OK;
}

static const char *last_part(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : NULL;
}

static memfit_status tell_apart(mf_source *source, const char *part, uint32_t a, uint32_t b, memfit_error *err)
{
    memfit_error why;
    const char *one = source->arrays[a].name, *other = source->arrays[b].name;
    mf_fail(&why, MEMFIT_DAMAGED, "%s has several arrays %s: %s, %s\n--features %s=%s says which is meant",
            source->path, part, one, other, part, strstr(other, "train") ? other : one);
    return mf_source_add_unusable(source, part, &why, err);
}

memfit_status mf_source_settle_names(mf_source *source, memfit_error *err)
{
    memfit_status status = source->features_given ? take_features(source, source->features_given, err) : MEMFIT_OK;
    for (uint32_t i = 0, count = source->count; i < count && status == MEMFIT_OK; i++) {
        const char *part = last_part(source->arrays[i].name);
        if (!part || !*part || find(source, part, strlen(part), 0) < source->count)
            continue;
        uint32_t other = count;
        for (uint32_t k = i + 1; k < count && other == count; k++) {
            const char *same = last_part(source->arrays[k].name);
            if (same && strcmp(same, part) == 0)
                other = k;
        }
        status = other < count ? tell_apart(source, part, i, other, err) : add_again(source, part, i, err);
    }
    return status;
}
