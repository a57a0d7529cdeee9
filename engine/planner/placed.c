/* SPDX-License-Identifier: Apache-2.0 */
/* placed.c - see placed.h. */
#include "placed.h"

#include "cache.h"
#include "expertfs-profile-private.h"
#include "history.h"
#include "expertfs-placement-private.h"
#include "extent.h"
#include "placed_thread.h"
#include "stats.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS 1000000000u
#define TURN_NS 100000000u                   /* between reads, while some are to be done */
#define BYTES_PER_SECOND (64u << 20)         /* of these reads */
#define BYTES_AT_ONCE (BYTES_PER_SECOND / 4) /* in flight, at most, unless one expert has more */
#define AT_ONCE 512u                         /* experts in a hold of the lock */
#define ROOM_SHARE 8u                        /* 1/8 of the pools stays for all other experts */

enum { HERE = 1, PINNED = 2 /* by the placement, not by the user */, FAILED = 4 /* its read */ };

struct efs_placed {
    char server[EFS_SERVER_NAME_BYTES];
    const char *file;                 /* its name */
    struct efs_placed_thread *thread; /* NULL: efs_placed_stop() has been called */
    uint64_t look_ns, turn_ns;        /* of the plan thread */
    int64_t allowed_bytes;            /* below 0: a large expert was read */
    /* guarded by efs.lock */
    uint8_t *where;              /* [experts]: bits above */
    uint64_t number, kept_bytes; /* kept_bytes: of those below `next` that are in memory */
    uint32_t next;               /* is looked at next; efs_expert_count(): none until the next look */
    char rule[EFS_PLACEMENT_RULE_BYTES], fault[400];
};

static void take(struct efs *fs, const char *text, size_t bytes);
static void refuse(struct efs *fs, const char *why);

/* ---- opening ---- */

errint_t efs_placed_open(struct efs *fs, struct efs_error *err)
{
    const char *path = fs->options.placement;
    if (!path)
        return 0;
    if (fs->store->plain)
        return efs_fail(err, -EOPNOTSUPP, "option placement: %s is not packed, so that it has no hash of its content",
                        fs->store->path);
    if (!efs_cache(fs)->policy)
        return efs_fail(err, -EOPNOTSUPP, "option placement: %s has no experts", fs->store->path);
    struct efs_placed *p = fs->placed = efs_sys_calloc(1, sizeof(*p));
    if (!p)
        return efs_fail(err, -ENOMEM, "no memory");
    const char *slash = efs_is_rados(path) ? NULL : strrchr(path, '/');
    *p = (struct efs_placed){.file = slash ? slash + 1 : path, .next = fs->store->expert_count};
    p->where = efs_sys_calloc(fs->store->expert_count, 1);
    if (!p->where)
        return efs_fail(err, -ENOMEM, "no memory");
    if (!fs->options.server && gethostname(p->server, sizeof(p->server) - 1) < 0)
        p->server[0] = '\0';
    const errint_t rc = efs_server_name_check(fs->options.server ? fs->options.server : p->server, err);
    if (rc < 0)
        return rc;
    if (fs->options.server)
        snprintf(p->server, sizeof(p->server), "%s", fs->options.server);
    static const struct efs_placed_calls calls = {take, refuse};
    return efs_placed_thread_start(fs, path, p->server, &calls, &p->thread, err);
}

void efs_placed_stop(struct efs *fs)
{
    if (!fs->placed || !fs->placed->thread)
        return;
    efs_placed_thread_stop(fs->placed->thread);
    fs->placed->thread = NULL;
}

bool efs_placed_counts(struct efs *fs, const struct efs_history *history)
{
    size_t bytes;
    if (!fs->placed || !fs->placed->thread)
        return false;
    void *data = efs_counts_pack(fs->store->sb.content_hash, history, &bytes);
    if (data)
        efs_placed_thread_count(fs->placed->thread, data, bytes);
    return data && !efs_is_rados(fs->options.placement);
}

void efs_placed_close(struct efs *fs)
{
    if (!fs->placed)
        return;
    efs_placed_stop(fs);
    free(fs->placed->where);
    free(fs->placed);
    fs->placed = NULL;
}

void efs_placed_close_in_child(struct efs *fs)
{
    if (fs->placed && fs->placed->thread)
        efs_placed_thread_close_in_child(fs->placed->thread);
}

/* ---- another placement ---- */

/* Lock held. */
static void set_where(struct efs *fs, uint32_t expert, bool here)
{
    struct efs_placed *p = fs->placed;
    const struct efs_cache *cache = efs_cache(fs);
    const struct efs_cache_expert *x = &cache->expert[expert];
    const enum efs_pool pin = efs_policy_user_pinned(cache->policy, x->layer, x->index);
    const bool was = p->where[expert] & HERE;
    if (here && !was && pin == EFS_POOL_M)
        efs_cache_user_pin(fs, expert, EFS_POOL_C);
    else if (!here && p->where[expert] & PINNED && pin == EFS_POOL_C)
        efs_cache_user_pin(fs, expert, EFS_POOL_M);
    if (!here || !was)
        p->where[expert] = !here ? 0 : pin == EFS_POOL_M ? HERE | PINNED : HERE;
    p->where[expert] &= (uint8_t)~FAILED;
}

