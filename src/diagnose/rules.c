/* rules.c: the tables. Sources: CUDA toolkit release notes (tables 2 and 3), CUDA compatibility guide, cuDNN support
 * matrices, TensorFlow's list of tested build configurations, clang's table of GPU targets. As of autumn 2026. */
#include "diagnose/rules.h"

#include <stdio.h>
#include <stdlib.h>

#define V(...)                                                                                                         \
    {                                                                                                                  \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

mf_version mf_version_parse(const char *text)
{
    mf_version v = {{0}};
    for (unsigned i = 0; i < 4 && text && *text >= '0' && *text <= '9'; i++) {
        char *end;
        v.part[i] = (unsigned)strtoul(text, &end, 10);
        if (*end != '.')
            break;
        text = end + 1;
    }
    return v;
}

int mf_version_compare(mf_version a, mf_version b)
{
    for (unsigned i = 0; i < 4; i++)
        if (a.part[i] != b.part[i])
            return a.part[i] < b.part[i] ? -1 : 1;
    return 0;
}

char *mf_version_format(mf_version v, char *text, size_t bytes)
{
    if (v.part[2] || v.part[3])
        snprintf(text, bytes, v.part[0] > 300 ? "%u.%02u.%02u" : "%u.%u.%u", v.part[0], v.part[1], v.part[2]);
    else
        snprintf(text, bytes, v.part[0] > 300 ? "%u.%02u" : "%u.%u", v.part[0], v.part[1]);
    return text;
}

/* ---- drivers ---------------------------------------------------------------------------------------------- */

static const struct {
    unsigned major, minor, update;
    mf_version driver;
} toolkits[] = {
    {10, 0, 0, V(410, 48)},     {10, 1, 0, V(418, 39)},    {10, 2, 0, V(440, 33)},    {11, 0, 0, V(450, 51, 5)},
    {11, 0, 1, V(450, 51, 6)},  {11, 1, 0, V(455, 23)},    {11, 1, 1, V(455, 32)},    {11, 2, 0, V(460, 27, 3)},
    {11, 2, 1, V(460, 32, 3)},  {11, 3, 0, V(465, 19, 1)}, {11, 4, 0, V(470, 42, 1)}, {11, 4, 1, V(470, 57, 2)},
    {11, 4, 3, V(470, 82, 1)},  {11, 5, 0, V(495, 29, 5)}, {11, 6, 0, V(510, 39, 1)}, {11, 6, 1, V(510, 47, 3)},
    {11, 7, 0, V(515, 43, 4)},  {11, 7, 1, V(515, 48, 7)}, {11, 8, 0, V(520, 61, 5)}, {12, 0, 0, V(525, 60, 13)},
    {12, 0, 1, V(525, 85, 12)}, {12, 1, 0, V(530, 30, 2)}, {12, 2, 0, V(535, 54, 3)}, {12, 2, 1, V(535, 86, 9)},
    {12, 2, 2, V(535, 104, 5)}, {12, 3, 0, V(545, 23, 6)}, {12, 3, 1, V(545, 23, 8)}, {12, 4, 0, V(550, 54, 14)},
    {12, 4, 1, V(550, 54, 15)}, {12, 5, 0, V(555, 42, 2)}, {12, 5, 1, V(555, 42, 6)}, {12, 6, 0, V(560, 28, 3)},
    {12, 6, 1, V(560, 35, 3)},  {12, 6, 3, V(560, 35, 5)}, {12, 8, 0, V(570, 26)},    {12, 8, 1, V(570, 124, 6)},
    {12, 9, 0, V(575, 51, 3)},  {12, 9, 1, V(575, 57, 8)}, {13, 0, 0, V(580, 65, 6)}, {13, 0, 1, V(580, 82, 7)},
    {13, 0, 2, V(580, 95, 5)},  {13, 1, 0, V(590, 44, 1)}, {13, 1, 1, V(590, 48, 1)}, {13, 2, 0, V(595, 45, 4)},
    {13, 2, 1, V(595, 58, 3)},  {13, 2, 2, V(595, 71, 5)}, {13, 3, 0, V(610, 43, 2)},
};
enum { TOOLKIT_COUNT = sizeof toolkits / sizeof *toolkits };

bool mf_driver_of_toolkit(unsigned major, unsigned minor, unsigned update, mf_version *driver)
{
    bool found = false;
    for (size_t i = 0; i < TOOLKIT_COUNT; i++)
        if (toolkits[i].major == major && toolkits[i].minor == minor && toolkits[i].update <= update) {
            *driver = toolkits[i].driver;
            found = true;
        }
    return found;
}

/* Minor-version compatibility: any 11.x program runs from this driver on, and so forth. */
static const struct {
    unsigned major;
    mf_version driver;
} floors[] = {{11, V(450, 80, 2)}, {12, V(525, 60, 13)}, {13, V(580, 65, 6)}};

mf_driver_state mf_driver_for_toolkit(mf_version driver, unsigned major, unsigned minor, mf_version *wanted)
{
    mf_version own = {{0}}, floor = {{0}};
    bool known = mf_driver_of_toolkit(major, minor, 0, &own);
    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++)
        if (floors[i].major == major)
            floor = floors[i].driver;
    if (known && mf_version_compare(driver, own) >= 0) {
        *wanted = own;
        return MF_DRIVER_OK;
    }
    if (floor.part[0] && mf_version_compare(driver, floor) >= 0) {
        *wanted = known ? own : floor;
        return MF_DRIVER_MINOR;
    }
    *wanted = floor.part[0] ? floor : own;
    return MF_DRIVER_TOO_OLD;
}

