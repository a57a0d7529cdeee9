/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough.c - a shim around libfuse 3.14, which supports neither FUSE passthrough (Linux 6.9) nor mappings of files
 * opened with direct_io (Linux 6.6).
 *
 * The session's writes pass through this file, so that the INIT reply can request both; open replies with a backing
 * file are built here; backing files are registered by ioctl. The protocol is the kernel's (include/uapi/linux/fuse.h);
 * definitions that older headers lack are below. libfuse 3.17 and later support both; the shim works there too, because
 * the kernel sees the same bytes.
 *
 * The kernel's rules for backing files: all opens of an inode name the same backing file, or none does; an inode that
 * is mapped through the page cache cannot be opened with a backing file; FOPEN_KEEP_CACHE and a backing file exclude
 * each other. opens.c observes them. The kernel drops an inode's backing file before it sends the last RELEASE.
 */
#include "passthrough.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon.h"

#define FLAG_INIT_EXT (UINT64_C(1) << 30)
#define FLAG_DIRECT_IO_ALLOW_MMAP (UINT64_C(1) << 36)
#define FLAG_PASSTHROUGH (UINT64_C(1) << 37)
#define OPEN_NOFLUSH (1u << 5)
#define OPEN_PASSTHROUGH (1u << 7)

/* struct fuse_init_in and fuse_init_out as of protocol 7.40; fields of later minors are zero */
struct init_in {
    uint32_t major, minor, max_readahead, flags, flags2, unused[11];
};
struct init_out {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth, unused[6];
};
_Static_assert(sizeof(struct init_out) == 64, "fuse_init_out");

struct open_out {
    uint64_t handle;
    uint32_t open_flags;
    int32_t backing_id;
};

struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define IOC_BACKING_OPEN _IOW(229, 1, struct backing_map)
#define IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

static ssize_t device_read(int fd, void *buffer, size_t bytes, void *userdata)
{
    (void)userdata;
    return read(fd, buffer, bytes);
}

/* Requests in the INIT reply the features that the kernel offers and the options allow. */
static void init_edit(struct efsd *daemon, struct init_out *out)
{
    struct efsd_kernel *kernel = &daemon->kernel;
    uint64_t want = 0;
    if (kernel->offered & FLAG_DIRECT_IO_ALLOW_MMAP) {
        want |= FLAG_DIRECT_IO_ALLOW_MMAP;
        kernel->direct_mmap = true;
    }
    if ((kernel->offered & FLAG_PASSTHROUGH) && !daemon->options.no_passthrough) {
        want |= FLAG_PASSTHROUGH;
        out->max_stack_depth = 1;
    }
    if (want) {
        out->flags |= (uint32_t)FLAG_INIT_EXT;
        out->flags2 |= (uint32_t)(want >> 32);
    }
}

static ssize_t device_write(int fd, struct iovec *iov, int count, void *userdata)
{
    struct efsd *daemon = userdata;
    struct efsd_kernel *kernel = &daemon->kernel;
    const struct fuse_out_header *header = iov[0].iov_base;
    if (kernel->answered || header->unique != kernel->init_unique)
        return writev(fd, iov, count);
    struct init_out out = {0};
    struct iovec edited[2] = {iov[0], {.iov_base = &out, .iov_len = sizeof(out)}};
    if (header->error || count != 2 || iov[1].iov_len != sizeof(out))
        return writev(fd, iov, count); /* an error, or the short form of a kernel before 2.6.39 */
    memcpy(&out, iov[1].iov_base, sizeof(out));
    init_edit(daemon, &out);
    ssize_t written = writev(fd, edited, 2);
    kernel->answered = written >= 0;
    return written;
}

errint_t efsd_kernel_attach(struct efsd *daemon)
{
    static const struct fuse_custom_io io = {.read = device_read, .writev = device_write};
    daemon->kernel = (struct efsd_kernel){0};
    daemon->fuse_fd = fuse_session_fd(daemon->session);
    return fuse_session_custom_io(daemon->session, &io, daemon->fuse_fd);
}

void efsd_kernel_request(struct efsd *daemon, const void *request, size_t bytes)
{
    struct fuse_in_header header;
    if (daemon->kernel.answered || bytes < sizeof(header))
        return;
    memcpy(&header, request, sizeof(header));
    if (header.opcode != FUSE_INIT)
        return;
    struct init_in in = {0};
    size_t body = bytes - sizeof(header);
    memcpy(&in, (const char *)request + sizeof(header), body < sizeof(in) ? body : sizeof(in));
    daemon->kernel.init_unique = header.unique;
    daemon->kernel.minor = in.minor;
    daemon->kernel.offered = in.flags;
    if (in.flags & FLAG_INIT_EXT)
        daemon->kernel.offered |= (uint64_t)in.flags2 << 32;
}

bool efsd_kernel_privileged(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_SYS_ADMIN));
}

static void kernel_no_passthrough(struct efsd_kernel *kernel, const char *why)
{
    snprintf(kernel->no_passthrough, sizeof(kernel->no_passthrough), "%s", why);
}

void efsd_kernel_probe(struct efsd *daemon)
{
    struct efsd_kernel *kernel = &daemon->kernel;
    if (daemon->options.no_passthrough) {
        kernel_no_passthrough(kernel, "option nopassthrough");
        return;
    }
    if (!(kernel->offered & FLAG_PASSTHROUGH)) {
        kernel_no_passthrough(kernel, "the kernel has no FUSE passthrough (Linux 6.9 with CONFIG_FUSE_PASSTHROUGH)");
        return;
    }
    char why[160];
    errint_t rc = efs_leases_probe();
    if (rc < 0) {
        snprintf(why, sizeof(why),
                 "file leases are refused (fcntl F_SETLEASE: %s); see sysctl fs.leases-enable, or the seccomp filter",
                 strerror(-rc));
        kernel_no_passthrough(kernel, why);
        return;
    }
    int fd = memfd_create("expertfs-probe", MFD_CLOEXEC);
    int id = fd < 0 ? -errno : efsd_backing_open(daemon, fd);
    if (fd >= 0)
        close(fd);
    if (id > 0) {
        efsd_backing_close(daemon, id);
        kernel->passthrough = true;
        return;
    }
    snprintf(why, sizeof(why), "the kernel refused a backing file: %s", strerror(-id));
    kernel_no_passthrough(kernel, id == -EPERM ? "the daemon lacks the privilege CAP_SYS_ADMIN" : why);
}

int efsd_backing_open(struct efsd *daemon, int fd)
{
    struct backing_map map = {.fd = fd};
    int id = ioctl(daemon->fuse_fd, IOC_BACKING_OPEN, &map);
    return id < 0 ? -errno : id == 0 ? -EIO : id;
}

void efsd_backing_close(struct efsd *daemon, int backing_id)
{
    uint32_t id = (uint32_t)backing_id;
    ioctl(daemon->fuse_fd, IOC_BACKING_CLOSE, &id);
}

int efsd_reply_backed(fuse_req_t req, uint64_t handle, int backing_id)
{
    struct open_out out = {.handle = handle, .open_flags = OPEN_PASSTHROUGH | OPEN_NOFLUSH, .backing_id = backing_id};
    return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}
