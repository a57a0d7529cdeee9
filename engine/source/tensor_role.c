/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_role.c - efs_tensor_role(): the part of a tensor in its expert, by the end of its name. */
#include "expertfs.h"

#include <string.h>

static const char *const names[EFS_ROLE_OTHER][4] = {
    [EFS_ROLE_GATE] = {"gate_proj", "w1", "ffn_gate_exps"},
    [EFS_ROLE_UP] = {"up_proj", "w3", "ffn_up_exps"},
    [EFS_ROLE_DOWN] = {"down_proj", "w2", "ffn_down_exps", "output_linear"},
    [EFS_ROLE_GATE_BIAS] = {"gate_proj.bias", "ffn_gate_exps.bias"},
    [EFS_ROLE_UP_BIAS] = {"up_proj.bias", "ffn_up_exps.bias"},
    [EFS_ROLE_DOWN_BIAS] = {"down_proj.bias", "down_proj_bias", "ffn_down_exps.bias"},
    [EFS_ROLE_IN] = {"wi"},
    [EFS_ROLE_OUT] = {"wo"},
    [EFS_ROLE_GATE_UP] = {"gate_up_proj", "ffn_gate_up_exps", "input_linear"},
    [EFS_ROLE_GATE_UP_BIAS] = {"gate_up_proj_bias"},
};

/* Whether name, without a trailing ".weight", ends with a dot and part. */
static bool is_named(const char *name, const char *part)
{
    size_t bytes = strlen(part), end = strlen(name);
    if (end > 7 && strcmp(name + end - 7, ".weight") == 0)
        end -= 7;
    return end > bytes && name[end - bytes - 1] == '.' && memcmp(name + end - bytes, part, bytes) == 0;
}

enum efs_role efs_tensor_role(const char *name)
{
    for (unsigned role = 0; role < EFS_ROLE_OTHER; role++)
        for (unsigned n = 0; n < 4 && names[role][n]; n++)
            if (is_named(name, names[role][n]))
                return (enum efs_role)role;
    return EFS_ROLE_OTHER;
}
