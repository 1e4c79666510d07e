/*
 * nvml.c: own prototypes of the few NVML functions used, and the structs in all their versions.
 *
 * Process lists: v1 entries have 16 bytes, v2 and v3 entries 24 (GPU and compute instance added). The newest function
 * the library has is asked; its name tells the layout. A process can be in the compute and in the graphics list:
 * counted once.
 */
#include "device/nvml.h"

#include "base/error.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef int nvml_return; /* 0 is success */
typedef void *nvml_device;
enum {
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_NOT_SUPPORTED = 3,
    NVML_VERSION_MISMATCH = 18,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_GPU_IS_LOST = 15,
    NVML_FUNCTION_NOT_FOUND = 13
};
#define NVML_VALUE_NOT_AVAILABLE UINT64_MAX

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
} nvml_process_v1;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process_v2;
typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvml_pci;

struct mf_nvml {
    const memfit_host *host;
    mf_library library;
    nvml_return (*init)(void);
    nvml_return (*shutdown)(void);
    const char *(*error_string)(nvml_return);
    nvml_return (*driver_version)(char *, unsigned);
    nvml_return (*nvml_version)(char *, unsigned);
    nvml_return (*cuda_version)(int *);
    nvml_return (*device_count)(unsigned *);
    nvml_return (*by_index)(unsigned, nvml_device *);
    nvml_return (*name)(nvml_device, char *, unsigned);
    nvml_return (*uuid)(nvml_device, char *, unsigned);
    nvml_return (*pci)(nvml_device, nvml_pci *);
    nvml_return (*memory)(nvml_device, nvml_memory *);
    nvml_return (*memory_v2)(nvml_device, nvml_memory_v2 *);
    nvml_return (*capability)(nvml_device, int *, int *);
    nvml_return (*compute_mode)(nvml_device, int *);
    nvml_return (*mig_mode)(nvml_device, unsigned *, unsigned *);
    nvml_return (*display_active)(nvml_device, int *);
    nvml_return (*persistence)(nvml_device, int *);
    nvml_return (*ecc)(nvml_device, int *, int *);
    nvml_return (*compute_processes[3])(nvml_device, unsigned *, void *); /* v1, v2, v3 */
    nvml_return (*graphics_processes[3])(nvml_device, unsigned *, void *);
};

static memfit_status resolve(mf_nvml *n, memfit_error *err)
{
    const mf_symbol symbols[] = {
        {"nvmlInit_v2", &n->init, true},
        {"nvmlShutdown", &n->shutdown, true},
        {"nvmlErrorString", &n->error_string, true},
        {"nvmlSystemGetDriverVersion", &n->driver_version, true},
        {"nvmlSystemGetNVMLVersion", &n->nvml_version, false},
        {"nvmlSystemGetCudaDriverVersion", &n->cuda_version, false},
        {"nvmlDeviceGetCount_v2", &n->device_count, true},
        {"nvmlDeviceGetHandleByIndex_v2", &n->by_index, true},
        {"nvmlDeviceGetName", &n->name, true},
        {"nvmlDeviceGetUUID", &n->uuid, true},
        {"nvmlDeviceGetPciInfo_v3", &n->pci, false},
        {"nvmlDeviceGetMemoryInfo", &n->memory, true},
        {"nvmlDeviceGetMemoryInfo_v2", &n->memory_v2, false},
        {"nvmlDeviceGetCudaComputeCapability", &n->capability, false},
        {"nvmlDeviceGetComputeMode", &n->compute_mode, false},
        {"nvmlDeviceGetMigMode", &n->mig_mode, false},
        {"nvmlDeviceGetDisplayActive", &n->display_active, false},
        {"nvmlDeviceGetPersistenceMode", &n->persistence, false},
        {"nvmlDeviceGetEccMode", &n->ecc, false},
        {"nvmlDeviceGetComputeRunningProcesses", &n->compute_processes[0], false},
        {"nvmlDeviceGetComputeRunningProcesses_v2", &n->compute_processes[1], false},
        {"nvmlDeviceGetComputeRunningProcesses_v3", &n->compute_processes[2], false},
        {"nvmlDeviceGetGraphicsRunningProcesses", &n->graphics_processes[0], false},
        {"nvmlDeviceGetGraphicsRunningProcesses_v2", &n->graphics_processes[1], false},
        {"nvmlDeviceGetGraphicsRunningProcesses_v3", &n->graphics_processes[2], false},
    };
    return mf_library_resolve(&n->library, symbols, sizeof symbols / sizeof *symbols, err);
}

