# SPDX-License-Identifier: Apache-2.0
"""Connections whose readers come late, for tests of what the kernel keeps of a file that was sent."""
import os
import socket

_listening = socket.create_server(("127.0.0.1", 0))


def connection(room):
    """(sender, receiver), with room for so many bytes that were sent and not read yet"""
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    sender.connect(_listening.getsockname())
    receiver, _ = _listening.accept()
    return sender, receiver


def send_and_close(sender, path, size):
    """As much of the file as goes without its reader, by sendfile: how much. What is queued goes on."""
    sender.setblocking(False)
    sent = 0
    with open(path, "rb", buffering=0) as file:
        try:
            while sent < size:
                sent += os.sendfile(sender.fileno(), file.fileno(), sent, size - sent)
        except BlockingIOError:
            pass
    sender.close()
    return sent


def receive(receiver):
    """All that comes until the end, which closes it."""
    data = b""
    while piece := receiver.recv(1 << 20):
        data += piece
    receiver.close()
    return data
