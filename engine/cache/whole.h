/* SPDX-License-Identifier: Apache-2.0 */
/*
 * whole.h - checkpoint files that are whole in memory: each in one memory file, which the daemon hands to the kernel as
 * a backing file. fetch/gather.c fills them. Guarded by efs.lock, like all functions here unless stated otherwise.
 *
 *     NONE --> FILLING  efs_whole_begin()
 *     FILLING --> READY  efs_whole_filled(), at the end of the file
 *     FILLING --> DROPPED  efs_whole_abandon(): the memory is needed, or a read failed
 *     DROPPED --> NONE  efs_whole_ended(), once no reader copies from it
 *     READY --> NONE  evicted: neither open or mapped, nor copied from
 *
 * The memory is counted as EFS_ACCOUNT_FULL, and as EFS_ACCOUNT_FULL_PINNED while it is FILLING, DROPPED, open,
 * mapped or copied from. The pools are planned for the rest of the budget (efs_account.files_bytes). A need for
 * other memory evicts files that are not in use first.
 */
#ifndef EFS_WHOLE_H
#define EFS_WHOLE_H

#include "efs.h"
#include "extent.h"
#include "memfile.h"

enum efs_whole_state { EFS_WHOLE_NONE, EFS_WHOLE_FILLING, EFS_WHOLE_READY, EFS_WHOLE_DROPPED };

struct efs_whole_file {
    uint8_t state;               /* enum efs_whole_state */
    bool failed;                 /* a read of its bytes failed: not gathered again */
    bool mapped;                 /* another process mapped it when it was last closed */
    uint32_t opens;              /* efs_file_open() */
    uint32_t readers;            /* copying from it now */
    struct efs_memfile *memfile; /* READY */
    uint64_t filled_bytes;       /* from its start */
    uint64_t charged_bytes;      /* to the account */
    uint64_t read_bytes;         /* by readers, in this pass */
    uint64_t requests;           /* value of efs_whole_files.requests at its first read */
    uint64_t used;               /* efs_whole_files.clock at the last use */
};

struct efs_whole_files {
    struct efs *fs;
    struct efs_whole_file *at; /* by number of the file */
    uint32_t count;            /* of checkpoint files */
    efs_whole_fn *ready;       /* efs_keep_files(); NULL: no file is gathered */
    void *ready_arg;
    bool wanted;            /* a file may have to be gathered */
    uint32_t filling;       /* the file that is FILLING or DROPPED; EFS_NONE */
    uint64_t all_bytes;     /* memory of all files that are worth gathering */
    _Atomic uint64_t bytes; /* memory of files that are not NONE: no pool is planned for it */
    uint64_t opened_bytes;  /* memory of files that are open or mapped */
    uint64_t clock;
    uint64_t requests;      /* of experts */
    uint64_t largest_bytes; /* of an expert in full */
    /* of fetch/gather.c: the job that fills, and the extent it waits for */
    struct efs_job job;
    struct efs_extent_waiter waiter;
    bool busy;
};

/* Without lock, before threads are started and after they have ended. -ENOMEM. */
errint_t efs_whole_build(struct efs *fs);
void efs_whole_destroy(struct efs *fs);
/* A reader requests bytes of the file. After a whole pass without a request for experts it can be gathered: a scan
 * beside such requests must not evict their experts. */
void efs_whole_note(struct efs *fs, uint32_t file, uint64_t bytes);
/* The next file to gather: its readers have read it once, and all files and a reserve for other work fit into
 * the budget. EFS_NONE: none. */
uint32_t efs_whole_next(struct efs *fs);
void efs_whole_begin(struct efs *fs, uint32_t file);
/* Memory that the bytes up to `end` take in addition, by huge pages; charges it, after the caller has reserved it. */
uint64_t efs_whole_step(const struct efs *fs, uint32_t file, uint64_t end);
void efs_whole_charge(struct efs *fs, uint32_t file, uint64_t bytes);
/* The bytes up to `end` are in the memory file, and may be read there. At the end of the file it becomes READY. */
void efs_whole_filled(struct efs *fs, uint32_t file, uint64_t end);
/* The file that is FILLING becomes DROPPED. failed: its bytes cannot be read. */
void efs_whole_abandon(struct efs *fs, bool failed);
/* A DROPPED file whose memory file was freed becomes NONE. */
void efs_whole_ended(struct efs *fs, uint32_t file);
/* Evicts the file that was used longest ago and is neither open nor copied from. false: there is none. */
bool efs_whole_evict_oldest(struct efs *fs);
/* Experts are requested: evicts all such files, unless the pools have room for the whole store, coded. */
void efs_whole_yield(struct efs *fs);
/* Whether memory of files will be freed without a client: one is being filled, or copied from and not open. */
bool efs_whole_will_free(const struct efs *fs);
/* Starts copying bytes of the file up to `end`: returns the file's first byte; NULL: they are not in memory.
 * _unpin() ends it. Both without lock. */
const uint8_t *efs_whole_pin(struct efs *fs, uint32_t file, uint64_t end);
void efs_whole_unpin(struct efs *fs, uint32_t file);
/* Looks which mapped files are not mapped any more, because no event reports it. Without lock. Called by the plan
 * thread with each reading of the memory that is left, and when the budget is set. */
void efs_whole_sample(struct efs *fs);
void efs_whole_stats(const struct efs *fs, struct efs_stats *stats);

#endif
