/*
 * cards.c: the table of real cards and the way to find one in it. One row a card; docs/cards.md has the source of every
 * figure, the formulas that join them (bandwidth from bus and data rate, rates from lanes and clocks) and the rule of
 * the estimated fixed costs. tests/unit/test_cards.c reads that page: a row here that differs from it fails.
 */
#include "plan/cards.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

static const mf_card cards[] = {
    /* Pascal */
    {"gtx-1050-ti", "GeForce GTX 1050 Ti", 4096, 270, 112, 2.1, 2.1, 0, 61},
    {"gtx-1060", "GeForce GTX 1060 6GB", 6144, 280, 192, 4.4, 4.4, 0, 61},
    {"gtx-1070", "GeForce GTX 1070", 8192, 300, 256, 6.5, 6.5, 0, 61},
    {"gtx-1070-ti", "GeForce GTX 1070 Ti", 8192, 310, 256, 8.2, 8.2, 0, 61},
    {"gtx-1080", "GeForce GTX 1080", 8192, 310, 320, 8.9, 8.9, 0, 61},
    {"gtx-1080-ti", "GeForce GTX 1080 Ti", 11264, 340, 484, 11.3, 11.3, 0, 61},
    {"titan-xp", "TITAN Xp", 12288, 340, 548, 12.1, 12.1, 0, 61},
    {"p4", "Tesla P4", 7680, 310, 192, 5.7, 5.7, 0, 61},
    {"p40", "Tesla P40", 24576, 340, 347, 11.8, 11.8, 0, 61},
    {"p100", "Tesla P100 PCIe 16GB", 16384, 420, 732, 9.5, 19.1, 0, 60},
    /* Volta */
    {"titan-v", "TITAN V", 12288, 490, 651, 14.9, 119.2, 0, 70},
    {"v100", "Tesla V100 SXM2 16GB", 16384, 490, 899, 15.7, 125.3, 0, 70},
    {"v100-32gb", "Tesla V100 SXM2 32GB", 32768, 490, 898, 15.7, 125.3, 0, 70},
    /* Turing */
    {"gtx-1650", "GeForce GTX 1650", 4096, 290, 128, 3, 6, 0, 75},
    {"gtx-1660-ti", "GeForce GTX 1660 Ti", 6144, 320, 288, 5.4, 10.9, 0, 75},
    {"rtx-2060", "GeForce RTX 2060", 6144, 340, 336, 6.5, 25.8, 0, 75},
    {"rtx-2070", "GeForce RTX 2070", 8192, 360, 448, 7.5, 29.9, 0, 75},
    {"rtx-2080", "GeForce RTX 2080", 8192, 390, 448, 10.1, 40.3, 0, 75},
    {"rtx-2080-ti", "GeForce RTX 2080 Ti", 11264, 460, 616, 13.4, 53.8, 0, 75},
    {"titan-rtx", "TITAN RTX", 24576, 470, 672, 16.3, 130.5, 0, 75},
    {"t4", "Tesla T4", 15360, 370, 320, 8.1, 65.1, 0, 75},
    /* Ampere */
    {"rtx-3050", "GeForce RTX 3050 8GB", 8192, 390, 224, 9.1, 18.2, 18.2, 86},
    {"rtx-3060", "GeForce RTX 3060 12GB", 12288, 420, 360, 12.7, 25.5, 25.5, 86},
    {"rtx-3060-ti", "GeForce RTX 3060 Ti", 8192, 450, 448, 16.2, 32.4, 32.4, 86},
    {"rtx-3070", "GeForce RTX 3070", 8192, 470, 448, 20.3, 40.6, 40.6, 86},
    {"rtx-3070-ti", "GeForce RTX 3070 Ti", 8192, 480, 608, 21.7, 43.5, 43.5, 86},
    {"rtx-3080", "GeForce RTX 3080 10GB", 10240, 540, 760, 29.8, 59.5, 59.5, 86},
    {"rtx-3080-ti", "GeForce RTX 3080 Ti", 12288, 570, 912, 34.1, 68.2, 68.2, 86},
    {"rtx-3090", "GeForce RTX 3090", 24576, 580, 936, 35.6, 71.2, 71.2, 86},
    {"rtx-3090-ti", "GeForce RTX 3090 Ti", 24564, 580, 1008, 40, 80, 80, 86},
    {"rtx-a4000", "RTX A4000", 16376, 480, 448, 19.2, 76.7, 76.7, 86},
    {"rtx-a5000", "RTX A5000", 24564, 520, 768, 27.8, 111.1, 111.1, 86},
    {"rtx-a6000", "RTX A6000", 49140, 580, 768, 38.7, 154.8, 154.8, 86},
    {"a2", "A2", 15356, 360, 200, 4.5, 18.1, 18.1, 86},
    {"a10", "A10", 23028, 550, 600, 31.2, 125, 125, 86},
    {"a16", "A16 (one of four)", 15356, 360, 200, 4.5, 18, 18, 86},
    {"a30", "A30", 24576, 860, 933, 10.3, 165.2, 165.2, 80},
    {"a40", "A40", 46068, 580, 696, 37.4, 149.7, 149.7, 86},
    {"a100", "A100 SXM4 40GB", 40960, 1060, 1555, 19.5, 311.9, 311.9, 80},
    {"a100-80gb", "A100 SXM4 80GB", 81920, 1060, 2039, 19.5, 311.9, 311.9, 80},
    /* Ada */
    {"rtx-4060", "GeForce RTX 4060", 8188, 560, 272, 15.1, 30.2, 30.2, 89},
    {"rtx-4060-ti", "GeForce RTX 4060 Ti 8GB", 8188, 590, 288, 22.1, 44.1, 44.1, 89},
    {"rtx-4060-ti-16gb", "GeForce RTX 4060 Ti 16GB", 16380, 590, 288, 22.1, 44.1, 44.1, 89},
    {"rtx-4070", "GeForce RTX 4070", 12282, 630, 504, 29.1, 58.3, 58.3, 89},
    {"rtx-4070-ti", "GeForce RTX 4070 Ti", 12282, 670, 504, 40.1, 80.2, 80.2, 89},
    {"rtx-4080", "GeForce RTX 4080", 16376, 720, 717, 48.7, 97.5, 97.5, 89},
    {"rtx-4090", "GeForce RTX 4090", 24564, 880, 1008, 82.6, 165.2, 165.2, 89},
    {"rtx-6000-ada", "RTX 6000 Ada Generation", 49140, 920, 960, 91.1, 364.2, 364.2, 89},
    {"l4", "L4", 23034, 670, 300, 30.3, 121.2, 121.2, 89},
    {"l40", "L40", 46068, 920, 864, 90.5, 181.1, 181.1, 89},
    {"l40s", "L40S", 46068, 920, 864, 91.6, 362.1, 362.1, 89},
    /* Hopper */
    {"h100-pcie", "H100 PCIe 80GB", 81559, 970, 2039, 51.2, 756, 756, 90},
    {"h100", "H100 SXM5 80GB", 81559, 1040, 3361, 66.9, 989.4, 989.4, 90},
    {"h100-nvl", "H100 NVL 94GB", 95830, 1040, 3940, 60.3, 835, 835, 90},
    {"h200", "H200 SXM 141GB", 143771, 1151, 4800, 66.9, 989.4, 989.4, 90},
    /* Blackwell */
    {"rtx-5060", "GeForce RTX 5060", 8151, 590, 448, 19.2, 38.4, 38.4, 120},
    {"rtx-5060-ti", "GeForce RTX 5060 Ti 16GB", 16311, 610, 448, 23.7, 47.4, 47.4, 120},
    {"rtx-5070", "GeForce RTX 5070", 12227, 650, 672, 30.9, 61.7, 61.7, 120},
    {"rtx-5070-ti", "GeForce RTX 5070 Ti", 16303, 710, 896, 43.9, 87.9, 87.9, 120},
    {"rtx-5080", "GeForce RTX 5080", 16303, 750, 960, 56.3, 112.6, 112.6, 120},
    {"rtx-5090", "GeForce RTX 5090", 32607, 1010, 1792, 104.8, 209.5, 209.5, 120},
    {"rtx-pro-6000", "RTX PRO 6000 Blackwell", 97887, 1070, 1792, 126, 503.8, 503.8, 120},
    {"b200", "B200 SXM 180GB", 183359, 1090, 7700, 74.4, 2250, 2250, 100},
};
enum { CARD_COUNT = sizeof cards / sizeof *cards };

