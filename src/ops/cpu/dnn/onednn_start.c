/*
 * onednn_start.c: run by the build alone: prints how much memory of its own, in KiB, a process has that links oneDNN and has
 * not called it yet. The library fills tables before main() begins, and how large they are depends on its version and options.
 */
#include <oneapi/dnnl/dnnl.h>

#include <stdio.h>

int main(void)
{
    long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    if (!f || !dnnl_version()) /* asked for its version so that no linker leaves it out */
        return 1;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1)
            break;
    fclose(f);
    printf("%ld\n", kib);
    return kib <= 0;
}
