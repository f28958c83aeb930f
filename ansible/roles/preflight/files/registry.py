"""Tests whether this host could pull an image: `python3 -` runs it there with the image's name.

It pulls nothing. The host's engine asks the registry for the image's manifest, with root's login for that
registry: it knows proxies, mirrors and certificates of its own (Docker's API, "Distribution inspect"). Where
no Docker engine answers, this program asks the registry directly.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json,"
    " application/vnd.docker.distribution.manifest.list.v2+json,"
    " application/vnd.docker.distribution.manifest.v2+json"
)
LOGINS = Path("/root/.docker/config.json")
ENGINE = "/var/run/docker.sock"
CERTIFICATES = "/etc/docker/certs.d"
SECONDS = 15
# An engine answers with 500 for some of these.
REFUSED = re.compile(r"(?i)no basic auth credentials|unauthorized|denied")


def parse(image: str) -> tuple[str, str, str]:
    """Split an image name as an engine does: into registry, repository, and tag or digest."""
    first, slash, rest = image.partition("/")
    if not slash or not (re.search(r"[.:]", first) or first == "localhost"):
        first, rest = "docker.io", image if slash else f"library/{image}"
    name, at, digest = rest.partition("@")
    tagged = re.fullmatch(r"(.*):([^/:]+)", name)
    name, tag = (tagged.group(1), tagged.group(2)) if tagged else (name, "latest")
    return first, name, digest if at else tag


def login(registry: str) -> str:
    """Return root's login for a registry, NAME:SECRET; <token> is the name of a token; "" for no login."""
    try:
        settings = json.loads(LOGINS.read_text())
        hub = "https://index.docker.io/v1/" if registry == "docker.io" else ""
        for name in (registry, f"https://{registry}", hub):
            known = settings.get("auths", {}).get(name, {})
            if known.get("identitytoken"):
                return f"<token>:{known['identitytoken']}"
            if known.get("auth"):
                return base64.b64decode(known["auth"]).decode()
        helper = settings.get("credHelpers", {}).get(registry) or settings.get("credsStore")
        return kept_by(helper, hub or registry) if helper else ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError, subprocess.SubprocessError):
        return ""


def kept_by(helper: str, registry: str) -> str:
    """Return the login that a credential helper has (docker login, "Credential helper protocol")."""
    argv = [f"docker-credential-{helper}", "get"]
    done = subprocess.run(argv, input=registry.encode(), capture_output=True, timeout=SECONDS, check=False)
    if done.returncode:
        return ""
    known = json.loads(done.stdout)
    return f"{known['Username']}:{known['Secret']}"


def trusted(registry: str) -> ssl.SSLContext:
    """Return a context that trusts the certificates that Docker and Podman would trust for this registry."""
    context = ssl.create_default_context()
    for path in Path(CERTIFICATES, registry).glob("*.crt"):
        context.load_verify_locations(path)
    return context


def ask(address: str, authorization: str, context: ssl.SSLContext) -> None:
    """Send one HEAD request; raises what urllib raises."""
    request = urllib.request.Request(address, method="HEAD", headers={"Accept": MANIFESTS})  # noqa: S310
    if authorization:
        request.add_header("Authorization", authorization)
    urllib.request.urlopen(request, timeout=SECONDS, context=context).close()  # noqa: S310


def token(challenge: str, known: str, context: ssl.SSLContext) -> str:
    """Return the Authorization header: a token from the address in the challenge, or the login itself."""
    words = base64.b64encode(known.encode()).decode()
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer") or not fields.get("realm", "").startswith("https://"):
        return f"Basic {words}" if words else ""
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    request = urllib.request.Request(f"{fields['realm']}?{query}")  # noqa: S310
    if words:
        request.add_header("Authorization", f"Basic {words}")
    with urllib.request.urlopen(request, timeout=SECONDS, context=context) as answer:  # noqa: S310
        reply = json.load(answer)
    return f"Bearer {reply.get('token') or reply.get('access_token')}"


class Engine(http.client.HTTPConnection):
    """A connection to the engine of this host."""

    def connect(self) -> None:
        """Connect to the engine's socket in place of a host."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(ENGINE)


def asked_by_the_engine(image: str) -> tuple[int, str] | None:
    """Return the engine's status and words about the image in its registry; None if no engine answers."""
    registry, name, reference = parse(image)
    full = f"{registry}/{name}{'@' if ':' in reference else ':'}{reference}"
    user, _, secret = login(registry).partition(":")
    known = {"identitytoken": secret} if user == "<token>" else {"username": user, "password": secret}
    said = base64.urlsafe_b64encode(json.dumps(known | {"serveraddress": registry}).encode()).decode()
    try:
        connection = Engine("localhost", timeout=SECONDS)
        path = f"/distribution/{urllib.parse.quote(full, safe='')}/json"
        connection.request("GET", path, headers={"X-Registry-Auth": said})
        answer = connection.getresponse()
        if not answer.getheader("Server", "").startswith("Docker/"):  # Podman's has no such question
            return None
        message = str(json.load(answer).get("message", ""))
    except (OSError, ValueError, AttributeError, http.client.HTTPException):
        return None
    return answer.status, message


def asked_from_here(image: str) -> tuple[int, str]:
    """Return the registry's status for the image, or 0 and why it cannot be asked."""
    registry, name, reference = parse(image)
    host = "registry-1.docker.io" if registry == "docker.io" else registry
    scheme = "http" if re.match(r"(localhost|127\.)", host) else "https"
    address = f"{scheme}://{host}/v2/{name}/manifests/{reference}"
    try:
        context = trusted(registry)
        try:
            ask(address, "", context)
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            ask(address, token(error.headers.get("WWW-Authenticate", ""), login(registry), context), context)
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))
    return 200, ""


def problem(image: str) -> str:
    """Return why the image cannot be pulled; "" if it can."""
    registry, _, _ = parse(image)
    status, words = asked_by_the_engine(image) or asked_from_here(image)
    if status == 200:
        return ""
    if status in {401, 403} or REFUSED.search(words):
        return f"the registry {registry} asks for a login (`docker login {registry}`, as root there)"
    if status == 404:
        return f"the registry {registry} has no such image"
    if words:
        _, _, reason = words.rpartition('": ')
        return f"the registry {registry} cannot be asked: {reason}"
    return f"the registry {registry} answers with status {status}"


def main() -> None:
    """Print the problem as JSON."""
    print(json.dumps({"problem": problem(sys.argv[1])}))


if __name__ == "__main__":
    main()
