/*
 * doctor_frameworks.c: which frameworks are installed, where, and whether driver and cards are what they were built for.
 */
#include "diagnose/look.h"

#include "base/text.h"
#include "diagnose/rules.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* torch/version.py says: cuda: Optional[str] = '13.0' (or None). */
static void torch_cuda(const char *folder, char *text, size_t bytes)
{
    char file[4096];
    if (!mf_doctor_read(folder, "/torch/version.py", file, sizeof file))
        return;
    for (char *save, *line = strtok_r(file, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        const char *quote = strchr(line, '\'');
        if (strncmp(line, "cuda", 4) == 0 && (line[4] == ':' || line[4] == ' ') && quote)
            snprintf(text, bytes, "%.*s", (int)strspn(quote + 1, "0123456789."), quote + 1);
    }
}

static void add_framework(memfit_doctor *d, const char *name, const char *version, const char *where)
{
    for (size_t i = 0; i < d->framework_count; i++)
        if (strcmp(d->frameworks[i].name, name) == 0 && strcmp(d->frameworks[i].where, where) == 0)
            return;
    if (d->framework_count == MEMFIT_DOCTOR_FRAMEWORKS)
        return;
    memfit_framework *f = &d->frameworks[d->framework_count++];
    *f = (memfit_framework){0};
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->version, sizeof f->version, "%s", version);
    snprintf(f->where, sizeof f->where, "%.255s", where);
    if (strcmp(name, "torch") == 0)
        torch_cuda(where, f->cuda, sizeof f->cuda);
    const char *cu = strstr(version, "+cu");
    if (!f->cuda[0] && cu && strlen(cu) >= 5)
        snprintf(f->cuda, sizeof f->cuda, "%.*s.%s", (int)strlen(cu + 3) - 1, cu + 3, cu + strlen(cu) - 1);
    else if (strcmp(name, "tensorflow") == 0) {
        mf_version v = mf_version_parse(version);
        const mf_tensorflow_build *b = v.part[0] == 2 ? mf_tensorflow_build_of(v.part[1]) : NULL;
        if (b)
            mf_version_format(b->cuda, f->cuda, sizeof f->cuda);
    }
}

/* torch-2.11.0+cu130.dist-info and its like in one folder of packages. */
static void scan_packages(const char *folder, memfit_doctor *d)
{
    static const char *const names[] = {"torch",  "tensorflow",        "tensorflow_cpu",    "jax",
                                        "jaxlib", "jax_cuda12_plugin", "jax_cuda13_plugin", "keras"};
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        char *end = strstr(e->d_name, ".dist-info");
        char *dash = strchr(e->d_name, '-');
        if (!end || !dash || dash > end)
            continue;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if ((size_t)(dash - e->d_name) == strlen(names[i]) && strncmp(e->d_name, names[i], strlen(names[i])) == 0) {
                char version[40];
                snprintf(version, sizeof version, "%.*s", (int)(end - dash - 1), dash + 1);
                add_framework(d, names[i], version, folder);
            }
    }
    closedir(dir);
}

static void scan_prefix(const char *root, const char *prefix, memfit_doctor *d)
{
    char lib[1024], folder[1400];
    snprintf(lib, sizeof lib, "%s%s/lib", root, prefix);
    DIR *dir = opendir(lib);
    if (!dir)
        return;
    for (struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, "python3", 7) != 0)
            continue;
        if (!d->python[0] && strlen(e->d_name) > 7)
            snprintf(d->python, sizeof d->python, "%.30s", e->d_name + 6);
        static const char *const sites[] = {"site-packages", "dist-packages"};
        for (int i = 0; i < 2; i++) {
            snprintf(folder, sizeof folder, "%s/%.60s/%s", lib, e->d_name, sites[i]);
            scan_packages(folder, d);
        }
    }
    closedir(dir);
}

