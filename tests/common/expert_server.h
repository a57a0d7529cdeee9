/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expert_server.h - a process that plays the daemon's part on the export socket of a mount (expertfs-protocol.h): it
 * hands out the files below DIRECTORY/experts, decoded, or coded as chunks that are not compressed. fake_daemon.h is
 * for daemons that misbehave.
 */
#ifndef EFS_EXPERT_SERVER_H
#define EFS_EXPERT_SERVER_H

#include <sys/types.h>

/* Starts it and writes .expertfs/handout. A failure ends the test (cmocka). */
pid_t expert_server_start(const char *directory);
void expert_server_stop(pid_t server);

#endif
