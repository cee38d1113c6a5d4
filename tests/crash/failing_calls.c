/* Preloaded into a run: its n-th call of one kind fails. Calls count that concern files below one folder, and large allocations.
 *
 *   FAILING_CALL   write, fsync, rename, mmap, open or allocation
 *   FAILING_PLACE  the number of the call, from 1; 0: none fails
 *   FAILING_BELOW  the folder
 *   FAILING_COUNT  a file that gets a byte for every call that counts
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE (16 << 10) /* bytes of an allocation that counts */

static atomic_long calls;

static int is_kind(const char* kind) {
  const char* chosen = getenv("FAILING_CALL");
  return chosen != NULL && strcmp(chosen, kind) == 0;
}

/* Whether this call is the one that fails. */
static int fails(void) {
  const char *place = getenv("FAILING_PLACE"), *count = getenv("FAILING_COUNT");
  const int kept = errno;
  if (count != NULL) {
    const long file = syscall(SYS_openat, AT_FDCWD, count, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0) {
      (void)!syscall(SYS_write, file, ".", 1);
      syscall(SYS_close, file);
    }
  }
  errno = kept;
  return atomic_fetch_add(&calls, 1) + 1 == (place == NULL ? 0 : atol(place));
}

static int is_below(const char* path) {
  const char* folder = getenv("FAILING_BELOW");
  return folder != NULL && path != NULL && strncmp(path, folder, strlen(folder)) == 0;
}

static int descriptor_is_below(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const int kept = errno;
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  errno = kept;
  if (length < 0) return 0;
  path[length] = 0;
  return is_below(path);
}

static int fails_on(const char* kind, int descriptor) { return is_kind(kind) && descriptor_is_below(descriptor) && fails(); }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void* bytes, size_t size) {
  if (fails_on("write", descriptor)) return errno = ENOSPC, -1;
  return syscall(SYS_write, descriptor, bytes, size);
}

ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  if (fails_on("write", descriptor)) return errno = ENOSPC, -1;
  return syscall(SYS_pwrite64, descriptor, bytes, size, offset);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) { return pwrite(descriptor, bytes, size, offset); }

int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  if (fails_on("write", descriptor)) return errno = ENOSPC, -1;
  return (int)syscall(SYS_fallocate, descriptor, mode, offset, length);
}
int fallocate64(int descriptor, int mode, off64_t offset, off64_t length) { return fallocate(descriptor, mode, offset, length); }

int fsync(int descriptor) {
  if (fails_on("fsync", descriptor)) return errno = EIO, -1;
  return (int)syscall(SYS_fsync, descriptor);
}

int fdatasync(int descriptor) {
  if (fails_on("fsync", descriptor)) return errno = EIO, -1;
  return (int)syscall(SYS_fdatasync, descriptor);
}

int rename(const char* from, const char* to) {
  if (is_kind("rename") && is_below(to) && fails()) return errno = EACCES, -1;
  return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) {
  if (is_kind("rename") && is_below(to) && fails()) return errno = EACCES, -1;
  return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
  va_end(more);
  if (is_kind("open") && is_below(path) && fails()) return errno = EMFILE, -1;
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
  va_end(more);
  return open(path, flags, mode);
}

void* mmap(void* address, size_t size, int protection, int flags, int descriptor, off_t offset) {
  const int anonymous = (flags & MAP_ANONYMOUS) != 0;
  if ((!anonymous && fails_on("mmap", descriptor)) || (anonymous && size >= LARGE && is_kind("allocation") && fails()))
    return errno = ENOMEM, MAP_FAILED;
  return (void*)syscall(SYS_mmap, address, size, protection, flags, descriptor, offset);
}
void* mmap64(void* address, size_t size, int protection, int flags, int descriptor, off64_t offset) {
  return mmap(address, size, protection, flags, descriptor, offset);
}

int posix_memalign(void** place, size_t alignment, size_t size) {
  if (size >= LARGE && is_kind("allocation") && fails()) return ENOMEM;
  return NEXT(posix_memalign)(place, alignment, size);
}