void mf_doctor_frameworks(const char *root, memfit_doctor *d)
{
    const char *venv = getenv("VIRTUAL_ENV"), *conda = getenv("CONDA_PREFIX"), *path = getenv("PATH");
    if (venv && *venv)
        scan_prefix(root, venv, d);
    if (conda && *conda)
        scan_prefix(root, conda, d);
    for (const char *p = path; p && *p;) {
        size_t n = strcspn(p, ":");
        char file[1024];
        snprintf(file, sizeof file, "%s%.*s/python3", root, (int)n, p);
        if (n > 4 && strncmp(p + n - 4, "/bin", 4) == 0 && access(file, X_OK) == 0) {
            char prefix[1024];
            snprintf(prefix, sizeof prefix, "%.*s", (int)(n - 4), p);
            scan_prefix(root, prefix, d);
            break;
        }
        p += n + (p[n] == ':');
    }
    mf_version driver = mf_version_parse(d->kernel_module);
    for (size_t i = 0; i < d->framework_count; i++) {
        const memfit_framework *f = &d->frameworks[i];
        memfit_check *c =
            mf_doctor_check(d, f->name, MEMFIT_CHECK_OK, "%s%s%s in %.120s", f->version,
                            f->cuda[0] ? ", built for CUDA " : "", f->cuda, mf_doctor_below(root, f->where));
        mf_version cuda = mf_version_parse(f->cuda), wanted, first, last;
        char a[32], b[32];
        mf_version own = mf_version_parse(f->version), python = mf_version_parse(d->python);
        const mf_tensorflow_build *build =
            strcmp(f->name, "tensorflow") == 0 && own.part[0] == 2 ? mf_tensorflow_build_of(own.part[1]) : NULL;
        if (build && python.part[0] &&
            (mf_version_compare(python, build->python_least) < 0 ||
             mf_version_compare(python, build->python_most) > 0)) {
            c->state = MEMFIT_CHECK_WARN;
            snprintf(c->wanted, sizeof c->wanted, "Python %s to %s for TensorFlow %s; this is %s",
                     mf_version_format(build->python_least, a, sizeof a),
                     mf_version_format(build->python_most, b, sizeof b), f->version, d->python);
            snprintf(c->fix, sizeof c->fix, "python%s -m venv venv && venv/bin/pip install tensorflow==%s", b,
                     f->version);
        }
        if (driver.part[0] && cuda.part[0]) {
            mf_driver_state state = mf_driver_for_toolkit(driver, cuda.part[0], cuda.part[1], &wanted);
            if (state == MF_DRIVER_TOO_OLD) {
                c->state = MEMFIT_CHECK_FAIL;
                snprintf(c->wanted, sizeof c->wanted, "driver %s or newer (this one is %s: CUDA error 35)",
                         mf_version_format(wanted, a, sizeof a), d->kernel_module);
                snprintf(c->fix, sizeof c->fix, "update the driver, or install a build for CUDA %s",
                         mf_version_format(mf_newest_cuda_of_driver(driver), b, sizeof b));
            } else if (state == MF_DRIVER_MINOR) {
                c->state = MEMFIT_CHECK_NOTE;
                snprintf(c->wanted, sizeof c->wanted,
                         "driver %s for all of CUDA %s; this one serves it, but compiles no newer PTX (CUDA error 222)",
                         mf_version_format(wanted, a, sizeof a), f->cuda);
            }
        }
        for (size_t k = 0; cuda.part[0] && k < d->cards.card_count && c->state < MEMFIT_CHECK_FAIL; k++) {
            int capability = d->cards.cards[k].capability;
            if (capability < 0 || !mf_toolkits_of_capability((unsigned)capability, &first, &last))
                continue;
            if (mf_version_compare((mf_version){{cuda.part[0], cuda.part[1]}}, first) < 0 ||
                (last.part[0] && mf_version_compare((mf_version){{cuda.part[0], cuda.part[1]}}, last) > 0)) {
                c->state = MEMFIT_CHECK_FAIL;
                snprintf(c->wanted, sizeof c->wanted, "a build for CUDA %s%s%s: %s has compute capability %d.%d",
                         mf_version_format(first, a, sizeof a), last.part[0] ? " to " : " or newer",
                         last.part[0] ? mf_version_format(last, b, sizeof b) : "", d->cards.cards[k].name,
                         capability / 10, capability % 10);
                snprintf(c->fix, sizeof c->fix, "install another build of %s (CUDA error 209 means this)", f->name);
            }
        }
        if (c->state > d->state)
            d->state = c->state;
    }
}
