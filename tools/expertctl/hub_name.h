/* SPDX-License-Identifier: Apache-2.0 */
/* hub_name.h - the form of names on the Hugging Face Hub. */
#ifndef EXPERTCTL_HUB_NAME_H
#define EXPERTCTL_HUB_NAME_H

#include <stdbool.h>
#include <stddef.h>

#define CTL_HUB_PART 128u /* longer than the 96 characters that the Hub allows */

/*
 * A name on the Hub: ORG/NAME, ORG/NAME@REVISION, each with /FILE or :QUANT, as llama.cpp and ollama write it; or the
 * address of a page or a file, https://huggingface.co/ORG/NAME/blob/REVISION/FILE, also with resolve and tree. A
 * revision is a commit, the beginning of one, a branch or a tag, or refs/pr/NUMBER.
 */
struct ctl_hub {
    char org[CTL_HUB_PART], name[CTL_HUB_PART];
    char quant[CTL_HUB_PART]; /* "": none */
    bool has_revision;
    char rest[1024]; /* REVISION/FILE, or FILE */
};

bool ctl_hub_has_host(const char *address); /* whether it is one of the Hub's pages or files */
/* Parses such a name. false: given does not have this form. */
bool ctl_hub_parse(const char *given, struct ctl_hub *hub);
/* Whether given has this form; copies ORG--NAME to name, or "" if not. */
bool ctl_hub_name(const char *given, char *name, size_t room);
/* Whether these bytes are one part of such a name. */
bool ctl_hub_is_name(const char *text, size_t bytes);

#endif
