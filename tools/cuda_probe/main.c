/*
 * main.c: what one NVIDIA card and its libraries really do, measured before the code that relies on it.
 *
 *     cuda_probe OUTDIR PART [--prop FILE] [--card FILE]
 *
 * Each part appends JSON lines to OUTDIR/probe.jsonl and Markdown to OUTDIR/probe.md and ends with one line PASS, SKIP
 * or FAIL; tools/cuda-probe runs the parts as processes of their own, so that a lost context costs one part only.
 * The driver, NVML, NVRTC, cuBLASLt and cuDNN are opened at run time: the program starts on any machine, and the parts
 * `kernels` and `workspaces-offline` need no card.
 *
 * Memory on the card: `in` holds random inputs and no timed kernel writes to it, so values never grow from one product
 * to the next; `out` takes results, `work` the workspace. Timed launches walk through several sets of buffers where
 * one set would stay in the L2 cache.
 */
#include "convolution.h"

static const struct {
    const char *name, *title;
    int (*run)(void);
} parts[] = {{"prop", "The card and its libraries", part_prop},
             {"kernels", "Own kernels by NVRTC (no card needed)", part_kernels},
             {"hwio", "Filters in HWIO strides", part_hwio},
             {"engines", "Engines for ResNet50 and S9", part_engines},
             {"fused", "Fused against separate", part_fused},
             {"nvml", "Fixed cost by NVML", part_nvml},
             {"bandwidth", "Copies and the matrix units", part_bandwidth},
             {"graphs", "Graph launches", part_graphs},
             {"workspaces", "Workspaces on the card and without it", part_workspaces},
             {"workspaces-offline", "Workspaces of a described device (no card needed)", part_workspaces_offline}};

static int usage(void)
{
    fprintf(stderr, "usage: cuda_probe OUTDIR PART [--prop FILE] [--card FILE]\nparts:");
    for (int i = 0; i < COUNT(parts); i++)
        fprintf(stderr, " %s", parts[i].name);
    fprintf(stderr, "\n");
    return 2;
}

static FILE *append(const char *name)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", out_dir, name);
    FILE *f = fopen(path, "a");
    if (f == NULL)
        fprintf(stderr, "cuda_probe: %s: %s\n", path, strerror(errno));
    return f;
}

int main(int argc, char **argv)
{
    ssize_t n = readlink("/proc/self/exe", self_path, sizeof self_path - 1);
    if (n <= 0)
        return usage();
    if (argc == 2 && strcmp(argv[1], "--nvml-child") == 0) {
        if (nvml_child() == 0)
            return 0;
        printf("%s\n", why);
        return 1;
    }
    if (argc < 3 || argc % 2 == 0)
        return usage();
    snprintf(out_dir, sizeof out_dir, "%s", argv[1]);
    for (int i = 3; i < argc; i += 2) {
        char *file = strcmp(argv[i], "--prop") == 0 ? prop_file : strcmp(argv[i], "--card") == 0 ? card_file : NULL;
        if (file == NULL)
            return usage();
        snprintf(file, sizeof prop_file, "%s", argv[i + 1]);
    }
    for (int i = 0; i < COUNT(parts); i++) {
        if (strcmp(argv[2], parts[i].name) != 0)
            continue;
        if ((jsonl = append("probe.jsonl")) == NULL || (md = append("probe.md")) == NULL)
            return 2;
        double start = now_s();
        text("\n## %s (`%s`)\n\n", parts[i].title, parts[i].name);
        int result = parts[i].run();
        double seconds = now_s() - start;
        text("\n%s: %s, %.1f s%s%s\n", parts[i].name, result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : ": ",
             result == 0 ? "" : why);
        row("{\"part\":\"%s\",\"result\":\"%s\",\"seconds\":%.1f,\"why\":\"%s\"}", parts[i].name,
            result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : why);
        printf("%s: %s, %.1f s%s%s\n", parts[i].name, result == 0 ? "PASS" : "FAIL", seconds, result == 0 ? "" : ": ",
               result == 0 ? "" : why);
        fflush(NULL);
        _exit(result == 0 ? 0 : 1); /* libraries' exit handlers add nothing here and may hang after a lost context */
    }
    return usage();
}
