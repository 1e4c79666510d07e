/* fuzz_state.c: any bytes as the state of a checkpoint (the member memfit.state), of every version that is read: the
 * metrics announced lie inside it. What else the file needs belongs to a trainer and is never called.
 * link: -no-pie -Wl,--unresolved-symbols=ignore-all
 */
#include "train/checkpoint.c" /* its reader is nobody else's */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char *copy = malloc(bytes ? bytes : 1);
    if (bytes)
        memcpy(copy, data, bytes);
    state_block b;
    const unsigned char *metrics;
    memfit_error err = {0};
    memfit_status status = read_block(copy, bytes, &b, &metrics, &err);
    if (status == MEMFIT_OK && (metrics < copy || b.metric_bytes > bytes || metrics + b.metric_bytes != copy + bytes))
        abort();
    if (status != MEMFIT_OK && !err.message[0])
        abort();
    free(copy);
    return 0;
}
