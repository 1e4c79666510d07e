/* abi.c: reading and writing public structs of another version's size. */
#include "base/abi.h"

#include "base/error.h"

#include <string.h>

enum { MOST_BYTES = 1 << 20 }; /* no public struct is as long: a size above is a struct nobody initialized */

memfit_status mf_abi_check(const void *out, const char *macro, memfit_error *err)
{
    size_t size = 0;
    if (out)
        memcpy(&size, out, sizeof size);
    if (size <= sizeof size || size > MOST_BYTES)
        return mf_fail(err, MEMFIT_INVALID, "a struct of size %zu\nInitialize it: = %s", size, macro);
    return MEMFIT_OK;
}

memfit_status mf_abi_read(void *into, const void *given, const char *macro, memfit_error *err)
{
    if (!given)
        return MEMFIT_OK;
    memfit_status status = mf_abi_check(given, macro, err);
    if (status)
        return status;
    size_t known, size;
    memcpy(&known, into, sizeof known);
    memcpy(&size, given, sizeof size);
    const unsigned char *bytes = given;
    for (size_t i = known; i < size; i++)
        if (bytes[i])
            return mf_fail(err, MEMFIT_UNSUPPORTED,
                           "%s: byte %zu is set, and this version of memfit knows %zu\nUse a library at least as new "
                           "as the headers",
                           macro, i, known);
    memcpy((char *)into + sizeof size, bytes + sizeof size, (size < known ? size : known) - sizeof size);
    return MEMFIT_OK;
}

void mf_abi_write(void *out, const void *from, size_t bytes)
{
    size_t size;
    memcpy(&size, out, sizeof size);
    memcpy((char *)out + sizeof size, (const char *)from + sizeof size, (size < bytes ? size : bytes) - sizeof size);
}

void mf_abi_put(void *list, size_t stride, size_t i, const void *from, size_t bytes)
{
    memcpy((char *)list + i * stride, from, stride < bytes ? stride : bytes);
}