uint32_t mf_card_count(void)
{
    return CARD_COUNT;
}

const mf_card *mf_card_at(uint32_t index)
{
    return index < CARD_COUNT ? &cards[index] : NULL;
}

/* Letters and digits only, lower case, without the maker's names: "NVIDIA GeForce RTX 3080" is "rtx3080". */
static void plain_name(const char *name, char *text, size_t bytes)
{
    static const char *const noise[] = {"nvidia", "geforce", "tesla", "quadro"};
    size_t n = 0;
    for (; *name && n + 1 < bytes; name++)
        if (isalnum((unsigned char)*name))
            text[n++] = (char)tolower((unsigned char)*name);
    text[n] = '\0';
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
            size_t m = strlen(noise[i]);
            if (strncmp(text, noise[i], m) == 0) {
                memmove(text, text + m, strlen(text + m) + 1);
                again = true;
            }
        }
    }
}

const mf_card *mf_card_find(const char *name)
{
    char wanted[64], have[64];
    plain_name(name, wanted, sizeof wanted);
    for (uint32_t i = 0; wanted[0] && i < CARD_COUNT; i++) {
        plain_name(cards[i].name, have, sizeof have);
        if (strcmp(wanted, have) == 0)
            return &cards[i];
        plain_name(cards[i].title, have, sizeof have);
        if (strcmp(wanted, have) == 0)
            return &cards[i];
    }
    return NULL;
}

