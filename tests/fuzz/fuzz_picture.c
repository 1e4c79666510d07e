/* fuzz_picture.c: any bytes as a picture: decoded and resized inside its room, or refused with a reason. The first byte says
 * how many channels and into what size. */
#include "data/resize.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 20, MOST_SIDE = 40 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static mf_picture_decoder *decoder;
    static float out[MOST_SIDE * MOST_SIDE * 4];
    memfit_error err = {0};
    if (!bytes || (!decoder && mf_picture_decoder_create(NULL, &decoder, NULL) != MEMFIT_OK))
        return 0;
    static const uint32_t channels[4] = {3, 1, 4, 3};
    mf_resize r = {.height = 1 + data[0] % MOST_SIDE,
                   .width = 1 + data[0] / 3 % MOST_SIDE,
                   .channels = channels[data[0] & 3],
                   .dtype = data[0] & 8 ? MF_U8 : MF_F32,
                   .out = out};
    unsigned char *copy = malloc(bytes); /* blocks of their own: reading past an end is seen */
    mf_room room = {.base = aligned_alloc(64, ROOM), .bytes = ROOM};
    memcpy(copy, data + 1, bytes - 1);
    mf_picture_input in = {.name = "f", .descriptor = -1, .data = copy, .bytes = bytes - 1};
    const mf_picture_sink sink = mf_resize_sink(&r);
    mf_picture_head head;
    mf_picture_look(&in, &head, &err);
    const mf_picture_size least = {data[0] & 16 ? r.width : 0, r.height};
    memfit_status status = mf_picture_decode(decoder, &in, r.channels, least, &room, &sink, &err);
    if (status != MEMFIT_OK && !err.message[0])
        abort();
    if (status == MEMFIT_OK && !mf_resize_is_whole(&r))
        abort();
    free(room.base);
    free(copy);
    return 0;
}
