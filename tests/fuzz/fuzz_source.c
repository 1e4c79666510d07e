/* fuzz_source.c: any bytes as a data file that is opened by its path, of whatever kind they are. The first byte chooses the
 * file's name (tables are known by it) and how many numbers the steps of a record's lists have. Opened, the source passes its
 * check and every array is read at both ends. */
#include "data/source.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"fuzz_source.data", "fuzz_source.csv"};
    if (!bytes)
        return 0;
    const char *name = names[data[0] & 1];
    int fd = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0 || write(fd, data + 1, bytes - 1) != (ssize_t)(bytes - 1))
        abort();
    close(fd);
    mf_source *s;
    memfit_error err = {0};
    mf_limit_host host;
    mf_limit_host_init(&host, NULL, 64u << 20);
    if (mf_source_open_table(&host.host, name, data[0] >> 1 & 7, NULL, &s, &err) == MEMFIT_OK) {
        if (mf_source_check(s, &err) != MEMFIT_OK || mf_source_still_whole(s, &err) != MEMFIT_OK || s->samples < 1)
            abort();
        const mf_shape step = {.rank = data[0] >> 4 & 1, .dim = {1 + (data[0] >> 5)}};
        for (uint32_t i = 0; i < s->count && data[0] & 128; i++)
            mf_tfrecord_use(s, &s->arrays[i], &step);
        mf_tfrecord_settle_lengths(s);
        if (mf_source_check(s, &err) != MEMFIT_OK)
            abort();
        for (uint32_t i = 0; i < s->count; i++) {
            const mf_array *a = &s->arrays[i];
            if (a->unusable || a->sample_bytes > 1 << 20)
                continue;
            unsigned char *sample = malloc(a->sample_bytes + 1);
            for (int end = 0; end < 2; end++) {
                const int64_t index = end ? s->samples - 1 : 0;
                if (!a->made)
                    mf_source_read(s, a, index, sample);
                else if (!a->picture) /* which takes a worker's decoders */
                    mf_source_make(s, a, index, NULL, sample, &err);
            }
            free(sample);
        }
        mf_source_close(s);
    } else if (!err.message[0]) {
        abort();
    }
    if (host.live_bytes)
        abort();
    return 0;
}
