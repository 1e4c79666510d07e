/* next_name.c: built twice: two libraries that have a function of the same name, one of which asks for the next one. Some
 * tools find out in this way whether anybody else is there. */
#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *next_name(void)
{
    return NEXT_NAME;
}

#ifdef ASKS
EXPORT const char *ask_next(void)
{
    const char *(*next)(void) = (const char *(*)(void))dlsym(RTLD_NEXT, "next_name");
    return next ? next() : "nobody";
}
#else
EXPORT int second_is_linked(void)
{
    return 1;
}
#endif
