/* cuda_driver.c: opens libcuda, resolves its functions, turns its codes into errors people can act on. */
#include "device/cuda_driver.h"

#include "base/error.h"

#include <string.h>

#define LOST                                                                                                           \
    "nothing on the card can be reached any more by this process: dmesg (lines with Xid) and nvidia-smi say why"

static const struct {
    cu_result code;
    const char *cure;
} cures[] = {
    {CU_ERROR_STUB_LIBRARY,
     "a stub libcuda was loaded, made for linking only: take the stubs folder out of LD_LIBRARY_PATH"},
    {CU_ERROR_NO_DEVICE, "no card is visible: see nvidia-smi, and CUDA_VISIBLE_DEVICES"},
    {CU_ERROR_SYSTEM_NOT_READY,
     "the system is not ready: is the fabric manager running? systemctl status nvidia-fabricmanager"},
    {CU_ERROR_SYSTEM_DRIVER_MISMATCH,
     "kernel module and libcuda are of different versions: reboot, or reload the module"},
    {CU_ERROR_ECC_UNCORRECTABLE, LOST "; its memory has an error that cannot be corrected: nvidia-smi -q -d ECC"},
    {CU_ERROR_ILLEGAL_ADDRESS, LOST},
    {CU_ERROR_LAUNCH_TIMEOUT, LOST "; a watchdog ended a kernel: is a display attached to it?"},
    {CU_ERROR_CONTEXT_IS_DESTROYED, LOST},
    {CU_ERROR_LAUNCH_FAILED, LOST},
    {CU_ERROR_UNKNOWN, LOST},
    {CU_ERROR_COMPAT_NOT_SUPPORTED, "the forward-compatibility libcuda does not serve this card: use the driver's own"},
};

memfit_status mf_cuda_fail(const mf_cuda_driver *driver, cu_result code, const char *what, memfit_error *err)
{
    const char *name = NULL, *cure = "";
    if (!driver->error_name || driver->error_name(code, &name) != CU_SUCCESS || !name)
        name = "?";
    for (size_t i = 0; i < sizeof cures / sizeof *cures; i++)
        if (cures[i].code == code)
            cure = cures[i].cure;
    return mf_fail(err, code == CU_ERROR_OUT_OF_MEMORY ? MEMFIT_OUT_OF_MEMORY : MEMFIT_DEVICE,
                   "CUDA: %s failed: %s (%d)\n%s", what, name, code, cure);
}

memfit_status mf_cuda_open(const mf_finder *finder, mf_cuda_driver *driver, memfit_error *err)
{
    memset(driver, 0, sizeof *driver);
    memfit_status status = mf_library_open(finder, MF_LIBRARY_CUDA, 0, &driver->library, err);
    if (status)
        return status;
    const mf_symbol symbols[] = {
#define X(member, name, required, arguments) {name, &driver->member, required},
        MF_CUDA_LIST(X)
#undef X
    };
    status = mf_library_resolve(&driver->library, symbols, sizeof symbols / sizeof *symbols, err);
    if (status)
        return status;
    if (!driver->primary_release)
        driver->primary_release = driver->primary_release_old;
    if (!driver->device_uuid)
        driver->device_uuid = driver->device_uuid_old;
    cu_result code = driver->init(0);
    if (code == CU_SUCCESS)
        code = driver->driver_version(&driver->version);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(driver, code, "starting the driver", err);
    return MEMFIT_OK;
}
