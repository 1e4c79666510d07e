/*
 * text_keys.c: see text_keys.h. Includes are found by their words alone: one in a comment, or in a branch that is not
 * taken, costs a compilation that was not needed, never one that was.
 */
#include "ops/cuda/text_keys.h"

#include <string.h>

/* Which text an include names; `at` stands behind the word. keys->count: none of the table. */
static unsigned named(const mf_text_keys *keys, const char *at)
{
    at += strspn(at, " \t");
    if (*at != '"' && *at != '<')
        return keys->count;
    size_t length = strcspn(++at, "\">\n");
    for (unsigned i = 0; i < keys->count; i++)
        if (strlen(keys->texts[i].name) == length && memcmp(keys->texts[i].name, at, length) == 0)
            return i;
    return keys->count;
}

static void add(mf_text_set *set, const mf_text_set *more)
{
    for (unsigned w = 0; w < MF_TEXT_WORDS; w++)
        set->bits[w] |= more->bits[w];
}

/* What `text` includes, with all that is known to be needed by that. */
static void add_included(const mf_text_keys *keys, const char *text, mf_text_set *set)
{
    static const char word[] = "include";
    for (const char *p = text; (p = strstr(p, word));) {
        p += sizeof word - 1;
        unsigned i = named(keys, p);
        if (i < keys->count)
            add(set, &keys->needs[i]);
    }
}

void mf_text_keys_make(mf_text_keys *keys, const cuda_text *texts, unsigned count)
{
    mf_cubin_key rest = mf_cubin_key_begin();
    *keys = (mf_text_keys){.texts = texts, .count = count < MF_MOST_TEXTS ? count : MF_MOST_TEXTS};
    for (unsigned i = keys->count; i < count; i++)
        mf_cubin_key_add(&rest, texts[i].text, strlen(texts[i].text));
    for (unsigned i = 0; i < keys->count; i++) {
        keys->own[i] = rest;
        mf_cubin_key_add(&keys->own[i], texts[i].name, strlen(texts[i].name) + 1);
        mf_cubin_key_add(&keys->own[i], texts[i].text, strlen(texts[i].text));
        keys->needs[i].bits[i / 64] = UINT64_C(1) << i % 64;
    }
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < keys->count; i++) {
            mf_text_set before = keys->needs[i];
            add_included(keys, texts[i].text, &keys->needs[i]);
            more = more || memcmp(&before, &keys->needs[i], sizeof before) != 0;
        }
    }
}

mf_cubin_key mf_text_keys_add(const mf_text_keys *keys, mf_cubin_key key, const char *text)
{
    mf_text_set set = {{0}};
    add_included(keys, text, &set);
    mf_cubin_key_add(&key, text, strlen(text));
    for (unsigned i = 0; i < keys->count; i++)
        if (set.bits[i / 64] >> i % 64 & 1)
            mf_cubin_key_add(&key, &keys->own[i], sizeof keys->own[i]);
    return key;
}
