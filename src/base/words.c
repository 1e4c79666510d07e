/* words.c: see words.h. */
#include "base/words.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

memfit_status mf_words_precision(const char *text, const char **policy, memfit_error *err)
{
    static const struct {
        const char *word, *policy;
    } words[] = {{"float32", "float32"},     {"fp32", "float32"},           {"mixed_float16", "mixed_float16"},
                 {"fp16", "mixed_float16"},  {"float16", "mixed_float16"},  {"mixed_bfloat16", "mixed_bfloat16"},
                 {"bf16", "mixed_bfloat16"}, {"bfloat16", "mixed_bfloat16"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0) {
            *policy = words[i].policy;
            return MEMFIT_OK;
        }
    return mf_fail(err, MEMFIT_INVALID, "precision \"%.40s\": must be float32, mixed_float16 or mixed_bfloat16", text);
}

bool mf_words_shape(const char *text, size_t length, mf_shape *shape)
{
    mf_shape read = {0};
    const char *end = text + length;
    char closing = 0;
    if (text < end && (*text == '(' || *text == '['))
        closing = *text++ == '(' ? ')' : ']';
    for (;;) {
        char *next;
        long long n = text < end ? strtoll(text, &next, 10) : 0;
        if (n < 1 || next > end || read.rank == MF_MOST_DIMS - 1)
            return false;
        read.dim[read.rank++] = n;
        text = next;
        const char *number_end = text;
        while (text < end && *text == ' ')
            text++;
        if (text < end && (*text == ',' || *text == 'x'))
            text++;
        while (text < end && *text == ' ')
            text++;
        if (closing && text < end && *text == closing) { /* "(8,)" is Python's spelling of one dimension */
            text++;
            closing = 0;
            break;
        }
        if (text == number_end)
            break;
    }
    if (text != end || closing)
        return false;
    *shape = read;
    return true;
}

memfit_status mf_words_dim(const char *text, size_t *name_length, int64_t *value, memfit_error *err)
{
    const char *equals = strchr(text, '=');
    char *end = NULL;
    long long n = equals ? strtoll(equals + 1, &end, 10) : 0;
    if (!equals || equals == text || end == equals + 1 || *end || n < 1)
        return mf_fail(err, MEMFIT_INVALID, "--dim %.80s: must be NAME=N, as in --dim tokens=128", text);
    *name_length = (size_t)(equals - text);
    *value = n;
    return MEMFIT_OK;
}

bool mf_words_card(const char *device)
{
    size_t n = strncmp(device, "cuda", 4) == 0 ? 4 : strncmp(device, "gpu", 3) == 0 ? 3 : 0;
    const char *number = device + n + 1;
    return n && (!device[n] || (device[n] == ':' && *number && !number[strspn(number, "0123456789")]));
}

bool mf_words_cpu(const char *device)
{
    return strcmp(device, "cpu") == 0 || strcmp(device, "host") == 0;
}
