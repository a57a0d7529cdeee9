# SPDX-License-Identifier: Apache-2.0
"""The client runtime of libexpertfs on a mount; its answers are compared with the checkpoint."""
import reader_processes
from e2e import *

sys.path.insert(0, os.path.join(ROOT, "tests/clients"))
import ctypes_client as api

library_path = program("libexpertfs.so.0", PLAIN)
library = api.load(library_path)


class Client:
    """originals: {name: bytes} of the tensors of all experts."""

    def __init__(self, mount, originals):
        self.originals, self.handle, error = originals, ctypes.c_void_p(), api.Error()
        path = getattr(mount, "path", mount)  # or a store
        rc = library.efs_client_open(path.encode(), None, ctypes.byref(self.handle), ctypes.byref(error))
        if rc:
            raise OSError(-rc, error.text.decode())

    def begin(self, layer, experts):
        """Begins a request, which the caller must release; OSError."""
        needs, request, error = (api.Need * len(experts))(*((e, 2) for e in experts)), ctypes.c_void_p(), api.Error()
        rc = library.efs_client_begin(self.handle, b"", layer, needs, len(needs), api.FORM_FULL,
                                      ctypes.byref(request), ctypes.byref(error))
        if rc:
            raise OSError(-rc, error.text.decode())
        return request

    def ask(self, layer, experts, look=True):
        """Runs a request. Returns the differences from the checkpoint and the errors."""
        try:
            request = self.begin(layer, experts)
        except OSError as error:
            return [error.strerror]
        index, count, tensors, bad = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.POINTER(api.Tensor)(), []
        for _ in experts:
            status = ctypes.c_int()
            rc = library.efs_client_wait_any(request, 1000 * PATIENCE, ctypes.byref(index), ctypes.byref(status))
            if rc == 1:
                rc = status.value or library.efs_client_tensors(request, index, ctypes.byref(tensors), ctypes.byref(count))
            if rc < 0:
                bad.append((layer, experts[index.value], rc))
            for tensor in tensors[:count.value] if rc == 0 and look else []:
                if ctypes.string_at(tensor.data, tensor.bytes) != self.originals.get(tensor.name.decode()):
                    bad.append(tensor.name)
            library.efs_client_drop(request, index)
        library.efs_client_release(request)
        return bad

    def close(self):
        library.efs_client_close(self.handle)


def request_maker(mount, originals, layers, experts):
    """Returns a function for the readers of reader_processes.py: a client that requests some experts of a layer each
    time it is called. A failed expert is an OSError, wrong bytes are reader_processes.WrongBytes."""
    clients = []

    def client(generator):
        if not clients:
            clients.append(Client(mount, originals))
        for problem in clients[0].ask(generator.randrange(layers), generator.sample(range(experts), generator.choice((1, 2, 3, 4)))):
            if isinstance(problem, tuple):
                raise OSError(-problem[2], "an expert")
            raise reader_processes.WrongBytes(problem) if isinstance(problem, bytes) else OSError(errno.EPIPE, problem)  # the request
    return client
