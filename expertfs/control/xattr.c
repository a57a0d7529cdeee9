/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xattr.c - the extended attributes user.expertfs.*, which tune a mount while it is in use:
 *
 *     the root             budget, pools, plan, policy, ...: settings of efs_set(); read-only: effective_budget, the
 *                          available part of the budget; answer, the result of the last change
 *     a layer's directory  pin, of all its experts
 *     an expert's file     pin; read-only: state, kept, rank, count, bytes, leases
 *     all of these         read-only: names, the list of the above
 *
 * listxattr(2) returns none of them: cp -a, rsync -X and tar --xattrs would write them to copies.
 *
 * All users may read them; root and the user who mounted may change them. Removing one restores the value that it had
 * when the file system was mounted (pin: -). The reason of a refusal is logged and stored in user.expertfs.answer.
 */
#include "xattr.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

#include "daemon.h"
#include "log.h"
#include "expertfs-stats.h"

#define PREFIX "user.expertfs."
#define VALUE_MOST 255u /* maximum length of a value, bytes */

static const char *const root_names[] = {"effective_budget", "answer"};
static const char *const expert_names[] = {"pin", "state", "kept", "rank", "count", "bytes", "leases"};
static const char *const layer_names[] = {"pin"};

/* Kind of object that an inode represents. */
enum object { OBJECT_OTHER, OBJECT_ROOT, OBJECT_LAYER, OBJECT_EXPERT };

struct target {
    struct efsd *daemon;
    enum object object;
    uint32_t node;
    uint32_t expert; /* OBJECT_EXPERT: its number; OBJECT_LAYER: the number of its first expert */
};

/* A directory is a layer's if it has only experts, which then are all experts of the layer. */
static enum object node_object(const struct efsd_tree *tree, uint32_t node, uint32_t *expert)
{
    const struct efsd_node *n = &tree->nodes[node];
    if (n->kind == EFSD_EXPERT) {
        *expert = n->expert;
        return OBJECT_EXPERT;
    }
    if (node == EFSD_ROOT || n->kind != EFSD_DIRECTORY)
        return node == EFSD_ROOT ? OBJECT_ROOT : OBJECT_OTHER;
    for (uint32_t i = n->first; i < n->first + n->count; i++)
        if (tree->nodes[i].kind != EFSD_EXPERT)
            return OBJECT_OTHER;
    *expert = n->count ? tree->nodes[n->first].expert : UINT32_MAX;
    return n->count ? OBJECT_LAYER : OBJECT_OTHER;
}

static bool target_find(fuse_req_t req, fuse_ino_t ino, struct target *target)
{
    *target = (struct target){.daemon = fuse_req_userdata(req), .expert = UINT32_MAX};
    if (!efsd_node_of(target->daemon, ino, &target->node))
        return false;
    target->object = node_object(&target->daemon->tree, target->node, &target->expert);
    return true;
}

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}
#define IS_ONE_OF(name, names) is_one_of(name, names, sizeof(names) / sizeof(*(names)))

/* True if the target has the attribute name (without prefix); *writable: it can be set. */
static bool target_has(const struct target *target, const char *name, bool *writable)
{
    *writable = false;
    if (strcmp(name, "names") == 0)
        return target->object != OBJECT_OTHER;
    switch (target->object) {
    case OBJECT_ROOT:
        *writable = efs_tunable_find(name) != NULL;
        return *writable || IS_ONE_OF(name, root_names);
    case OBJECT_LAYER:
    case OBJECT_EXPERT:
        *writable = strcmp(name, "pin") == 0;
        return *writable || (target->object == OBJECT_EXPERT && IS_ONE_OF(name, expert_names));
    case OBJECT_OTHER:
        break;
    }
    return false;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

/* Pin of a layer's directory: 'F', 'C' or '-' if all its experts have the same, else 'M' (mixed). */
static errint_t target_layer_pin(const struct target *target, char *pin)
{
    const struct efsd_tree *tree = &target->daemon->tree;
    const struct efsd_node *folder = &tree->nodes[target->node];
    *pin = 0;
    for (uint32_t i = folder->first; i < folder->first + folder->count; i++) {
        struct efs_expert_info info;
        errint_t rc = efs_expert_info(target->daemon->fs, efs_id(tree->nodes[i].expert), &info);
        if (rc)
            return rc;
        *pin = !*pin || *pin == info.pin ? info.pin : 'M';
    }
    return 0;
}

static errint_t target_expert_value(const struct target *target, const char *name, char *value, size_t room)
{
    struct efs_expert_info info;
    errint_t rc = efs_expert_info(target->daemon->fs, efs_id(target->expert), &info);
    if (rc)
        return rc;
    const struct {
        const char *name;
        char letter; /* 0: use number */
        uint64_t number;
    } values[] = {
        {"pin", info.pin, 0},     {"state", info.state, 0},          {"kept", info.kept, 0},     {"rank", 0, info.rank},
        {"count", 0, info.count}, {"bytes", 0, info.resident_bytes}, {"leases", 0, info.leases},
    };
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        if (strcmp(name, values[i].name) == 0) {
            if (values[i].letter)
                snprintf(value, room, "%c", values[i].letter);
            else
                snprintf(value, room, "%llu", (unsigned long long)values[i].number);
            return 0;
        }
    }
    return -ENODATA;
}

