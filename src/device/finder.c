/* finder.c: looks for CUDA's libraries in the order finder.h states. Nothing is opened until mf_library_open. */
#include "device/finder.h"

#include "base/error.h"
#include "base/text.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name, *stem;
    bool driver;
    const char *wheels[2];
} libraries[] = {
#define X(id, name, stem, driver, wheel13, wheel12) {name, stem, driver, {wheel13, wheel12}},
    MF_LIBRARY_LIST(X)
#undef X
};

static const char *real_env(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name);
}

const mf_finder *mf_finder_default(void)
{
    static const mf_finder real = {"", real_env, NULL};
    return &real;
}

/* ---- candidates ------------------------------------------------------------------------------------------- */

typedef struct {
    const mf_finder *finder;
    mf_library_id id;
    mf_candidate *list;
    size_t most, count;
} search;

static unsigned major_of(const char *path, const char *stem)
{
    const char *name = strrchr(path, '/');
    name = name ? name + 1 : path;
    size_t n = strlen(stem);
    return strncmp(name, stem, n) == 0 && name[n] == '.' ? (unsigned)strtoul(name + n + 1, NULL, 10) : 0;
}

static void add(search *s, const char *path, const char *how)
{
    for (size_t i = 0; i < s->count && i < s->most; i++)
        if (strcmp(s->list[i].path, path) == 0)
            return;
    if (s->count < s->most) {
        mf_candidate *c = &s->list[s->count];
        snprintf(c->path, sizeof c->path, "%s", path);
        snprintf(c->how, sizeof c->how, "%s", how);
        c->major = major_of(path, libraries[s->id].stem);
    }
    s->count++;
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Every "<stem>.<major>" in a folder, highest major first; the bare "<stem>" only when there is none. */
static void add_folder(search *s, const char *folder, const char *how)
{
    static const unsigned majors[] = {13, 12, 11, 10, 9, 8, 1};
    char path[1024];
    bool any = false;
    for (size_t i = 0; i < sizeof majors / sizeof *majors; i++) {
        int n = snprintf(path, sizeof path, "%s/%s.%u", folder, libraries[s->id].stem, majors[i]);
        if (n > 0 && (size_t)n < sizeof path && is_file(path)) {
            add(s, path, how);
            any = true;
        }
    }
    int n = snprintf(path, sizeof path, "%s/%s", folder, libraries[s->id].stem);
    if (!any && n > 0 && (size_t)n < sizeof path && is_file(path))
        add(s, path, how);
}

static void add_list(search *s, const char *folders, const char *how)
{
    char folder[1024];
    for (const char *p = folders; p && *p;) {
        size_t n = strcspn(p, ":");
        if (n && n < sizeof folder) {
            snprintf(folder, sizeof folder, "%s%.*s", s->finder->root, (int)n, p);
            add_folder(s, folder, how);
        }
        p += n + (p[n] == ':');
    }
}

/* <prefix>/lib/python3.N/<site>/nvidia/<wheel folder>, for every python there. */
static void add_wheels(search *s, const char *prefix, const char *site, const char *how)
{
    char lib[900], folder[1400];
    snprintf(lib, sizeof lib, "%s%s/lib", s->finder->root, prefix);
    DIR *dir = opendir(lib);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, "python3", 7) != 0)
            continue;
        for (int i = 0; i < 2; i++) {
            if (i && strcmp(libraries[s->id].wheels[0], libraries[s->id].wheels[1]) == 0)
                break;
            snprintf(folder, sizeof folder, "%s/%s/%s/nvidia/%s", lib, e->d_name, site, libraries[s->id].wheels[i]);
            add_folder(s, folder, how);
        }
    }
    closedir(dir);
}

/* The prefix of the python3 on PATH: where its own link says, and where the link points. */
static void add_path_python(search *s)
{
    const char *path = s->finder->env(s->finder->ctx, "PATH");
    char file[1024], resolved[PATH_MAX];
    for (const char *p = path; p && *p;) {
        size_t n = strcspn(p, ":");
        snprintf(file, sizeof file, "%s%.*s/python3", s->finder->root, (int)n, p);
        if (n && access(file, X_OK) == 0) {
            size_t root = strlen(s->finder->root);
            for (int pass = 0; pass < 2; pass++) {
                char *slash = strrchr(file, '/');
                if (slash)
                    *slash = 0;
                slash = strrchr(file, '/');
                if (slash && strlen(file) > root) {
                    *slash = 0;
                    add_wheels(s, file + root, "site-packages", "wheel of the python3 on PATH");
                    add_wheels(s, file + root, "dist-packages", "wheel of the python3 on PATH");
                }
                snprintf(file, sizeof file, "%s%.*s/python3", s->finder->root, (int)n, p);
                if (pass || !realpath(file, resolved))
                    break;
                snprintf(file, sizeof file, "%s", resolved);
            }
            return;
        }
        p += n + (p[n] == ':');
    }
}