static memfit_status nvml_fail(mf_nvml *n, nvml_return code, const char *what, memfit_error *err)
{
    const char *cure =
        code == NVML_VERSION_MISMATCH
            ? "the kernel module and the libraries are of different driver versions: reboot, or reload the module"
        : code == NVML_DRIVER_NOT_LOADED ? "load the kernel module: sudo modprobe nvidia"
        : code == NVML_GPU_IS_LOST       ? "the card has fallen off the bus: see dmesg for Xid lines, then reboot"
                                         : "";
    return mf_fail(err, MEMFIT_DEVICE, "NVML: %s failed with code %d (%s)\n%s", what, code, n->error_string(code),
                   cure);
}

memfit_status mf_nvml_open(const memfit_host *host, const mf_finder *finder, mf_nvml **nvml, memfit_error *err)
{
    mf_nvml *n = mf_host_zalloc(host, sizeof *n);
    if (!n)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for NVML");
    n->host = host;
    memfit_status status = mf_library_open(finder, MF_LIBRARY_NVML, 0, &n->library, err);
    if (!status)
        status = resolve(n, err);
    if (!status) {
        nvml_return code = n->init();
        if (code)
            status = nvml_fail(n, code, "nvmlInit", err);
    }
    if (status) {
        mf_host_free(host, n, sizeof *n);
        return status;
    }
    *nvml = n;
    return MEMFIT_OK;
}

void mf_nvml_close(mf_nvml *nvml)
{
    if (!nvml)
        return;
    nvml->shutdown();
    mf_host_free(nvml->host, nvml, sizeof *nvml);
}

void mf_nvml_versions(mf_nvml *nvml, char driver[80], char library[80], int *cuda_version)
{
    driver[0] = library[0] = 0;
    *cuda_version = 0;
    if (nvml->driver_version(driver, 80))
        driver[0] = 0;
    if (!nvml->nvml_version || nvml->nvml_version(library, 80))
        library[0] = 0;
    if (!nvml->cuda_version || nvml->cuda_version(cuda_version))
        *cuda_version = 0;
}

memfit_status mf_nvml_card_count(mf_nvml *nvml, unsigned *count, memfit_error *err)
{
    nvml_return code = nvml->device_count(count);
    return code ? nvml_fail(nvml, code, "counting the cards", err) : MEMFIT_OK;
}

static void read_memory(mf_nvml *n, nvml_device device, mf_nvml_card *card)
{
    nvml_memory_v2 v2 = {.version = (unsigned)(sizeof v2 | 2u << 24)};
    nvml_memory v1 = {0};
    if (n->memory_v2 && n->memory_v2(device, &v2) == 0) {
        card->total_bytes = v2.total;
        card->used_bytes = v2.used;
        card->free_bytes = v2.free;
        card->reserved_bytes = v2.reserved;
        card->memory_known = true;
    } else if (n->memory(device, &v1) == 0) {
        card->total_bytes = v1.total;
        card->used_bytes = v1.used;
        card->free_bytes = v1.free;
        card->memory_known = true;
    }
}