mf_version mf_newest_cuda_of_driver(mf_version driver)
{
    mf_version newest = {{0}};
    for (size_t i = 0; i < TOOLKIT_COUNT; i++)
        if (mf_version_compare(driver, toolkits[i].driver) >= 0)
            newest = (mf_version)V(toolkits[i].major, toolkits[i].minor);
    return newest;
}

/* ---- generations ------------------------------------------------------------------------------------------ */

static const struct {
    unsigned capability;
    mf_version first, last;
} generations[] = {
    {30, V(4, 2), V(10, 2)},   {32, V(6, 0), V(10, 2)}, {35, V(5, 0), V(11, 8)}, {37, V(6, 5), V(11, 8)},
    {50, V(7, 0), V(12, 9)},   {52, V(7, 0), V(12, 9)}, {53, V(7, 0), V(12, 9)}, {60, V(8, 0), V(12, 9)},
    {61, V(8, 0), V(12, 9)},   {62, V(8, 0), V(12, 9)}, {70, V(9, 0), V(12, 9)}, {72, V(9, 1), V(12, 9)},
    {75, V(10, 0), V(0)},      {80, V(11, 0), V(0)},    {86, V(11, 1), V(0)},    {87, V(11, 4), V(0)},
    {88, V(13, 0), V(0)},      {89, V(11, 8), V(0)},    {90, V(11, 8), V(0)},    {100, V(12, 8), V(0)},
    {101, V(12, 8), V(12, 9)}, {103, V(12, 9), V(0)},   {107, V(13, 4), V(0)},   {110, V(13, 0), V(0)},
    {120, V(12, 8), V(0)},     {121, V(12, 9), V(0)},
};

bool mf_toolkits_of_capability(unsigned capability, mf_version *first, mf_version *last)
{
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++)
        if (generations[i].capability == capability) {
            *first = generations[i].first;
            *last = generations[i].last;
            return true;
        }
    return false;
}

/* ---- frameworks and cuDNN --------------------------------------------------------------------------------- */

static const mf_tensorflow_build builds[] = {
    {0, V(10, 0), V(7, 4), V(2, 7), V(3, 7)},   {1, V(10, 1), V(7, 6), V(2, 7), V(3, 7)},
    {2, V(10, 1), V(7, 6), V(3, 5), V(3, 8)},   {3, V(10, 1), V(7, 6), V(3, 5), V(3, 8)},
    {4, V(11, 0), V(8, 0), V(3, 6), V(3, 8)},   {5, V(11, 2), V(8, 1), V(3, 6), V(3, 9)},
    {6, V(11, 2), V(8, 1), V(3, 6), V(3, 9)},   {7, V(11, 2), V(8, 1), V(3, 7), V(3, 9)},
    {8, V(11, 2), V(8, 1), V(3, 7), V(3, 10)},  {9, V(11, 2), V(8, 1), V(3, 7), V(3, 10)},
    {10, V(11, 2), V(8, 1), V(3, 7), V(3, 10)}, {11, V(11, 2), V(8, 1), V(3, 7), V(3, 10)},
    {12, V(11, 8), V(8, 6), V(3, 8), V(3, 11)}, {13, V(11, 8), V(8, 6), V(3, 8), V(3, 11)},
    {14, V(11, 8), V(8, 7), V(3, 9), V(3, 11)}, {15, V(12, 2), V(8, 9), V(3, 9), V(3, 11)},
    {16, V(12, 3), V(8, 9), V(3, 9), V(3, 12)}, {17, V(12, 3), V(8, 9), V(3, 9), V(3, 12)},
    {18, V(12, 5), V(9, 3), V(3, 9), V(3, 12)}, {19, V(12, 5), V(9, 3), V(3, 9), V(3, 12)},
    {20, V(12, 5), V(9, 3), V(3, 9), V(3, 13)}, {21, V(12, 5), V(9, 3), V(3, 10), V(3, 13)},
};

