/*
 * card_file.c: what the cards here say of themselves, as a file that people send so that the table of cards
 * (plan/cards.c) gets the row, or a measured figure in place of an estimated one.
 *
 * Each card is opened for a moment: what a context costs is known only once one is there. The file holds what a row
 * needs and nothing that identifies a machine or a card: no UUID, no bus address, no names of users or hosts. What
 * could not be asked is null.
 */
#include "base/error.h"
#include "base/json.h"
#include "base/os.h"
#include "device/cuda_driver.h"
#include "device/nvml.h"
#include "memfit/device.h"
#include "memfit/doctor.h"
#include "plan/cards.h"

#include <string.h>

enum { FILE_VERSION = 1, MOST_CARDS = 16 };

/* Of cuDeviceGetAttribute. */
enum { CLOCK_KHZ = 13, MULTIPROCESSORS = 16, MEMORY_CLOCK_KHZ = 36, MEMORY_BUS_BITS = 37, L2_BYTES = 38 };

static void put_known(mf_json_writer *w, const char *key, uint64_t value)
{
    if (value)
        mf_json_put_u64(w, key, value);
    else
        mf_json_put_null(w, key);
}

/* 0: the driver does not say. No context is needed for this. */
static int attribute(const mf_cuda_driver *driver, int which, int index)
{
    cu_device device;
    int value = 0;
    if (driver->device_get(&device, index) != CU_SUCCESS ||
        driver->device_attribute(&value, which, device) != CU_SUCCESS || value < 0)
        return 0;
    return value;
}

static void put_attributes(mf_json_writer *w, const mf_cuda_driver *driver, int index)
{
    int major = attribute(driver, CU_ATTRIBUTE_CAPABILITY_MAJOR, index);
    int clock = attribute(driver, MEMORY_CLOCK_KHZ, index), bus = attribute(driver, MEMORY_BUS_BITS, index);
    put_known(w, "capability", (uint64_t)(major * 10 + attribute(driver, CU_ATTRIBUTE_CAPABILITY_MINOR, index)));
    put_known(w, "multiprocessors", (uint64_t)attribute(driver, MULTIPROCESSORS, index));
    put_known(w, "clock_khz", (uint64_t)attribute(driver, CLOCK_KHZ, index));
    put_known(w, "memory_clock_khz", (uint64_t)clock);
    put_known(w, "memory_bus_bits", (uint64_t)bus);
    put_known(w, "l2_bytes", (uint64_t)attribute(driver, L2_BYTES, index));
    if (clock && bus) /* two transfers a clock, eight bits a byte */
        mf_json_put_double(w, "bandwidth_gbs", 2.0 * clock * 1e3 * bus / 8 / 1e9);
    else
        mf_json_put_null(w, "bandwidth_gbs");
}

static void put_row(mf_json_writer *w, const char *name)
{
    const mf_card *row = mf_card_find(name);
    if (!row) {
        mf_json_put_null(w, "in_table");
        return;
    }
    mf_json_open(w, "in_table", '{');
    mf_json_put_string(w, "name", row->name);
    mf_json_put_u64(w, "memory_mib", row->memory_mib);
    mf_json_put_u64(w, "fixed_mib", row->fixed_mib);
    mf_json_put_double(w, "bandwidth_gbs", row->bandwidth_gbs);
    mf_json_close(w, '}');
}

static void put_card(mf_json_writer *w, const mf_cuda_driver *driver, mf_nvml *nvml, const memfit_device_info *listed,
                     int index)
{
    memfit_device *device = NULL;
    memfit_device_info info = *listed;
    mf_nvml_card card = {0};
    memfit_error err;
    unsigned at;
    mf_json_open(w, NULL, '{');
    mf_json_put_string(w, "name", listed->model);
    memfit_status status = memfit_device_open(listed->name, NULL, &device, &err);
    if (!status)
        status = memfit_device_get_info(device, &info, &err);
    if (nvml && (mf_nvml_card_by_uuid(nvml, listed->uuid, &at, NULL) || mf_nvml_card_get(nvml, at, &card, NULL)))
        card = (mf_nvml_card){0};
    put_known(w, "memory_bytes", card.total_bytes ? card.total_bytes : info.total_bytes);
    put_known(w, "reserved_bytes", card.reserved_bytes);
    put_known(w, "context_bytes",
              !status && info.fixed_bytes > info.granularity_bytes ? info.fixed_bytes - info.granularity_bytes : 0);
    if (status)
        mf_json_put_string(w, "not_opened", err.message);
    put_attributes(w, driver, index);
    put_row(w, listed->model);
    mf_json_close(w, '}');
    memfit_device_close(device, NULL);
}

/* The CUDA cards among the devices, in CUDA's order. */
static size_t list_cards(memfit_device_info list[MOST_CARDS])
{
    memfit_device_info all[MOST_CARDS + 8];
    size_t count = 0, cards = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i] = (memfit_device_info)MEMFIT_DEVICE_INFO;
    if (memfit_device_list(all, sizeof *all, sizeof all / sizeof *all, &count, NULL))
        return 0;
    for (size_t i = 0; i < count && i < sizeof all / sizeof *all && cards < MOST_CARDS; i++)
        if (strncmp(all[i].name, "cuda:", 5) == 0)
            list[cards++] = all[i];
    return cards;
}

memfit_status memfit_doctor_save_cards(const char *path, memfit_error *err)
{
    memfit_device_info list[MOST_CARDS];
    mf_cuda_driver driver;
    memfit_status status = mf_cuda_open(mf_finder_default(), &driver, err);
    if (status)
        return status;
    size_t count = list_cards(list);
    if (!count)
        return mf_fail(err, MEMFIT_NOT_FOUND, "no NVIDIA card here: there is nothing to write");
    mf_outfile out;
    status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    mf_nvml *nvml = NULL;
    char version[80] = "", library[80] = "";
    int cuda = 0;
    if (mf_nvml_open(NULL, mf_finder_default(), &nvml, NULL))
        nvml = NULL;
    else
        mf_nvml_versions(nvml, version, library, &cuda);
    mf_json_writer w;
    mf_json_begin(&w, out.file);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "format", "memfit cards");
    mf_json_put_u64(&w, "version", FILE_VERSION);
    mf_json_put_string(&w, "memfit", memfit_version());
    mf_json_put_string(&w, "driver", version);
    put_known(&w, "cuda", (uint64_t)cuda);
    mf_json_open(&w, "cards", '[');
    for (size_t i = 0; i < count; i++)
        put_card(&w, &driver, nvml, &list[i], (int)i);
    mf_json_close(&w, ']');
    mf_json_close(&w, '}');
    mf_json_end(&w);
    mf_nvml_close(nvml);
    return mf_os_out_commit(&out, err);
}
