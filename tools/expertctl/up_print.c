/* SPDX-License-Identifier: Apache-2.0 */
/* up_print.c - see up_print.h. */
#include "up_print.h"

#include "control_file.h"
#include "expertctl.h"
#include "expertfs-private.h"
#include "mountpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void print_word(const char *path)
{
    static char word[4 * 4096 + 8]; /* each byte may need four */
    printf("%s", efs_word(path, word, sizeof(word)));
}

/* Whether the model's name alone names its mount for `down` and `status`. */
static bool name_is_enough(const char *name, const char *path)
{
    struct ctl_mounts mounts;
    const struct ctl_mount *mount;
    struct efs_error ignored;
    if (*name == '-' || ctl_mounts_find(&mounts, &ignored) < 0)
        return false;
    bool enough = ctl_mount_choose(&mounts, name, &mount, &ignored) == 0 && strcmp(mount->path, path) == 0;
    ctl_mounts_free(&mounts);
    return enough;
}

int ctl_up_print(const struct ctl_model *model, const char *path, const char *config, bool json)
{
    char store[4200], budget[32], option[16];
    tools_line_path(config, "store", store, sizeof(store));
    if (json)
        return ctl_print_json(json_pack("{s:o, s:o, s:o, s:I, s:s, s:b}", "name", ctl_json_text(model->name), "store",
                                        ctl_json_text(store), "mountpoint", ctl_json_text(path), "budget_bytes",
                                        (json_int_t)tools_line_number(config, "budget_bytes"), "serving_path",
                                        tools_line_text(config, "serving_path", option, sizeof(option)), "in_place",
                                        (int)model->in_place));
    tools_line_text(config, "budget_size", budget, sizeof(budget));
    tools_line_text(config, "budget_option", option, sizeof(option));
    const char *name = name_is_enough(model->name, path) ? model->name : path;
    print_word(model->name);
    printf(" on ");
    print_word(path);
    printf("\nstore: ");
    print_word(store);
    printf("\nbudget: %s%s\nnext: expertctl status ", budget, strcmp(option, "auto") == 0 ? " (auto)" : "");
    print_word(name);
    printf(", expertctl down ");
    print_word(name);
    putchar('\n');
    return CTL_OK;
}