void efs_placed_user_pins(struct efs *fs, uint32_t expert)
{
    if (fs->placed)
        fs->placed->where[expert] &= (uint8_t)~PINNED;
}

/* NULL, or the reason for refusing it. */
static const char *check(const struct efs *fs, const struct efs_cluster_placement *placement)
{
    const struct efs_cache *cache = efs_cache(fs);
    if (placement->content_hash != fs->store->sb.content_hash)
        return "a placement of another store";
    if (placement->layers != cache->layers || placement->experts != cache->width)
        return "a placement of other layers and experts";
    for (uint32_t l = 0; l < cache->layers; l++)
        for (uint32_t e = cache->layer_first[l + 1] - cache->layer_first[l]; e < cache->width; e++)
            if (placement->held[(size_t)l * cache->width + e])
                return "an expert that the store does not have";
    return NULL;
}

/* Writes why nothing of the placement is here, if it does not name this server; else "". */
static void find_name(const struct efs_placed *p, const struct efs_cluster_placement *placement, char *fault,
                      size_t room)
{
    size_t at =
        (size_t)snprintf(fault, room, "placement %.120s: does not name this server, %s, but:", p->file, p->server);
    for (uint32_t n = 0; n < placement->servers; n++)
        if (strcmp(placement->name[n], p->server) == 0) {
            fault[0] = '\0';
            return;
        }
    bool fits = true;
    for (uint32_t n = 0; n < placement->servers && fits; n++) {
        fits = at + strlen(placement->name[n]) + sizeof(",  ...") < room;
        at += (size_t)snprintf(fault + at, room - at, "%s %s", n ? "," : "", fits ? placement->name[n] : "...");
    }
    efs_make_printable(fault, false);
}

static void apply(struct efs *fs, const struct efs_cluster_placement *placement)
{
    struct efs_placed *p = fs->placed;
    const struct efs_cache *cache = efs_cache(fs);
    const uint32_t experts = fs->store->expert_count;
    uint32_t count = 0;
    for (uint32_t begin = 0; begin < experts; begin += AT_ONCE) {
        efs_lock(fs);
        for (uint32_t e = begin; e < experts && e < begin + AT_ONCE; e++) {
            const struct efs_cache_expert *x = &cache->expert[e];
            const bool here = placement->held[(size_t)x->layer * cache->width + x->index];
            set_where(fs, e, here);
            count += here;
        }
        efs_unlock(fs);
    }
    char fault[sizeof(p->fault)];
    find_name(p, placement, fault, sizeof(fault));
    efs_lock(fs);
    p->number = placement->number;
    memcpy(p->rule, placement->rule, sizeof(p->rule));
    const bool warn = *fault && strcmp(p->fault, fault) != 0;
    memcpy(p->fault, fault, sizeof(p->fault));
    efs_unlock(fs);
    if (warn)
        efs_log(fs, EFS_LOG_WARNING, "%s", fault);
    efs_log(fs, EFS_LOG_INFO, "placement %s: number %" PRIu64 " by %s: %u of %u experts are for %s",
            fs->options.placement, placement->number, placement->rule, count, experts, p->server);
}

static void refuse(struct efs *fs, const char *why)
{
    struct efs_placed *p = fs->placed;
    char line[300];
    snprintf(line, sizeof(line), "%s", why);
    line[strcspn(line, "\n")] = '\0'; /* without its hint */
    why = line;
    efs_lock(fs);
    snprintf(p->fault, sizeof(p->fault), "placement %.120s: %.250s", p->file, why);
    efs_make_printable(p->fault, false);
    const uint64_t number = p->number;
    efs_unlock(fs);
    if (number)
        efs_log(fs, EFS_LOG_WARNING, "placement %s: %s: number %" PRIu64 " stays", fs->options.placement, why, number);
    else
        efs_log(fs, EFS_LOG_WARNING, "placement %s: %s: nothing is placed", fs->options.placement, why);
}

static void take(struct efs *fs, const char *text, size_t bytes)
{
    struct efs_cluster_placement placement;
    const char *wrong;
    if (efs_placement_parse(text, bytes, fs->placed->server, &placement, &wrong) == 0)
        wrong = check(fs, &placement);
    if (wrong)
        refuse(fs, wrong);
    else
        apply(fs, &placement);
    efs_placement_free(&placement);
}

/* ---- reads; lock held ---- */

