# SPDX-License-Identifier: Apache-2.0
"""A small Hub on the loopback interface, with the API, redirects and error codes of the Hugging Face Hub.

    hub = Hub({"org/name": {COMMIT: {"model.gguf": data}}}, {"org/name": {"main": COMMIT}})

Files of 4 KiB and more are links to hub.blobs, another Server, which expire when blobs.signature changes; smaller ones
are behind a relative redirect.
"""
import hashlib
import json
import urllib.parse

from http_server import Server

LARGE = 4096


class Hub(Server):
    def __init__(self, models, references, tls=None):
        super().__init__({}, tls)
        self.models, self.references = models, references
        self.secret, self.private, self.gated, self.members = "hf_secret", set(), set(), set()
        self.blobs = Server({})
        self.blob_of = lambda data: "/" + hashlib.sha256(data).hexdigest()
        for commits in models.values():
            for files in commits.values():
                self.blobs.files.update({self.blob_of(data): data for data in files.values()})

    def close(self):
        self.blobs.close()
        super().close()

    def refuse(self, handler, status, code, message=""):
        self.send(handler, status, [("X-Error-Code", code)] if code else [], json.dumps({"error": message or code}).encode())

    def answer(self, handler):
        given = handler.headers.get("Authorization")
        if given not in (None, f"Bearer {self.secret}"):
            return self.refuse(handler, 401, "", "Invalid credentials in Authorization header")
        parts = urllib.parse.urlsplit(handler.path).path.split("/")[1:]
        api = parts[:2] == ["api", "models"]
        cached = parts[:3] == ["api", "resolve-cache", "models"]
        name = "/".join(parts[2:4] if api else parts[3:5] if cached else parts[:2])
        if name not in self.models or (name in self.private and not given):
            return self.refuse(handler, 404 if given else 401, "RepoNotFound")
        if api:
            return self.describe(handler, name, urllib.parse.unquote(parts[5]))
        commit, path = (parts[5], parts[6:]) if cached else (parts[3], parts[4:])
        self.resolve(handler, name, commit, urllib.parse.unquote("/".join(path)), cached)

    def describe(self, handler, name, revision):
        commit = self.references[name].get(revision, revision)
        if commit not in self.models[name]:
            return self.refuse(handler, 404, "RevisionNotFound")
        self.send(handler, 200, body=json.dumps({
            "id": name, "sha": commit, "private": name in self.private, "gated": "manual" if name in self.gated else False,
            "siblings": [{"rfilename": path} for path in self.models[name][commit]]}).encode())

    def resolve(self, handler, name, commit, path, cached):
        commit = self.references[name].get(commit, commit)
        if commit not in self.models[name]:
            return self.refuse(handler, 404, "RevisionNotFound")
        if name in self.gated and name not in self.members:
            return self.refuse(handler, 403 if handler.headers.get("Authorization") else 401, "GatedRepo")
        if path not in self.models[name][commit]:
            return self.refuse(handler, 404, "EntryNotFound")
        data = self.models[name][commit][path]
        etag = '"' + hashlib.sha1(data).hexdigest() + '"'  # another one than that of the blob
        if handler.headers.get("If-Match") not in (None, etag):
            return self.send(handler, 412)
        if len(data) >= LARGE:
            to = f"{self.blobs.url}/blob{self.blob_of(data)}?sig={self.blobs.signature}"
            return self.send(handler, 302, [("Location", to), ("X-Linked-ETag", f'"{hashlib.sha256(data).hexdigest()}"')])
        if not cached:
            to = f"/api/resolve-cache/models/{name}/{commit}/{urllib.parse.quote(path)}?etag=x"
            return self.send(handler, 307, [("Location", to)])
        first, last = self.range_of(handler, data)
        self.send(handler, 206, self.headers(etag, first, last, len(data)), data[first:last + 1])
