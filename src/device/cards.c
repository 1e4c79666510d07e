/*
 * cards.c: the table of real cards and the way to find one in it. One row a card; docs/cards.md has the sources.
 */
#include "device/cards.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

static const mf_card cards[] = {
    /* Pascal */
    {"gtx-1050-ti", "GeForce GTX 1050 Ti", 4096, 270, 112, 2.1, 2.1, 0, 61},
    {"gtx-1060", "GeForce GTX 1060 6GB", 6144, 280, 192, 4.4, 4.4, 0, 61},
    {"gtx-1070", "GeForce GTX 1070", 8192, 290, 256, 6.5, 6.5, 0, 61},
    {"gtx-1070-ti", "GeForce GTX 1070 Ti", 8192, 290, 256, 8.2, 8.2, 0, 61},
    {"gtx-1080", "GeForce GTX 1080", 8192, 300, 320, 8.9, 8.9, 0, 61},
    {"gtx-1080-ti", "GeForce GTX 1080 Ti", 11264, 310, 484, 11.3, 11.3, 0, 61},
    {"titan-xp", "TITAN Xp", 12288, 320, 548, 12.1, 12.1, 0, 61},
    {"p4", "Tesla P4", 7680, 300, 192, 5.5, 5.5, 0, 61},
    {"p40", "Tesla P40", 24576, 350, 346, 11.8, 11.8, 0, 61},
    {"p100", "Tesla P100 PCIe 16GB", 16384, 400, 732, 9.3, 18.7, 0, 60},
    /* Volta */
    {"titan-v", "TITAN V", 12288, 420, 653, 14.9, 110, 0, 70},
    {"v100", "Tesla V100 SXM2 16GB", 16384, 450, 900, 15.7, 125, 0, 70},
    {"v100-32gb", "Tesla V100 SXM2 32GB", 32768, 480, 900, 15.7, 125, 0, 70},
    /* Turing */
    {"gtx-1650", "GeForce GTX 1650", 4096, 330, 128, 3.0, 6.0, 0, 75},
    {"gtx-1660-ti", "GeForce GTX 1660 Ti", 6144, 350, 288, 5.4, 10.9, 0, 75},
    {"rtx-2060", "GeForce RTX 2060", 6144, 380, 336, 6.5, 52, 0, 75},
    {"rtx-2070", "GeForce RTX 2070", 8192, 390, 448, 7.5, 60, 0, 75},
    {"rtx-2080", "GeForce RTX 2080", 8192, 400, 448, 10.1, 81, 0, 75},
    {"rtx-2080-ti", "GeForce RTX 2080 Ti", 11264, 420, 616, 13.4, 108, 0, 75},
    {"titan-rtx", "TITAN RTX", 24576, 480, 672, 16.3, 131, 0, 75},
    {"t4", "Tesla T4", 15360, 480, 320, 8.1, 65, 0, 75},
    /* Ampere */
    {"rtx-3050", "GeForce RTX 3050 8GB", 8192, 470, 224, 9.1, 36, 36, 86},
    {"rtx-3060", "GeForce RTX 3060 12GB", 12288, 490, 360, 12.7, 51, 51, 86},
    {"rtx-3060-ti", "GeForce RTX 3060 Ti", 8192, 490, 448, 16.2, 65, 65, 86},
    {"rtx-3070", "GeForce RTX 3070", 8192, 500, 448, 20.3, 81, 81, 86},
    {"rtx-3070-ti", "GeForce RTX 3070 Ti", 8192, 500, 608, 21.7, 87, 87, 86},
    {"rtx-3080", "GeForce RTX 3080 10GB", 10240, 540, 760, 29.8, 119, 119, 86},
    {"rtx-3080-ti", "GeForce RTX 3080 Ti", 12288, 550, 912, 34.1, 136, 136, 86},
    {"rtx-3090", "GeForce RTX 3090", 24576, 640, 936, 35.6, 142, 142, 86},
    {"rtx-3090-ti", "GeForce RTX 3090 Ti", 24564, 640, 1008, 40.0, 160, 160, 86},
    {"rtx-a4000", "RTX A4000", 16376, 540, 448, 19.2, 77, 77, 86},
    {"rtx-a5000", "RTX A5000", 24564, 600, 768, 27.8, 111, 111, 86},
    {"rtx-a6000", "RTX A6000", 49140, 750, 768, 38.7, 155, 155, 86},
    {"a2", "A2", 15356, 480, 200, 4.5, 18, 18, 86},
    {"a10", "A10", 23028, 620, 600, 31.2, 125, 125, 86},
    {"a16", "A16 (one of four)", 15356, 500, 200, 4.5, 18, 18, 86},
    {"a30", "A30", 24576, 680, 933, 10.3, 165, 165, 80},
    {"a40", "A40", 46068, 740, 696, 37.4, 150, 150, 86},
    {"a100", "A100 SXM4 40GB", 40960, 800, 1555, 19.5, 312, 312, 80},
    {"a100-80gb", "A100 SXM4 80GB", 81920, 1000, 2039, 19.5, 312, 312, 80},
    /* Ada */
    {"rtx-4060", "GeForce RTX 4060", 8188, 520, 272, 15.1, 60, 60, 89},
    {"rtx-4060-ti", "GeForce RTX 4060 Ti 8GB", 8188, 530, 288, 22.1, 88, 88, 89},
    {"rtx-4060-ti-16gb", "GeForce RTX 4060 Ti 16GB", 16380, 560, 288, 22.1, 88, 88, 89},
    {"rtx-4070", "GeForce RTX 4070", 12282, 560, 504, 29.1, 117, 117, 89},
    {"rtx-4070-ti", "GeForce RTX 4070 Ti", 12282, 570, 504, 40.1, 160, 160, 89},
    {"rtx-4080", "GeForce RTX 4080", 16376, 620, 717, 48.7, 195, 195, 89},
    {"rtx-4090", "GeForce RTX 4090", 24564, 750, 1008, 82.6, 330, 330, 89},
    {"rtx-6000-ada", "RTX 6000 Ada Generation", 49140, 880, 960, 91.1, 364, 364, 89},
    {"l4", "L4", 23034, 620, 300, 30.3, 121, 121, 89},
    {"l40", "L40", 46068, 850, 864, 90.5, 181, 181, 89},
    {"l40s", "L40S", 46068, 850, 864, 91.6, 362, 362, 89},
    /* Hopper */
    {"h100-pcie", "H100 PCIe 80GB", 81559, 1150, 2039, 51, 756, 756, 90},
    {"h100", "H100 SXM5 80GB", 81559, 1150, 3352, 67, 989, 989, 90},
    {"h100-nvl", "H100 NVL 94GB", 95830, 1200, 3938, 60, 835, 835, 90},
    {"gh200", "GH200 96GB", 97871, 1250, 4022, 67, 989, 989, 90},
    {"h200", "H200 SXM 141GB", 143771, 1350, 4800, 67, 989, 989, 90},
    /* Blackwell */
    {"rtx-5060", "GeForce RTX 5060", 8151, 600, 448, 19.2, 77, 77, 120},
    {"rtx-5060-ti", "GeForce RTX 5060 Ti 16GB", 16311, 650, 448, 23.7, 95, 95, 120},
    {"rtx-5070", "GeForce RTX 5070", 12227, 760, 672, 30.9, 123, 123, 120},
    {"rtx-5070-ti", "GeForce RTX 5070 Ti", 16303, 780, 896, 43.9, 176, 176, 120},
    {"rtx-5080", "GeForce RTX 5080", 16303, 800, 960, 56.3, 225, 225, 120},
    {"rtx-5090", "GeForce RTX 5090", 32607, 950, 1792, 104.8, 419, 419, 120},
    {"rtx-pro-6000", "RTX PRO 6000 Blackwell", 97887, 1300, 1792, 125, 504, 504, 120},
    {"b200", "B200 SXM 180GB", 183359, 1600, 8000, 80, 2250, 2250, 100},
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
