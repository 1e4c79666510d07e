/* holdings.c: see holdings.h. C and libc only: the library that is loaded into other people's programs sorts its owners here, too. */
#include "govern/holdings.h"

#include <string.h>

void mf_holdings_add(mf_facts_owner list[MF_FACTS_NAMED], size_t *count, const mf_facts_owner *owner)
{
    enum { LAST = MF_FACTS_NAMED - 1 };
    if (!owner->bytes)
        return;
    mf_facts_owner in = *owner;
    for (size_t i = 0; i < *count && i < LAST; i++)
        if (in.bytes > list[i].bytes) {
            mf_facts_owner out = list[i];
            list[i] = in;
            in = out;
        }
    if (*count < LAST) {
        list[(*count)++] = in;
        return;
    }
    if (*count == LAST)
        list[LAST] = (mf_facts_owner){.card = in.card, .memory_class = MF_MEMORY_PROCESS};
    list[LAST].bytes += in.bytes;
    list[LAST].count += in.count;
    strncpy(list[LAST].library, "others", MF_FACTS_LIBRARY - 1);
    *count = MF_FACTS_NAMED;
}

static const mf_share_slot *slot_of(const mf_share_file *file, uint64_t owner)
{
    uint32_t most = __atomic_load_n(&file->slots_ever, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < most && i < MF_SHARE_SLOTS; i++)
        if (__atomic_load_n(&file->slots[i].owner, __ATOMIC_SEQ_CST) == owner)
            return &file->slots[i];
    return NULL;
}

static void look_at(mf_holdings *now, const mf_facts_process *p, const mf_share_slot *slot)
{
    uint32_t count = __atomic_load_n(&p->owner_count, __ATOMIC_ACQUIRE);
    for (uint32_t k = 0; k < count && k < MF_FACTS_OWNERS; k++) {
        mf_facts_owner o = mf_facts_owner_now(&p->owners[k]);
        if (o.card != now->card || o.bytes >> 63) /* amid a change */
            continue;
        now->bytes += o.bytes;
        mf_holdings_add(now->owners, &now->count, &o);
    }
    mf_facts_owner beside = {.bytes = __atomic_load_n(&slot->card[now->card].beside, __ATOMIC_SEQ_CST), .count = 1};
    beside.pid = (uint32_t)(p->owner >> 32);
    beside.card = (uint16_t)now->card;
    beside.memory_class = MF_MEMORY_MODULE;
    now->bytes += beside.bytes;
    mf_holdings_add(now->owners, &now->count, &beside);
}

void mf_holdings_look(mf_holdings *most, const mf_facts *facts, const mf_share *share)
{
    for (unsigned c = 0; c < MF_SHARE_CARDS; c++) {
        mf_holdings now = {.card = c};
        for (int i = 0; i < MF_FACTS_PROCESSES; i++) {
            uint64_t owner = __atomic_load_n(&facts->processes[i].owner, __ATOMIC_SEQ_CST);
            const mf_share_slot *slot = owner ? slot_of(share->file, owner) : NULL;
            if (slot)
                look_at(&now, &facts->processes[i], slot);
        }
        if (now.bytes > most->bytes)
            *most = now;
    }
}