/* People say 8GB of what has 8188 to 8192 MiB, and GB and GiB alike. */
static bool same_size(uint32_t memory_mib, uint64_t bytes)
{
    double there = (double)memory_mib * 1048576.0, asked = (double)bytes;
    return there > asked * 0.96 && there < asked * 1.08;
}

static double lower(double a, double b)
{
    return a < b ? a : b;
}

void mf_card_of_size(uint64_t bytes, const char *title, mf_card *card)
{
    uint32_t nearest = 0;
    bool found = false;
    for (uint32_t i = 0; i < CARD_COUNT; i++) {
        const mf_card *c = &cards[i];
        uint64_t gap = c->memory_mib > bytes >> 20 ? c->memory_mib - (bytes >> 20) : (bytes >> 20) - c->memory_mib;
        uint64_t least = cards[nearest].memory_mib > bytes >> 20 ? cards[nearest].memory_mib - (bytes >> 20)
                                                                 : (bytes >> 20) - cards[nearest].memory_mib;
        nearest = gap < least ? i : nearest;
        if (!same_size(c->memory_mib, bytes))
            continue;
        if (!found) {
            *card = *c;
            found = true;
        }
        card->memory_mib = c->memory_mib < card->memory_mib ? c->memory_mib : card->memory_mib;
        card->fixed_mib = c->fixed_mib > card->fixed_mib ? c->fixed_mib : card->fixed_mib;
        card->bandwidth_gbs = lower(card->bandwidth_gbs, c->bandwidth_gbs);
        card->fp32_tflops = lower(card->fp32_tflops, c->fp32_tflops);
        card->fp16_tflops = lower(card->fp16_tflops, c->fp16_tflops);
        card->bf16_tflops = lower(card->bf16_tflops, c->bf16_tflops);
        card->capability = c->capability < card->capability ? c->capability : card->capability;
    }
    if (!found) {
        *card = cards[nearest];
        card->memory_mib = bytes >> 20 < UINT32_MAX ? (uint32_t)(bytes >> 20) : UINT32_MAX;
    }
    card->name = card->title = title;
}

const char *mf_card_nearest(const char *name)
{
    const char *words[CARD_COUNT + 1];
    for (uint32_t i = 0; i < CARD_COUNT; i++)
        words[i] = cards[i].name;
    words[CARD_COUNT] = NULL;
    return mf_nearest(name, words);
}

uint64_t mf_card_memory_bytes(const mf_card *card)
{
    return (uint64_t)card->memory_mib << 20;
}

uint64_t mf_card_fixed_bytes(const mf_card *card)
{
    return (uint64_t)card->fixed_mib << 20;
}
