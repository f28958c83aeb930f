"""Tests whether this host could pull an image: `python3 -` runs it there with the image's name.

It pulls nothing. It asks the registry for the image's manifest, as an engine would, with root's login for
that registry.
"""

from __future__ import annotations

import json
import re
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
SECONDS = 15


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
    """Return the credentials that `docker login` stored for a registry; "" if it stored none here."""
    try:
        known = json.loads(LOGINS.read_text()).get("auths", {})
    except (OSError, ValueError):
        return ""
    hub = "https://index.docker.io/v1/" if registry == "docker.io" else ""
    names = (registry, f"https://{registry}", hub)
    return next((known[name]["auth"] for name in names if known.get(name, {}).get("auth")), "")


def ask(address: str, authorization: str) -> None:
    """Send one HEAD request; raises what urllib raises."""
    request = urllib.request.Request(address, method="HEAD", headers={"Accept": MANIFESTS})  # noqa: S310
    if authorization:
        request.add_header("Authorization", authorization)
    urllib.request.urlopen(request, timeout=SECONDS).close()  # noqa: S310


def token(challenge: str, words: str) -> str:
    """Return the Authorization header: a token from the address in the challenge, or the login itself."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer") or not fields.get("realm", "").startswith("https://"):
        return f"Basic {words}" if words else ""
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    request = urllib.request.Request(f"{fields['realm']}?{query}")  # noqa: S310
    if words:
        request.add_header("Authorization", f"Basic {words}")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
        reply = json.load(answer)
    return f"Bearer {reply.get('token') or reply.get('access_token')}"


def problem(image: str) -> str:
    """Return why the image cannot be pulled; "" if it can."""
    registry, name, reference = parse(image)
    host = "registry-1.docker.io" if registry == "docker.io" else registry
    scheme = "http" if re.match(r"(localhost|127\.)", host) else "https"
    address = f"{scheme}://{host}/v2/{name}/manifests/{reference}"
    try:
        try:
            ask(address, "")
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise
            ask(address, token(error.headers.get("WWW-Authenticate", ""), login(registry)))
    except urllib.error.HTTPError as error:
        known = {401: "wants a login", 403: "wants a login", 404: "has no such image"}
        return f"the registry {registry} {known.get(error.code, f'answers with status {error.code}')}"
    except (OSError, ValueError) as error:
        return f"the registry {registry} cannot be asked: {getattr(error, 'reason', error)}"
    return ""


def main() -> None:
    """Print the problem as JSON."""
    print(json.dumps({"problem": problem(sys.argv[1])}))


if __name__ == "__main__":
    main()