/* An expert that cannot be read, which was logged, is not read again until the next placement. */
static void read_done(struct efs *fs, uint32_t extent, errint_t error)
{
    if (error < 0 && error != -ECANCELED)
        fs->placed->where[fs->store->objects[efs_extent(fs, extent)->object].group] |= FAILED;
}

/* Starts reading all that is missing of an expert. false: not all of it found memory. */
static bool read_expert(struct efs *fs, uint32_t expert, enum efs_load_reason why)
{
    for (uint32_t i = efs_expert_extent_first(fs, expert); i < efs_expert_extent_end(fs, expert); i++)
        if (efs_extent_missing(efs_extent(fs, i)) && !efs_extent_load(fs, i, why, read_done))
            return false;
    return true;
}

/* Keeps the next expert, and reads it. false: nothing more until the next turn. */
static bool keep_next(struct efs *fs)
{
    struct efs_placed *p = fs->placed;
    const uint32_t e = p->next;
    const uint64_t pools = efs_cache(fs)->pools_bytes, bytes = efs_cache_expert_bytes(fs, e)[EFS_POOL_C],
                   missing = efs_extents_missing(fs, e);
    if (p->kept_bytes + bytes > pools - pools / ROOM_SHARE) {
        p->next = fs->store->expert_count; /* the rest is read when it is requested */
        return false;
    }
    if (efs_cache_target(fs, e) > EFS_POOL_C) {
        const bool keeps = efs_cache_keep(fs, e); /* if not, the plan has no room: it is read into empty memory */
        if (!read_expert(fs, e, keeps ? EFS_LOAD_PREFETCH : EFS_LOAD_WARM)) {
            if (keeps)
                efs_cache_lost(fs, e);
            p->next = keeps ? e : fs->store->expert_count;
            return false; /* memory is being prepared or freed, or there is none */
        }
        p->allowed_bytes -= (int64_t)missing;
        efs_count(fs->stats, placed_bytes, missing);
    }
    p->kept_bytes += bytes;
    p->next++;
    return true;
}

static void read_experts(struct efs *fs)
{
    struct efs_placed *p = fs->placed;
    const uint32_t experts = fs->store->expert_count;
    for (uint32_t n = 0; n < AT_ONCE && p->next < experts && p->allowed_bytes > 0 && efs_extents_idle(fs); n++)
        if (!(p->where[p->next] & HERE) || p->where[p->next] & FAILED)
            p->next++;
        else if (!keep_next(fs))
            return;
}

/* ---- turns ---- */

uint64_t efs_placed_delay(const struct efs *fs)
{
    const struct efs_placed *p = fs->placed;
    if (!p)
        return UINT64_MAX;
    const uint64_t now = efs_now_ns(), period = p->next < fs->store->expert_count ? TURN_NS : LOOK_NS;
    return p->turn_ns == 0 || now - p->turn_ns >= period ? 0 : period - (now - p->turn_ns);
}

void efs_placed_turn(struct efs *fs)
{
    struct efs_placed *p = fs->placed;
    const uint64_t now = efs_now_ns();
    const bool due = p->look_ns == 0 || now - p->look_ns >= LOOK_NS;
    if (due)
        p->look_ns = now;
    const uint64_t passed = p->turn_ns && now - p->turn_ns < LOOK_NS ? now - p->turn_ns : LOOK_NS;
    p->allowed_bytes += (int64_t)(passed * BYTES_PER_SECOND / LOOK_NS);
    if (p->allowed_bytes > (int64_t)BYTES_AT_ONCE)
        p->allowed_bytes = BYTES_AT_ONCE;
    efs_lock(fs);
    p->turn_ns = now;
    if (due && p->next == fs->store->expert_count) { /* again from the start: some may have been evicted */
        p->next = 0;
        p->kept_bytes = 0;
    }
    if (!fs->closing)
        read_experts(fs);
    efs_unlock(fs);
}

errint_t efs_placed_describe(struct efs *fs, char **text, size_t *bytes)
{
    const struct efs_placed *p = fs->placed;
    uint32_t here = 0, held = 0;
    FILE *out = open_memstream(text, bytes);
    if (!out)
        return -ENOMEM;
    efs_lock(fs);
    for (uint32_t e = 0; p && e < fs->store->expert_count; e++)
        if (p->where[e] & HERE) {
            here++;
            held += efs_cache_state(fs, e) == 'F' || efs_cache_state(fs, e) == 'C';
        }
    fprintf(out,
            "placement_server: %s\nplacement_number: %" PRIu64 "\nplacement_rule: %s\nplacement_experts: %u\n"
            "placement_held: %u\nplacement_fault: %s\n",
            p ? p->server : "-", p ? p->number : 0, p && *p->rule ? p->rule : "-", here, held,
            p && *p->fault ? p->fault : "-");
    efs_unlock(fs);
    return efs_text_stream_end(out, text);
}
