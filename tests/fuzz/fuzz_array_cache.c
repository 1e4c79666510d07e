/* fuzz_array_cache.c: any bytes as the list and the arrays of a cache file (data/array_cache.c) whose head is right: the stamp of
 * its table, the check sum of its list. Opened from it or from the table, the source passes its check and can be read. The first
 * two bytes are the length of the list. */
#include "data/sample_cache.h"
#include "file/tfrecord.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put(const char *name, const void *data, size_t bytes, const void *more, size_t more_bytes)
{
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || write(fd, more, more_bytes) != (ssize_t)more_bytes)
        abort();
    close(fd);
}

static mf_source *open_table(const memfit_host *host)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    const mf_source_wish wish = {.cache = "fuzz_array_cache.cache"};
    if (mf_source_open_as(host, "fuzz_array_cache.csv", &wish, NULL, &s, &err) != MEMFIT_OK && !err.message[0])
        abort();
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint64_t stamp;
    mf_cache_head head;
    if (!stamp) {
        put("fuzz_array_cache.csv", "1,2,3\n4,5,6\n", 12, "", 0);
        unlink("fuzz_array_cache.cache");
        mf_source_close(open_table(NULL));
        if (mf_os_peek("fuzz_array_cache.cache", &head, sizeof head) != sizeof head)
            abort();
        stamp = head.stamp;
    }
    if (bytes < 2)
        return 0;
    uint64_t list = data[0] | data[1] << 8;
    data += 2;
    bytes -= 2;
    list = list < bytes ? list : bytes;
    mf_cache_fill_head(&head, MF_CACHE_OF_ARRAYS, stamp, list, sizeof head + bytes, mf_crc32c(data, list));
    put("fuzz_array_cache.cache", &head, sizeof head, data, bytes);
    mf_limit_host host;
    mf_limit_host_init(&host, NULL, 64u << 20);
    mf_source *s = open_table(&host.host);
    for (uint32_t i = 0; s && i < s->count; i++) {
        const mf_array *a = &s->arrays[i];
        if (mf_source_check(s, NULL) != MEMFIT_OK)
            abort();
        if (a->unusable || a->sample_bytes > 1 << 20)
            continue;
        unsigned char *sample = malloc(a->sample_bytes + 1);
        mf_source_read(s, a, 0, sample);
        mf_source_read(s, a, s->samples - 1, sample);
        free(sample);
    }
    mf_source_close(s);
    if (host.live_bytes)
        abort();
    return 0;
}