memfit_status mf_nvml_card_get(mf_nvml *nvml, unsigned index, mf_nvml_card *card, memfit_error *err)
{
    nvml_device device;
    nvml_return code = nvml->by_index(index, &device);
    if (code)
        return nvml_fail(nvml, code, "opening a card", err);
    *card = (mf_nvml_card){.index = index,
                           .capability_major = -1,
                           .capability_minor = -1,
                           .compute_mode = -1,
                           .mig_enabled = -1,
                           .display_active = -1,
                           .persistence = -1,
                           .ecc_enabled = -1};
    if (nvml->name(device, card->name, sizeof card->name))
        card->name[0] = 0;
    if (nvml->uuid(device, card->uuid, sizeof card->uuid))
        card->uuid[0] = 0;
    nvml_pci pci = {0};
    if (nvml->pci && nvml->pci(device, &pci) == 0)
        snprintf(card->bus_id, sizeof card->bus_id, "%.31s", pci.bus_id);
    read_memory(nvml, device, card);
    int pending;
    unsigned mig, mig_pending;
    if (!nvml->capability || nvml->capability(device, &card->capability_major, &card->capability_minor))
        card->capability_major = card->capability_minor = -1;
    if (!nvml->compute_mode || nvml->compute_mode(device, &card->compute_mode))
        card->compute_mode = -1;
    if (nvml->mig_mode && nvml->mig_mode(device, &mig, &mig_pending) == 0)
        card->mig_enabled = mig != 0;
    if (!nvml->display_active || nvml->display_active(device, &card->display_active))
        card->display_active = -1;
    if (!nvml->persistence || nvml->persistence(device, &card->persistence))
        card->persistence = -1;
    if (!nvml->ecc || nvml->ecc(device, &card->ecc_enabled, &pending))
        card->ecc_enabled = -1;
    return MEMFIT_OK;
}

memfit_status mf_nvml_card_by_uuid(mf_nvml *nvml, const char *uuid, unsigned *index, memfit_error *err)
{
    unsigned count;
    memfit_status status = mf_nvml_card_count(nvml, &count, err);
    for (unsigned i = 0; !status && i < count; i++) {
        nvml_device device;
        char text[80];
        if (nvml->by_index(i, &device) == 0 && nvml->uuid(device, text, sizeof text) == 0 && strcmp(text, uuid) == 0) {
            *index = i;
            return MEMFIT_OK;
        }
    }
    return status ? status : mf_fail(err, MEMFIT_NOT_FOUND, "NVML knows no card %s", uuid);
}

static void process_name(mf_nvml_process *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", p->pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, p->name, sizeof p->name - 1);
    close(fd);
    p->name[n > 0 ? n : 0] = 0;
    p->name[strcspn(p->name, "\n")] = 0;
}

/* Adds the processes of one kind; known pids are not added again. */
static void add_processes(mf_nvml *n, nvml_device device, bool graphics, mf_nvml_process *list, size_t most,
                          size_t *count)
{
    enum { MOST = 256 };
    union {
        nvml_process_v1 v1[MOST];
        nvml_process_v2 v2[MOST];
    } raw;
    nvml_return (**functions)(nvml_device, unsigned *, void *) =
        graphics ? n->graphics_processes : n->compute_processes;
    unsigned got = 0;
    int version = 2;
    nvml_return code = NVML_FUNCTION_NOT_FOUND;
    for (; version >= 0; version--) { /* a newer library in front of an older driver has the name, not the function */
        got = MOST;
        if (functions[version] && (code = functions[version](device, &got, &raw)) != NVML_FUNCTION_NOT_FOUND)
            break;
    }
    if (version < 0 || code)
        return;
    for (unsigned i = 0; i < got && i < MOST; i++) {
        unsigned pid = version ? raw.v2[i].pid : raw.v1[i].pid;
        uint64_t bytes = version ? raw.v2[i].bytes : raw.v1[i].bytes;
        bool known = false;
        for (size_t k = 0; k < *count && k < most; k++)
            known |= list[k].pid == pid;
        if (known)
            continue;
        if (*count < most) {
            mf_nvml_process *p = &list[*count];
            *p = (mf_nvml_process){.pid = pid, .graphics = graphics, .bytes_known = bytes != NVML_VALUE_NOT_AVAILABLE};
            p->bytes = p->bytes_known ? bytes : 0;
            process_name(p);
        }
        ++*count;
    }
}

memfit_status mf_nvml_processes(mf_nvml *nvml, unsigned index, mf_nvml_process *list, size_t most, size_t *count,
                                memfit_error *err)
{
    nvml_device device;
    nvml_return code = nvml->by_index(index, &device);
    if (code)
        return nvml_fail(nvml, code, "opening a card", err);
    *count = 0;
    add_processes(nvml, device, false, list, most, count);
    add_processes(nvml, device, true, list, most, count);
    return MEMFIT_OK;
}