static void add_names(char *text, size_t room, const char *const *names, size_t count)
{
    size_t used = strlen(text);
    for (size_t i = 0; i < count && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%s", used ? " " : "", names[i]);
}
#define ADD_NAMES(text, room, names) add_names(text, room, names, sizeof(names) / sizeof(*(names)))

static void add_tunables(char *text, size_t room)
{
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        add_names(text, room, &efs_tunables[i].name, 1);
}

/* Writes the names of the target's attributes, separated by blanks. */
static void target_names(const struct target *target, char *text, size_t room)
{
    *text = '\0';
    if (target->object == OBJECT_EXPERT) {
        ADD_NAMES(text, room, expert_names);
    } else if (target->object == OBJECT_LAYER) {
        ADD_NAMES(text, room, layer_names);
    } else {
        add_tunables(text, room);
        ADD_NAMES(text, room, root_names);
    }
}

static errint_t target_value(const struct target *target, const char *name, char *value, size_t room)
{
    struct efsd_tuning *tuning = &target->daemon->tuning;
    if (strcmp(name, "names") == 0) {
        target_names(target, value, room);
        return 0;
    }
    if (target->object == OBJECT_EXPERT)
        return target_expert_value(target, name, value, room);
    if (target->object == OBJECT_LAYER) {
        char pin;
        errint_t rc = target_layer_pin(target, &pin);
        snprintf(value, room, "%s", pin == 'F' ? "F" : pin == 'C' ? "C" : pin == '-' ? "-" : "mixed");
        return rc;
    }
    if (strcmp(name, "answer") == 0) {
        pthread_mutex_lock(&tuning->lock);
        snprintf(value, room, "%s", tuning->answer);
        pthread_mutex_unlock(&tuning->lock);
        return 0;
    }
    if (strcmp(name, "effective_budget") == 0) {
        struct efs_stats stats;
        efs_stats(target->daemon->fs, &stats);
        snprintf(value, room, "%llu", (unsigned long long)stats.effective_budget_bytes);
        return 0;
    }
    return efs_get(target->daemon->fs, name, value, room);
}

/* Replies with the length of the value (room 0) or with the value; ERANGE if it exceeds room. */
static void reply_xattr(fuse_req_t req, const char *text, size_t bytes, size_t room)
{
    if (!room)
        fuse_reply_xattr(req, bytes);
    else if (bytes > room)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, text, bytes);
}

void efsd_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t room)
{
    struct target target;
    char value[sizeof(target.daemon->tuning.answer)];
    bool writable;
    if (!target_find(req, ino, &target)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || !target_has(&target, name + strlen(PREFIX), &writable)) {
        fuse_reply_err(req, ENODATA);
        return;
    }
    errint_t rc = target_value(&target, name + strlen(PREFIX), value, sizeof(value));
    if (rc) {
        fuse_reply_err(req, -rc);
        return;
    }
    reply_xattr(req, value, strlen(value), room);
}

/* Returns an empty list: see the head of this file. */
void efsd_listxattr(fuse_req_t req, fuse_ino_t ino, size_t room)
{
    uint32_t node;
    if (!efsd_node_of(fuse_req_userdata(req), ino, &node))
        fuse_reply_err(req, ENOENT);
    else
        reply_xattr(req, "", 0, room);
}

/* ---- changing ----------------------------------------------------------------------------------------------- */

void efsd_answer(struct efsd *daemon, const char *text)
{
    pthread_mutex_lock(&daemon->tuning.lock);
    snprintf(daemon->tuning.answer, sizeof(daemon->tuning.answer), "%s", text);
    pthread_mutex_unlock(&daemon->tuning.lock);
}

static errint_t target_set_pin(const struct target *target, const char *value, struct efs_error *err)
{
    if (strlen(value) != 1 || !strchr("FC-", *value))
        return efs_fail(err, -EINVAL, "pin=%.64s: allowed are F, C and -", value);
    return efs_pin(target->daemon->fs, efs_id(target->expert), target->object == OBJECT_LAYER, *value, err);
}

static errint_t target_set(const struct target *target, const char *name, const char *value, struct efs_error *err)
{
    uint64_t held_bytes = 0;
    errint_t rc = target->object == OBJECT_ROOT ? efs_set(target->daemon->fs, name, value, &held_bytes, err)
                                                : target_set_pin(target, value, err);
    if (rc == -ENOMEM && strcmp(name, "budget") == 0)
        rc = -ERANGE; /* setfattr(1) prints strerror(): the value is out of range */
    if (!rc && held_bytes) {
        efs_fail(err, 0, "%s=%s: open and mapped files and readers still hold %llu bytes above it", name, value,
                 (unsigned long long)held_bytes);
    }
    return rc;
}

