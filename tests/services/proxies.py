"""Reverse proxies from Debian's packages: nginx 1.22 and HAProxy 2.6, in front of a server that speaks HTTP.

Both are set up as the manuals say: a header that says who the user is comes from the proxy alone, so what a client says
in it is deleted, and where a request comes from is written down. A host that begins with ``bare`` is served by the
least that works: one line that says where the server is.
"""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, final
from urllib.parse import urlsplit

from tests.services.http import answers
from tests.services.identity import hand_over, ordinary
from tests.services.places import fetched

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.kind import Kind

NGINX = """
daemon off;
master_process off;
error_log stderr;
pid {folder}/pid;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen 127.0.0.1:{port} default_server;
        server_name _;
        location / {{
            proxy_pass http://{backend};
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Auth-User "";
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header Forwarded "";
        }}
    }}
    server {{
        listen 127.0.0.1:{port};
        server_name bare.*;
        location / {{ proxy_pass http://{backend}; }}
    }}
}}
"""

HAPROXY = """
global
    maxconn 1000
    stats socket {folder}/stats mode 600
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend all
    bind 127.0.0.1:{port}
    acl bare hdr_beg(host) bare
    use_backend bare if bare
    default_backend full
backend full
    option forwardfor
    http-request del-header X-Auth-User
    http-request del-header Forwarded
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    server one {backend}
backend bare
    server one {backend}
"""


@final
class Proxy:
    """A proxy that runs as one process, with its settings and all that it writes in one folder."""

    orderly = signal.SIGTERM

    def __init__(self, name: str, settings: str, option: str) -> None:
        self._name, self._settings, self._option = name, settings, option

    def program(self) -> Path:
        """Return the proxy."""
        return fetched(f"proxies/usr/sbin/{self._name}")

    def prepare(self, folder: Path, behind: str) -> None:
        """Write down the server behind."""
        (folder / "behind").write_text(urlsplit(behind).netloc)
        hand_over(folder)

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with settings for the port."""
        backend = (folder / "behind").read_text()
        (folder / "settings").write_text(self._settings.format(folder=folder, port=port, backend=backend))
        return [*ordinary(), str(self.program()), self._option, str(folder / "settings")]

    def url(self, folder: Path, port: int) -> str:
        """Return its address."""
        del folder
        return f"http://127.0.0.1:{port}"

    def ready(self, url: str) -> bool:
        """Get an answer, whosever it is."""
        return answers(url, "/health")


PRIMARY = """
global
    maxconn 1000
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen primary
    bind 127.0.0.1:{port}
    option httpchk
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


@final
class PrimaryProxy:
    """HAProxy in front of replicated servers: ``behind`` names their ports, and those that say which is the primary.

    ``tcp://5432:8001,5433:8002``; a GET of ``/primary`` at the second port is answered with 200 by the primary alone.
    """

    orderly = signal.SIGTERM

    def program(self) -> Path:
        """Return the proxy."""
        return fetched("proxies/usr/sbin/haproxy")

    def prepare(self, folder: Path, behind: str) -> None:
        """Write down the servers behind."""
        (folder / "behind").write_text(behind.partition("://")[2])
        hand_over(folder)

    def command(self, folder: Path, port: int) -> list[str]:
        """Run it with settings for the port."""
        places = [each.split(":") for each in (folder / "behind").read_text().split(",")]
        lines = [f"    server s{own} 127.0.0.1:{own} check port {checked}" for own, checked in places]
        servers = "\n".join(["    http-check send meth GET uri /primary", *lines])
        (folder / "settings").write_text(PRIMARY.format(port=port, servers=servers))
        return [*ordinary(), str(self.program()), "-f", str(folder / "settings")]

    def url(self, folder: Path, port: int) -> str:
        """Return its address."""
        del folder
        return f"tcp://127.0.0.1:{port}"

    def ready(self, url: str) -> bool:
        """Connect to it."""
        try:
            socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), 5).close()
        except OSError:
            return False
        return True


KINDS: dict[str, Kind] = {
    "nginx": Proxy("nginx", NGINX, "-c"),
    "haproxy": Proxy("haproxy", HAPROXY, "-f"),
    "haproxy-primary": PrimaryProxy(),
}
