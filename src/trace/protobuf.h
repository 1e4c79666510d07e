/*
 * protobuf.h: messages of Google's protocol buffers, written. A message is put together in the caller's memory, or only
 * counted: a message inside another begins with its length, so long ones are counted first and then written.
 */
#ifndef MF_TRACE_PROTOBUF_H
#define MF_TRACE_PROTOBUF_H

#include <stdint.h>
#include <string.h>

typedef struct mf_proto {
    unsigned char *data;
    size_t room, length; /* length: what was wanted; what does not fit is not written */
} mf_proto;

static inline void mf_proto_byte(mf_proto *p, unsigned char b)
{
    if (p->length < p->room)
        p->data[p->length] = b;
    p->length++;
}

static inline void mf_proto_varint(mf_proto *p, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        mf_proto_byte(p, (unsigned char)(v | 128));
    mf_proto_byte(p, (unsigned char)v);
}

static inline void mf_proto_number(mf_proto *p, unsigned field, uint64_t v)
{
    mf_proto_varint(p, (uint64_t)field << 3);
    mf_proto_varint(p, v);
}

/* The head of a field of `bytes` bytes: a text, or a message. */
static inline void mf_proto_head(mf_proto *p, unsigned field, size_t bytes)
{
    mf_proto_varint(p, (uint64_t)field << 3 | 2);
    mf_proto_varint(p, bytes);
}

static inline void mf_proto_bytes(mf_proto *p, unsigned field, const void *data, size_t bytes)
{
    mf_proto_head(p, field, bytes);
    if (p->length <= p->room && bytes <= p->room - p->length)
        memcpy(p->data + p->length, data, bytes);
    p->length += bytes;
}

static inline void mf_proto_text(mf_proto *p, unsigned field, const char *text)
{
    mf_proto_bytes(p, field, text, strlen(text));
}

static inline void mf_proto_message(mf_proto *p, unsigned field, const mf_proto *message)
{
    mf_proto_bytes(p, field, message->data, message->length);
}

#endif