/* Sets a value; writes the result to the log and to user.expertfs.answer. */
static errint_t target_change(const struct target *target, fuse_req_t req, const char *name, const char *value)
{
    struct efs_error err = {.text = ""};
    char answer[sizeof(err.text) + VALUE_MOST + 32];
    unsigned uid = fuse_req_ctx(req)->uid;
    errint_t rc = target_set(target, name, value, &err);
    if (rc) {
        snprintf(answer, sizeof(answer), "%s", *err.text ? err.text : strerror(-rc));
        efsd_log(EFS_LOG_WARNING, "setting refused for user %u: %s", uid, answer);
    } else {
        snprintf(answer, sizeof(answer), "%s", *err.text ? err.text : "ok");
        efsd_log(EFS_LOG_INFO, "user %u set %s=%s%s%s", uid, name, value, *err.text ? "; " : "", err.text);
    }
    efsd_answer(target->daemon, answer);
    return rc;
}

/* Checks name and permission for setting or removing, before the value. 0, or a positive errno. */
static int target_refusal(const struct target *target, fuse_req_t req, const char *name, bool removing)
{
    bool ours = strncmp(name, PREFIX, strlen(PREFIX)) == 0, writable;
    if (!ours)
        return removing ? ENODATA : EOPNOTSUPP;
    if (!efsd_may_tune(target->daemon, req))
        return EPERM;
    if (!target_has(target, name + strlen(PREFIX), &writable))
        return removing ? ENODATA : EINVAL;
    return writable ? 0 : EPERM;
}

/* Logs why a setting does not exist here, and stores it in user.expertfs.answer. */
static void target_unknown(const struct target *target, const char *name)
{
    char settings[128] = "";
    struct efs_error err;
    const char *best = NULL;
    name += strlen(PREFIX);
    add_tunables(settings, sizeof(settings));
    for (size_t i = 0; i < EFS_TUNABLES; i++)
        best = efs_nearer_word(name, best, efs_tunables[i].name);
    if (strcmp(name, "pin") == 0)
        efs_fail(&err, 0, "pin: not a setting of the whole mount\nhint: set it on a layer or an expert of experts/");
    else if (best && strcmp(name, best) == 0)
        efs_fail(&err, 0, "%s: a setting of the whole mount, an expert or layer has pin", name);
    else
        efs_fail(&err, 0, "%.100s: unknown setting; a mount has %s; an expert or layer has pin%s%s%s", name, settings,
                 best ? "\nhint: did you mean " : "", best ? best : "", best ? "?" : "");
    efsd_log(EFS_LOG_WARNING, "%s", err.text);
    efsd_answer(target->daemon, err.text);
}

void efsd_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t bytes, int flags)
{
    struct target target;
    char text[VALUE_MOST + 1];
    if (!target_find(req, ino, &target)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    int error = target_refusal(&target, req, name, false);
    if (!error && (flags & XATTR_CREATE))
        error = EEXIST;
    if (error) {
        if (error == EINVAL)
            target_unknown(&target, name);
        fuse_reply_err(req, error);
        return;
    }
    if (bytes > VALUE_MOST || memchr(value, '\0', bytes)) { /* never valid: shorten it for the message */
        snprintf(text, sizeof(text), "%.*s...", (int)(bytes > 32 ? 32 : strnlen(value, bytes)), value);
    } else {
        memcpy(text, value, bytes);
        text[bytes] = '\0';
    }
    fuse_reply_err(req, -target_change(&target, req, name + strlen(PREFIX), text));
}

void efsd_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    struct target target;
    if (!target_find(req, ino, &target)) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    int error = target_refusal(&target, req, name, true);
    if (error) {
        if (error == ENODATA && strncmp(name, PREFIX, strlen(PREFIX)) == 0)
            target_unknown(&target, name);
        fuse_reply_err(req, error);
        return;
    }
    name += strlen(PREFIX);
    const char *value = "-";
    if (target.object == OBJECT_ROOT)
        value = target.daemon->tuning.at_mount[efs_tunable_find(name) - efs_tunables];
    fuse_reply_err(req, -target_change(&target, req, name, value));
}

errint_t efsd_tuning_init(struct efsd *daemon)
{
    struct efsd_tuning *tuning = &daemon->tuning;
    snprintf(tuning->answer, sizeof(tuning->answer), "ok");
    for (size_t i = 0; i < EFS_TUNABLES; i++) {
        errint_t rc = efs_get(daemon->fs, efs_tunables[i].name, tuning->at_mount[i], sizeof(tuning->at_mount[i]));
        if (rc)
            return rc;
    }
    return 0;
}
