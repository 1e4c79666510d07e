/* relay.c: see relay.h. */
#include "govern/relay.h"

#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* What a target that poll calls ready surely takes without waiting: PIPE_BUF for pipes, less for terminals. */
enum { SURE_PIPE = 4096, SURE_TERMINAL = 256 };

static void copy_size(int from, int to)
{
    struct winsize size;
    if (ioctl(from, TIOCGWINSZ, &size) == 0)
        ioctl(to, TIOCSWINSZ, &size);
}

/* False: no pseudo-terminal can be had; a pipe serves. */
static bool open_terminal(mf_relay *r)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return false;
    char name[128];
    int slave = -1;
    struct termios mode;
    if (grantpt(master) == 0 && unlockpt(master) == 0 && ptsname_r(master, name, sizeof name) == 0)
        slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0 || tcgetattr(r->target, &mode) != 0) {
        close(master);
        if (slave >= 0)
            close(slave);
        return false;
    }
    mode.c_oflag &= ~(tcflag_t)OPOST; /* the real terminal turns \n into \r\n, once */
    mode.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    tcsetattr(slave, TCSANOW, &mode);
    copy_size(r->target, slave);
    r->source = master;
    r->child = slave;
    r->terminal = true;
    return true;
}

memfit_status mf_relay_open(mf_relay *relay, const memfit_host *host, int target, memfit_error *err)
{
    relay->host = host;
    relay->source = relay->child = -1;
    relay->target = target;
    relay->terminal = false;
    relay->begin = relay->end = relay->kept_bytes = relay->kept_room = 0;
    relay->taken = 0;
    relay->enough = UINT64_MAX;
    relay->kept = NULL;
    if (isatty(target) && open_terminal(relay)) {
        fcntl(relay->source, F_SETFL, O_NONBLOCK);
        return MEMFIT_OK;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return mf_fail(err, MEMFIT_IO, "no pipe for standard error: %s", strerror(errno));
    relay->source = ends[0];
    relay->child = ends[1];
    fcntl(relay->source, F_SETFL, O_NONBLOCK); /* our end alone: the program's waits as it always did */
    return MEMFIT_OK;
}

void mf_relay_resize(mf_relay *relay)
{
    if (relay->terminal && relay->source >= 0)
        copy_size(relay->target, relay->source);
}

/* Grows up to the most, then drops the older half: what matters stands at the end. */
static void keep(mf_relay *r, const char *data, size_t bytes)
{
    while (r->kept_room - r->kept_bytes < bytes + 1 && r->kept_room < MF_RELAY_MOST_KEPT) {
        size_t room = r->kept_room ? r->kept_room * 2 : 2 * MF_RELAY_BLOCK;
        char *wider = mf_host_resize(r->host, r->kept, r->kept_room, room);
        if (!wider)
            break;
        r->kept = wider;
        r->kept_room = room;
    }
    if (r->kept_room < bytes + 1)
        return;
    if (r->kept_room - r->kept_bytes < bytes + 1) {
        size_t stay = r->kept_room / 2 - bytes < r->kept_bytes ? r->kept_room / 2 - bytes : r->kept_bytes;
        memmove(r->kept, r->kept + r->kept_bytes - stay, stay);
        r->kept_bytes = stay;
    }
    memcpy(r->kept + r->kept_bytes, data, bytes);
    r->kept_bytes += bytes;
    r->kept[r->kept_bytes] = 0;
}

static bool take(mf_relay *r)
{
    if (r->source < 0 || r->end || r->taken >= r->enough)
        return false;
    ssize_t n = read(r->source, r->block, sizeof r->block);
    if (n > 0) {
        r->taken += (uint64_t)n;
        keep(r, r->block, (size_t)n);
        r->begin = 0;
        r->end = r->target < 0 ? 0 : (size_t)n;
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    close(r->source); /* the end of a pipe, or EIO: nobody has the pseudo-terminal open */
    r->source = -1;
    return true;
}

static bool give(mf_relay *r)
{
    if (!r->end || r->target < 0)
        return false;
    struct pollfd ready = {r->target, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0)
        return false;
    size_t sure = r->terminal ? SURE_TERMINAL : SURE_PIPE, left = r->end - r->begin;
    ssize_t n = write(r->target, r->block + r->begin, left < sure ? left : sure);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n < 0) {
        /* Its reader has gone. The program's next write must fail as it would without us: close its pipe. */
        r->target = -1;
        r->begin = r->end = 0;
        if (r->source >= 0)
            close(r->source);
        r->source = -1;
        return true;
    }
    r->begin += (size_t)n;
    if (r->begin == r->end)
        r->begin = r->end = 0;
    return true;
}

bool mf_relay_step(mf_relay *relay)
{
    bool gave = give(relay), took = take(relay);
    return gave || took;
}

void mf_relay_poll(const mf_relay *relay, struct pollfd pair[2])
{
    pair[0] = (struct pollfd){relay->end || relay->taken >= relay->enough ? -1 : relay->source, POLLIN, 0};
    pair[1] = (struct pollfd){relay->end ? relay->target : -1, POLLOUT, 0};
}

void mf_relay_drain(mf_relay *relay)
{
    int there = 0;
    if (relay->source >= 0 && ioctl(relay->source, FIONREAD, &there) != 0)
        there = 0;
    relay->enough = relay->taken + (uint64_t)there;
}

bool mf_relay_drained(const mf_relay *relay)
{
    return !relay->end && (relay->source < 0 || relay->taken >= relay->enough);
}

void mf_relay_go_on(mf_relay *relay)
{
    relay->enough = UINT64_MAX;
}

void mf_relay_close(mf_relay *relay)
{
    if (relay->source >= 0)
        close(relay->source);
    if (relay->child >= 0)
        close(relay->child);
    relay->source = relay->child = -1;
    mf_host_free(relay->host, relay->kept, relay->kept_room);
    relay->kept = NULL;
}

/* Whoever waits for the end of our standard error waits for theirs, as without us; signals meant for the program are
 * not meant for this process, which ends when nobody can write any more. */
static _Noreturn void pass_on_to_the_end(mf_relay *r)
{
    static const int ignored[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP, SIGPIPE};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    close(0);
    close(1);
    r->kept_room = r->kept_bytes = 0; /* keeps nothing */
    fcntl(r->source, F_SETFL, 0);
    for (;;) {
        ssize_t n = read(r->source, r->block, sizeof r->block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(0);
        for (ssize_t done = 0; done < n;) {
            ssize_t put = write(r->target, r->block + done, (size_t)(n - done));
            if (put < 0 && errno != EINTR)
                _exit(0);
            done += put > 0 ? put : 0;
        }
    }
}

void mf_relay_leave(mf_relay *relay)
{
    if (relay->source < 0 || relay->target < 0)
        return;
    if (fork() == 0)
        pass_on_to_the_end(relay);
}
