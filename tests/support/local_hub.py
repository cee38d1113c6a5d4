"""A hub on this machine: the parts of the Hugging Face hub's protocol that its client uses to fetch and to upload models."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secretOfTheTest123"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".onnx")  # stored by Git LFS


class LocalHub:
    """Repositories by id: {file name: bytes}. `faults` says what goes wrong: a request's "METHOD path" (a regular expression) to
    an answer's status, to "busy" (429) or "cut" (the answer ends in the middle), each once, or to the bytes that are answered."""

    def __init__(self):
        self.models, self.private, self.objects = {}, {}, {}
        self.faults, self.requests, self.ranges = {}, [], []
        self.etags = {}  # by file, in place of its checksum
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def add(self, name, folder, **more):
        self.models[name] = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} | more

    def fetched(self):
        """The files whose content was asked for."""
        return {path.split("/resolve/")[1].split("/", 1)[1] for method, path in self.requests
                if method == "GET" and "/resolve/" in path}

    def environment(self, folder, **variables):
        """Of a process that uses this hub. HF_HUB_DISABLE_XET: its storage protocol has no place in a small server."""
        return {"HOME": str(folder), "HF_ENDPOINT": self.address, "HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_DISABLE_XET": "1",
                "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", **variables}


class _Handler(BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.handle_request({
            r"/api/whoami-v2": lambda: self.json({"name": "tester", "type": "user"}) if self.known() else self.json({"error": "no"}, 401),
            r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?": self.model_info,
            r"/api/models/([^/]+/[^/]+)/tree/[^/]+": self.tree,
            r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)": self.file})

    do_HEAD = do_GET

    def do_POST(self):
        self.handle_request({
            r"/api/repos/create": self.create,
            r"/api/validate-yaml": lambda: self.json({"errors": [], "warnings": []}),
            r"/api/models/([^/]+/[^/]+)/preupload/main": self.preupload,
            r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch": self.batch,
            r"/api/models/([^/]+/[^/]+)/commit/main": self.commit})

    def do_PUT(self):
        self.handle_request({r"/objects/(.+)": self.store})

    def handle_request(self, routes):
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append((self.command, path))
        self.cut = self.damaged = False
        for pattern, fault in list(self.hub.faults.items()):
            if re.fullmatch(pattern, f"{self.command} {path}"):
                if isinstance(fault, bytes):
                    return self.answer(fault)
                if fault == "busy":
                    del self.hub.faults[pattern]
                    return self.json({"error": "too many requests"}, 429, Retry_After="1")
                if fault not in ("cut", "damaged"):
                    return self.json({"error": f"as the test wants, for {self.headers.get('Authorization')}"}, fault)
                del self.hub.faults[pattern]
                self.cut, self.damaged = fault == "cut", fault == "damaged"
        for pattern, answer in routes.items():
            if found := re.fullmatch(pattern, path):
                return answer(*found.groups())
        return self.json({"error": f"no route for {self.command} {path}"}, 404)

    def known(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def answer(self, content, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.wfile.write(content[: len(content) // 2] if self.cut else content)
        if self.cut:
            self.close_connection = True

    def json(self, value, status=200, **headers):
        self.answer(json.dumps(value).encode(), status, Content_Type="application/json", **headers)

    def missing(self, code):
        self.json({"error": code}, 404, X_Error_Code=code)

    def model_info(self, name, revision):
        if name not in self.hub.models:
            return self.missing("RepoNotFound")
        if revision not in (None, "main", COMMIT):
            return self.missing("RevisionNotFound")
        siblings = [{"rfilename": file, "size": len(content), "blobId": etag(content),
                     **({"lfs": lfs(content)} if file.endswith(LARGE) else {})} for file, content in self.hub.models[name].items()]
        return self.json({"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": [], "downloads": 0, "likes": 0,
                          "siblings": siblings})

    def tree(self, name):
        self.json([{"type": "file", "path": file, "size": len(content), "oid": etag(content),
                    **({"lfs": {"oid": etag(content), "size": len(content), "pointerSize": 130}} if file.endswith(LARGE) else {})}
                   for file, content in self.hub.models[name].items()])

    def file(self, name, file):
        content = self.hub.models.get(name, {}).get(file)
        if content is None:
            return self.missing("EntryNotFound")
        headers = {"ETag": f'"{self.hub.etags.get(file, etag(content))}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if wanted is None:
            return self.answer(content, **headers)
        first = int(wanted[1])
        self.hub.ranges.append((file, first))
        return self.answer(content[first:], 206, Content_Range=f"bytes {first}-{len(content) - 1}/{len(content)}", **headers)

    def create(self):
        if not self.known():
            return self.json({"error": "Unauthorized"}, 401)
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.models:
            return self.json({"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"}, 409)
        self.hub.models[name] = {".gitattributes": b""}
        self.hub.private[name] = asked.get("visibility") == "private" or asked.get("private") is True
        return self.json({"url": f"{self.hub.address}/{name}", "name": name})

    def preupload(self, name):
        self.json({"files": [{"path": file["path"], "shouldIgnore": False,
                              "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular"}
                             for file in json.loads(self.body)["files"]]})

    def batch(self, name):
        self.json({"transfer": "basic", "objects": [
            {**entry, "actions": {"upload": {"href": f"{self.hub.address}/objects/{entry['oid']}"}}}
            for entry in json.loads(self.body)["objects"]]})

    def store(self, object_id):
        assert hashlib.sha256(self.body).hexdigest() == object_id
        self.hub.objects[object_id] = self.body
        self.answer(b"")

    def commit(self, name):
        files = self.hub.models[name]
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        self.json({"commitUrl": f"{self.hub.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})


def etag(content):
    return hashlib.sha256(content).hexdigest()


def lfs(content):
    return {"sha256": etag(content), "size": len(content), "pointerSize": 130}
