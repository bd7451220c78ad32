"""Certificates made by openssl: an authority, a server's and a client's, all of them for a day."""

from __future__ import annotations

from pathlib import Path

from support.launching import run

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> None:
    """Write ca.pem, server.pem and client.pem with their keys (`….key`).

    Args:
        folder: Where they go.
        names: What the server's certificate is for.
    """
    authority = ["openssl", "req", "-x509", *_KEY, "-days", "1", "-subj", "/CN=taskmq tests"]
    # With all that strict checks (Python 3.13) ask for.
    authority += ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    run([*authority, "-keyout", "ca.key", "-out", "ca.pem"], folder)
    for name, alternative in (("server", names), ("client", "DNS:client")):
        request = ["openssl", "req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key"]
        run([*request, "-out", f"{name}.csr"], folder)
        (folder / f"{name}.ext").write_text(
            f"subjectAltName={alternative}\nauthorityKeyIdentifier=keyid\nbasicConstraints=CA:FALSE\n"
        )
        sign = ["openssl", "x509", "-req", "-days", "1", "-CA", "ca.pem", "-CAkey", "ca.key"]
        sign += ["-CAcreateserial", "-in", f"{name}.csr", "-extfile", f"{name}.ext"]
        run([*sign, "-out", f"{name}.pem"], folder)