const mf_tensorflow_build *mf_tensorflow_build_of(unsigned minor)
{
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        if (builds[i].minor == minor)
            return &builds[i];
    return NULL;
}

static const mf_cudnn_row cudnn_rows[] = {
    {V(8, 9, 0), V(8, 9, 99), V(12, 0), V(12, 2), V(525, 60, 13), 50, 90},
    {V(8, 9, 0), V(8, 9, 99), V(11, 0), V(11, 8), V(450, 80, 2), 50, 90},
    {V(9, 0, 0), V(9, 5, 99), V(12, 0), V(12, 6), V(525, 60, 13), 50, 90},
    {V(9, 0, 0), V(9, 5, 99), V(11, 0), V(11, 8), V(450, 80, 2), 50, 90},
    {V(9, 10, 0), V(9, 10, 99), V(12, 8), V(12, 9), V(570, 26), 100, 120},
    {V(9, 10, 0), V(9, 10, 99), V(12, 0), V(12, 9), V(525, 60, 13), 50, 90},
    {V(9, 10, 0), V(9, 10, 99), V(11, 8), V(11, 8), V(450, 80, 2), 50, 90},
    /* 9.17.0's page: no CUDA 11, nothing before Turing; Blackwell on CUDA 12 as in 9.10, from 12.8 on */
    {V(9, 17, 0), V(9, 17, 99), V(13, 0), V(13, 1), V(580, 65, 6), 75, 120},
    {V(9, 17, 0), V(9, 17, 99), V(12, 8), V(12, 9), V(570, 26), 100, 120},
    {V(9, 17, 0), V(9, 17, 99), V(12, 0), V(12, 9), V(525, 60, 13), 75, 90},
    /* 9.18 to 9.23: the release manifests (redistrib_9.21.0, 9.21.1, 9.23.1.json) have packages for CUDA 12 and 13
     * only; minors and drivers are those of minor-version compatibility, generations from 9.17's first on */
    {V(9, 18, 0), V(9, 23, 99), V(13, 0), V(13, 99), V(580, 65, 6), 75, 121},
    {V(9, 18, 0), V(9, 23, 99), V(12, 8), V(12, 99), V(570, 26), 100, 121},
    {V(9, 18, 0), V(9, 23, 99), V(12, 0), V(12, 99), V(525, 60, 13), 75, 90},
};
enum { CUDNN_COUNT = sizeof cudnn_rows / sizeof *cudnn_rows };

static bool between(mf_version v, mf_version least, mf_version most)
{
    return mf_version_compare(v, least) >= 0 && mf_version_compare(v, most) <= 0;
}

bool mf_cudnn_known(mf_version cudnn)
{
    for (size_t i = 0; i < CUDNN_COUNT; i++)
        if (between(cudnn, cudnn_rows[i].least, cudnn_rows[i].most))
            return true;
    return false;
}

const mf_cudnn_row *mf_cudnn_row_of(mf_version cudnn, mf_version cuda, unsigned capability)
{
    mf_version plain = V(cuda.part[0], cuda.part[1]);
    for (size_t i = 0; i < CUDNN_COUNT; i++) {
        const mf_cudnn_row *r = &cudnn_rows[i];
        if (between(cudnn, r->least, r->most) && between(plain, r->cuda_least, r->cuda_most) &&
            capability >= r->capability_least && capability <= r->capability_most)
            return r;
    }
    return NULL;
}

uint64_t mf_tensorflow_reserve(unsigned capability, uint64_t free_bytes)
{
    const uint64_t mib = UINT64_C(1) << 20;
    if (free_bytes && free_bytes < 2048 * mib)
        return 225 * mib;
    return (capability < 70 ? 500 : capability < 80 ? 1050 : capability < 90 ? 1536 : 1800) * mib;
}
