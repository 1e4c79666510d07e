/*
 * foreign.c: see foreign.h. PyTorch's files are archives too, whose entries lie under a folder of the file's name:
 *
 *   NAME/code/__torch__/...     TorchScript
 *   NAME/models/model.json      an exported program (.pt2)
 *   NAME/data.pkl               torch.save: of weights, or of a whole module (then the pickle names torch.nn.modules)
 *
 * Names are looked for in the archive's directory at its end, and pickles, which are stored as they are, in the whole
 * file: what is said here does not depend on the archive being sound.
 */
#include "model/keras/foreign.h"

#include "base/error.h"

#include <string.h>

static const char reads[] = "memfit plan reads Keras models: .keras, .h5 and the JSON of model.to_json()";

static const char records[] = "record a step with memfit.torch_trace in Python, and plan the trace: --runtime torch";

static bool holds(const unsigned char *data, uint64_t bytes, const char *text)
{
    return memmem(data, bytes, text, strlen(text)) != NULL;
}

static memfit_status refuse(const char *what, memfit_error *err)
{
    return mf_fail(err, MEMFIT_UNSUPPORTED, "%s\n%s", what, reads);
}

static memfit_status refuse_torch(const char *what, memfit_error *err)
{
    return mf_fail(err, MEMFIT_UNSUPPORTED, "%s\n%s; %s", what, records, reads);
}

static memfit_status torch_archive(const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    enum { DIRECTORY = 1 << 20 };
    uint64_t tail = bytes < DIRECTORY ? bytes : DIRECTORY;
    const unsigned char *end = data + bytes - tail;
    if (holds(end, tail, "/code/__torch__"))
        return refuse_torch("a TorchScript program of PyTorch: it has no training step", err);
    if (holds(end, tail, "/models/model.json") && holds(end, tail, "/data/weights/"))
        return refuse_torch("an exported program of PyTorch (torch.export): it has no training step", err);
    if (!holds(end, tail, "/data.pkl"))
        return MEMFIT_OK;
    return refuse_torch(holds(data, bytes, "torch.nn.modules")
                            ? "a module saved by PyTorch (torch.save): Python code that is not run"
                            : "weights saved by PyTorch (torch.save): they do not say what the model computes",
                        err);
}

static bool begins(const unsigned char *data, uint64_t bytes, const char *magic, size_t n)
{
    return bytes >= n && memcmp(data, magic, n) == 0;
}

/* Protocol buffers: field 1 is the version, then a producer's name, a graph or more. */
static memfit_status protocol_buffer(const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    if (bytes < 8 || data[0] != 0x08 || data[1] > 0x40)
        return MEMFIT_OK;
    if (data[1] == 1 && data[2] == 0x12)
        return refuse(
            "a SavedModel of TensorFlow: a program, not a Keras model; load it in Keras and save it as .keras", err);
    if (data[1] >= 3 && (data[2] == 0x12 || data[2] == 0x3a || data[2] == 0x42))
        return refuse("an ONNX model: it has no training step; save the model it was made from", err);
    return MEMFIT_OK;
}

memfit_status mf_foreign_model(const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    static const char old_torch[] = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    if (begins(data, bytes, "PK\x03\x04", 4))
        return torch_archive(data, bytes, err);
    if (begins(data, bytes, old_torch, 14))
        return refuse_torch(
            "a file of PyTorch (torch.save, the format before 1.6): weights or a module, which memfit does not read",
            err);
    if (bytes > 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5)
        return refuse("a Python pickle: code that is not run", err);
    if (begins(data, bytes, "GGUF", 4))
        return refuse("a GGUF file: weights for inference", err);
    if (bytes > 8 && memcmp(data + 4, "TFL3", 4) == 0)
        return refuse("a TensorFlow Lite model: it has no training step", err);
    if (bytes > 9 && data[8] == '{' && !data[5] && !data[6] && !data[7])
        return refuse("a safetensors file: weights, which do not say what the model computes", err);
    return protocol_buffer(data, bytes, err);
}
