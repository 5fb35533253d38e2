/* Fails, or kills, before the n-th call of this process that changes what lies below a folder:
   of Python, SQLite, DuckDB, Arrow and torch alike. Preloaded; see disk_faults.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char below[PATH_MAX];
static int fault, failing_at;
static atomic_int calls;

/* error: 0 counts alone, -1 kills, else an errno: ENOSPC stays from call `at` on, others come once. */
void plan_fault(const char *folder, int error, int at) {
    fault = 0;
    strncpy(below, folder, sizeof below - 1);
    failing_at = at;
    atomic_store(&calls, 0);
    fault = error;
}

int count_calls(void) { return atomic_load(&calls); }

static int is_below(int folder, const char *path) {
    char place[PATH_MAX], link[64];
    if (!below[0] || !path) return 0;
    if (path[0] == '/') return !strncmp(path, below, strlen(below));
    if (folder == AT_FDCWD) {
        if (!getcwd(place, sizeof place)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, place, sizeof place - 1);
        if (n < 0) return 0;
        place[n] = 0;
    }
    return !strncmp(place, below, strlen(below));
}

static int is_open_below(int fd) {
    char place[PATH_MAX], link[64];
    if (!below[0] || fd < 3) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, place, sizeof place - 1);
    if (n < 0) return 0;
    place[n] = 0;
    return !strncmp(place, below, strlen(below));
}

/* Whether this call fails; `takes_space`: a full disk refuses it. */
static int fails(int here, int takes_space) {
    if (!here) return 0;
    int now = atomic_fetch_add(&calls, 1) + 1;
    if (!fault || now < failing_at) return 0;
    if (fault == -1) {
        kill(getpid(), SIGKILL);
        pause();
    }
    if (fault == ENOSPC ? !takes_space : now > failing_at) return 0;
    errno = fault;
    return 1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int makes = flags & (O_CREAT | O_TRUNC) || (flags & O_TMPFILE) == O_TMPFILE; \
        if (makes && fails(is_below(AT_FDCWD, path), 1)) return -1; \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        int makes = flags & (O_CREAT | O_TRUNC) || (flags & O_TMPFILE) == O_TMPFILE; \
        if (makes && fails(is_below(folder, path), 1)) return -1; \
        return real(folder, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define OPENS_STREAM(name) \
    FILE *name(const char *path, const char *mode) { \
        REAL(name); \
        if (strpbrk(mode, "wa+") && fails(is_below(AT_FDCWD, path), 1)) return NULL; \
        return real(path, mode); \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

#define OF_FD(type, name, space, arguments, ...) \
    type name arguments { \
        REAL(name); \
        if (fails(is_open_below(fd), space)) return -1; \
        return real(__VA_ARGS__); \
    }
OF_FD(ssize_t, write, 1, (int fd, const void *from, size_t n), fd, from, n)
OF_FD(ssize_t, pwrite, 1, (int fd, const void *from, size_t n, off_t at), fd, from, n, at)
OF_FD(ssize_t, pwrite64, 1, (int fd, const void *from, size_t n, off64_t at), fd, from, n, at)
OF_FD(ssize_t, writev, 1, (int fd, const struct iovec *some, int n), fd, some, n)
OF_FD(int, fsync, 0, (int fd), fd)
OF_FD(int, fdatasync, 0, (int fd), fd)
OF_FD(int, ftruncate, 0, (int fd, off_t size), fd, size)
OF_FD(int, ftruncate64, 0, (int fd, off64_t size), fd, size)
OF_FD(int, fchmod, 0, (int fd, mode_t mode), fd, mode)

#define OF_PATH(name, space, arguments, folder, path, ...) \
    int name arguments { \
        REAL(name); \
        if (fails(is_below(folder, path), space)) return -1; \
        return real(__VA_ARGS__); \
    }
OF_PATH(rename, 0, (const char *a, const char *b), AT_FDCWD, b, a, b)
OF_PATH(renameat, 0, (int c, const char *a, int d, const char *b), d, b, c, a, d, b)
OF_PATH(unlink, 0, (const char *a), AT_FDCWD, a, a)
OF_PATH(unlinkat, 0, (int c, const char *a, int flags), c, a, c, a, flags)
OF_PATH(remove, 0, (const char *a), AT_FDCWD, a, a)
OF_PATH(rmdir, 0, (const char *a), AT_FDCWD, a, a)
OF_PATH(mkdir, 1, (const char *a, mode_t mode), AT_FDCWD, a, a, mode)
OF_PATH(mkdirat, 1, (int c, const char *a, mode_t mode), c, a, c, a, mode)
OF_PATH(link, 1, (const char *a, const char *b), AT_FDCWD, b, a, b)
OF_PATH(linkat, 1, (int c, const char *a, int d, const char *b, int f), d, b, c, a, d, b, f)
OF_PATH(symlink, 1, (const char *a, const char *b), AT_FDCWD, b, a, b)
OF_PATH(chmod, 0, (const char *a, mode_t mode), AT_FDCWD, a, a, mode)
OF_PATH(fchmodat, 0, (int c, const char *a, mode_t mode, int f), c, a, c, a, mode, f)
OF_PATH(truncate, 0, (const char *a, off_t size), AT_FDCWD, a, a, size)

#define ALLOCATES(name, off) \
    int name(int fd, off from, off size) { \
        REAL(name); \
        if (fails(is_open_below(fd), 1)) return errno; \
        return real(fd, from, size); \
    }
ALLOCATES(posix_fallocate, off_t)
ALLOCATES(posix_fallocate64, off64_t)
