/* os_place.c: what a path leads to (os.h). */
#include "base/os.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of a path as the path writes it: "a/b" gives "a", "b" gives ".", "/b" gives "/". */
static void folder_of(const char *path, char folder[MF_MOST_PATH])
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(folder, MF_MOST_PATH, ".");
    else
        snprintf(folder, MF_MOST_PATH, "%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* Follows links to a name that is no link, be there a file of that name or not. */
static bool follow(const char *path, char out[MF_MOST_PATH])
{
    enum { MOST_LINKS = 40 };
    if (!*path || strlen(path) >= MF_MOST_PATH)
        return false;
    snprintf(out, MF_MOST_PATH, "%s", path);
    for (int i = 0; i < MOST_LINKS; i++) {
        char to[MF_MOST_PATH], folder[MF_MOST_PATH];
        ssize_t n = readlink(out, to, sizeof to - 1);
        if (n < 0)
            return true;
        to[n] = 0;
        folder_of(out, folder);
        int length =
            to[0] == '/' ? snprintf(out, MF_MOST_PATH, "%s", to) : snprintf(out, MF_MOST_PATH, "%s/%s", folder, to);
        if (length >= MF_MOST_PATH)
            return false;
    }
    return false;
}

bool mf_os_find_place(const char *path, mf_os_place *place)
{
    *place = (mf_os_place){0};
    struct stat st;
    if (stat(path, &st) == 0) {
        place->type = S_ISREG(st.st_mode) ? MF_PLACE_FILE : S_ISDIR(st.st_mode) ? MF_PLACE_FOLDER : MF_PLACE_OTHER;
        place->device = (uint64_t)st.st_dev;
        place->inode = (uint64_t)st.st_ino;
        place->bytes = place->type == MF_PLACE_FILE ? (uint64_t)st.st_size : 0;
        return realpath(path, place->path) != NULL;
    }
    char target[MF_MOST_PATH], folder[MF_MOST_PATH];
    if (!follow(path, target))
        return false;
    folder_of(target, folder);
    if (!realpath(folder, place->path))
        return false;
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    size_t n = strlen(place->path);
    return (size_t)snprintf(place->path + n, MF_MOST_PATH - n, "%s%s", n > 1 ? "/" : "", name) < MF_MOST_PATH - n;
}

bool mf_os_place_is_inside(const mf_os_place *place, const mf_os_place *folder)
{
    size_t n = strlen(folder->path);
    return folder->type == MF_PLACE_FOLDER && strncmp(place->path, folder->path, n) == 0 &&
           (place->path[n] == '/' || folder->path[n - (n > 0)] == '/');
}
