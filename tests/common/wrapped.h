/* SPDX-License-Identifier: Apache-2.0 */
/* wrapped.h - replaces functions at link time: --wrap=NAME. */
#ifndef EFS_WRAPPED_H
#define EFS_WRAPPED_H

/* Defines the function that calls of `name` reach; __real_name() is the original. */
#define WRAPPED(type, name, parameters)                                                                                \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

#endif
