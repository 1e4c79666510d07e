/* allocating.c: preloaded, takes and drops memory all the time, as a driver might while steps run: larger than what the
 * program's reserve serves. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *take_and_drop(void *unused)
{
    for (;;) {
        volatile char *p = malloc(100000);
        if (p)
            p[0] = 1;
        free((void *)p);
        usleep(200);
    }
    return unused;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, take_and_drop, NULL) == 0)
        pthread_detach(thread);
}