size_t mf_finder_candidates(const mf_finder *finder, mf_library_id id, mf_candidate *list, size_t most)
{
    search s = {finder, id, list, most, 0};
    char text[1200];
    snprintf(text, sizeof text, "MEMFIT_LIB_%s", libraries[id].name);
    const char *file = finder->env(finder->ctx, text);
    if (file && *file) {
        char path[1024];
        snprintf(path, sizeof path, "%s%s", finder->root, file);
        add(&s, path, text); /* this library and no other, also where it cannot be opened */
        return s.count;
    }
    add_list(&s, finder->env(finder->ctx, "MEMFIT_CUDA_LIBDIR"), "MEMFIT_CUDA_LIBDIR");
    if (!libraries[id].driver) {
        const char *venv = finder->env(finder->ctx, "VIRTUAL_ENV"), *conda = finder->env(finder->ctx, "CONDA_PREFIX");
        if (venv && *venv)
            add_wheels(&s, venv, "site-packages", "wheel of VIRTUAL_ENV");
        if (conda && *conda) {
            add_wheels(&s, conda, "site-packages", "wheel of CONDA_PREFIX");
            snprintf(text, sizeof text, "%s%s/lib", finder->root, conda);
            add_folder(&s, text, "conda");
        }
        add_path_python(&s);
    }
    if (!*finder->root) {
        static const unsigned sonames[][4] = {{1}, {1}, {13, 12, 11}, {13, 12, 11}, {13, 12, 11}, {9, 8}};
        for (int i = 0; i < 4 && sonames[id][i]; i++) {
            snprintf(text, sizeof text, "%s.%u", libraries[id].stem, sonames[id][i]);
            add(&s, text, "system loader");
        }
    }
    static const char usual[] =
        "/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/lib/wsl/lib:/usr/local/nvidia/lib64:"
        "/usr/local/nvidia/lib:/usr/local/cuda/lib64:/opt/cuda/lib64:/usr/lib/aarch64-linux-gnu";
    add_list(&s, usual, "usual folder");
    return s.count;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

/* cuDNN's shim opens its parts by bare soname, so that a system copy can mix with a wheel's. With all parts of the shim's
 * own folder loaded, those that others need first, it has nothing to choose. Of a bare name nothing is known yet. */
static void load_cudnn_siblings(const char *path, unsigned major)
{
    static const char *const parts[] = {
        "graph", "ops", "cnn", "adv", "engines_precompiled", "engines_runtime_compiled", "heuristic"};
    char folder[1024], file[1200];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return;
    *slash = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(file, sizeof file, "%s/libcudnn_%s.so.%u", folder, parts[i], major);
        if (is_file(file))
            dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    }
}

static void fill(mf_library *library, void *handle, const mf_candidate *c, mf_library_id id)
{
    *library = (mf_library){.handle = handle, .major = c->major};
    snprintf(library->how, sizeof library->how, "%s", c->how);
    snprintf(library->path, sizeof library->path, "%s", c->path);
    /* What the loader really took: any symbol of it tells. */
    static const char *const probe[] = {"cuInit",       "nvmlInit_v2",        "cudaRuntimeGetVersion",
                                        "nvrtcVersion", "cublasLtGetVersion", "cudnnGetVersion"};
    Dl_info info;
    void *symbol = dlsym(handle, probe[id]);
    if (symbol && dladdr(symbol, &info) && info.dli_fname)
        snprintf(library->path, sizeof library->path, "%s", info.dli_fname);
}

memfit_status mf_library_open(const mf_finder *finder, mf_library_id id, unsigned major, mf_library *library,
                              memfit_error *err)
{
    enum { MOST = 24 };
    mf_candidate list[MOST];
    size_t count = mf_finder_candidates(finder, id, list, MOST);
    char tried[400];
    mf_text text;
    mf_text_init(&text, tried, sizeof tried);
    if (count > MOST)
        count = MOST;
    /* What the process has already comes before wheels and system, after what the user named. */
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < count; i++) {
            const mf_candidate *c = &list[i];
            bool named = strncmp(c->how, "MEMFIT_", 7) == 0;
            if ((pass == 0) != named || (major && c->major && c->major != major))
                continue;
            bool loaded_only = pass == 1;
            if (loaded_only && strchr(c->path, '/'))
                continue;
            if (id == MF_LIBRARY_CUDNN && is_file(c->path)) /* before the shim, should it open one at once */
                load_cudnn_siblings(c->path, c->major ? c->major : major);
            void *handle = dlopen(c->path, RTLD_NOW | RTLD_GLOBAL | (loaded_only ? RTLD_NOLOAD : 0));
            if (handle) {
                fill(library, handle, c, id);
                if (id == MF_LIBRARY_CUDNN)
                    load_cudnn_siblings(library->path, library->major ? library->major : major);
                return MEMFIT_OK;
            }
            const char *why = dlerror();
            if (!loaded_only && why && text.length < 300)
                mf_text_add(&text, "%s%.120s", text.length ? "; " : "", why);
        }
    }
    if (libraries[id].driver)
        return mf_fail(
            err, MEMFIT_NOT_FOUND,
            "no NVIDIA driver found (%s)\ninstall the driver, or name its %s: MEMFIT_LIB_%s=PATH; everything on "
            "the cpu works without one",
            tried, libraries[id].stem, libraries[id].name);
    return mf_fail(
        err, MEMFIT_NOT_FOUND,
        "%s%s was not found (%s)\nactivate the environment that has it, or name its folder: MEMFIT_CUDA_LIBDIR=DIR",
        libraries[id].stem, major ? " of the needed version" : "", tried);
}

memfit_status mf_library_resolve(const mf_library *library, const mf_symbol *symbols, size_t count, memfit_error *err)
{
    for (size_t i = 0; i < count; i++) {
        void *address = dlsym(library->handle, symbols[i].name);
        if (!address && symbols[i].required)
            return mf_fail(
                err, MEMFIT_UNSUPPORTED,
                "%s (%s) has no %s: it is too old, or not what its name says\nupdate the driver or the library",
                library->path, library->how, symbols[i].name);
        memcpy(symbols[i].slot, &address, sizeof address);
    }
    return MEMFIT_OK;
}
