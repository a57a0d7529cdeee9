# SPDX-License-Identifier: Apache-2.0
"""Connections whose readers are late, for tests of the file pages that the kernel keeps for sent data."""
import os
import socket

_listening = socket.create_server(("127.0.0.1", 0))


def connection(room):
    """(sender, receiver), with a send buffer of `room` bytes"""
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
    sender.connect(_listening.getsockname())
    receiver, _ = _listening.accept()
    return sender, receiver


def send_and_close(sender, path, size):
    """Sends as much of the file by sendfile(2) as fits without its reader, and closes; returns the bytes sent. Queued
    data is still delivered."""
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
    """All data until the end of the stream; closes the receiver."""
    data = b""
    while piece := receiver.recv(1 << 20):
        data += piece
    receiver.close()
    return data
