/* cubin_cache.c: see cubin_cache.h. Nothing here fails: without a cache kernels are compiled anew. */
#include "ops/cuda/cubin_cache.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct cubin_head {
    char magic[8];
    uint64_t a, b, bytes, sum;
} cubin_head;

static const char magic[8] = {'m', 'f', 'c', 'u', 'b', 'i', 'n', '1'};

mf_cubin_key mf_cubin_key_begin(void)
{
    return (mf_cubin_key){UINT64_C(0xcbf29ce484222325), UINT64_C(0x9e3779b97f4a7c15)};
}

void mf_cubin_key_add(mf_cubin_key *key, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        key->a = (key->a ^ p[i]) * UINT64_C(0x100000001b3);
        key->b = (key->b + p[i] + 1) * UINT64_C(0xbf58476d1ce4e5b9);
        key->b ^= key->b >> 29;
    }
}

static void make_folders(char *path)
{
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
    mkdir(path, 0700);
}

/* NULL: it can be used. */
static const char *fault_of(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return "cannot be made";
    if (!S_ISDIR(st.st_mode))
        return "is not a folder";
    if (st.st_uid != geteuid() || (st.st_mode & 022) != 0)
        return "is not this user's alone: others could put kernels there";
    return access(path, W_OK | X_OK) != 0 ? "cannot be written" : NULL;
}

void mf_cubin_cache_open(mf_cubin_cache *cache)
{
    const char *own = getenv("MEMFIT_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    cache->folder[0] = cache->why[0] = 0;
    if (own && strcmp(own, "off") == 0)
        return;
    if (own && *own)
        n = snprintf(cache->folder, sizeof cache->folder, "%s", own);
    else if (xdg && *xdg == '/')
        n = snprintf(cache->folder, sizeof cache->folder, "%s/memfit/cubin", xdg);
    else if (home && *home == '/')
        n = snprintf(cache->folder, sizeof cache->folder, "%s/.cache/memfit/cubin", home);
    const char *fault = n < 0                               ? "HOME does not name a folder"
                        : (size_t)n >= sizeof cache->folder ? "its name is too long"
                        : cache->folder[0] != '/'           ? "is not an absolute path"
                                                            : NULL;
    if (!fault) {
        make_folders(cache->folder);
        fault = fault_of(cache->folder);
    }
    if (fault)
        snprintf(cache->why, sizeof cache->why, "%s%s%s", cache->folder, cache->folder[0] ? " " : "", fault);
    if (fault)
        cache->folder[0] = 0;
}

static bool path_of(const mf_cubin_cache *cache, mf_cubin_key key, char path[1000])
{
    int n =
        snprintf(path, 1000, "%s/%016llx%016llx", cache->folder, (unsigned long long)key.a, (unsigned long long)key.b);
    return *cache->folder && n > 0 && n < 1000;
}

static uint64_t sum_of(const char *data, size_t bytes)
{
    mf_cubin_key key = mf_cubin_key_begin();
    mf_cubin_key_add(&key, data, bytes);
    return key.a ^ key.b;
}

bool mf_cubin_cache_has(const mf_cubin_cache *cache, mf_cubin_key key)
{
    char path[1000];
    return path_of(cache, key, path) && mf_os_file_bytes(path) > sizeof(cubin_head);
}

bool mf_cubin_cache_read(const mf_cubin_cache *cache, const memfit_host *host, mf_cubin_key key, char **cubin,
                         size_t *bytes)
{
    char path[1000];
    mf_mapping map;
    if (!path_of(cache, key, path) || mf_os_file_bytes(path) == 0 || mf_os_map_file(path, &map, NULL) != MEMFIT_OK)
        return false;
    cubin_head head;
    const char *data = (const char *)map.data + sizeof head;
    bool good = map.bytes > sizeof head;
    if (good)
        memcpy(&head, map.data, sizeof head);
    good = good && memcmp(head.magic, magic, sizeof magic) == 0 && head.a == key.a && head.b == key.b &&
           head.bytes == map.bytes - sizeof head && head.sum == sum_of(data, head.bytes);
    if (good && (good = (*cubin = mf_host_alloc(host, head.bytes)) != NULL)) {
        memcpy(*cubin, data, head.bytes);
        *bytes = head.bytes;
    }
    mf_os_unmap_file(&map);
    return good;
}

void mf_cubin_cache_write(const mf_cubin_cache *cache, mf_cubin_key key, const char *cubin, size_t bytes)
{
    char path[1000], temporary[1100];
    if (!path_of(cache, key, path))
        return;
    snprintf(temporary, sizeof temporary, "%s.%ld.XXXXXX", path, mf_os_process_id());
    int file = mkstemp(temporary);
    FILE *f = file >= 0 ? fdopen(file, "wb") : NULL;
    if (!f) {
        if (file >= 0) {
            close(file);
            unlink(temporary);
        }
        return;
    }
    cubin_head head = {.a = key.a, .b = key.b, .bytes = bytes, .sum = sum_of(cubin, bytes)};
    memcpy(head.magic, magic, sizeof magic);
    bool good = fwrite(&head, sizeof head, 1, f) == 1 && fwrite(cubin, 1, bytes, f) == bytes;
    good = fclose(f) == 0 && good;
    if (!good || rename(temporary, path) != 0)
        unlink(temporary);
}
