"""What a URL of the redis transport says, and what is refused."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmq.errors import ConfigError
from taskmq.plugins import Plugins
from taskmq_redis import RedisTransport
from taskmq_redis.settings import RedisSettings, escape


def parse(url: str) -> RedisSettings:
    return RedisSettings.parse(url)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("ca", "cert", "key"):
        file = tmp_path / f"{name} é.pem"
        file.touch()
        found[name] = str(file)
    return found


def test_defaults_are_the_local_server() -> None:
    settings = parse("redis://")
    assert settings.hosts == (("localhost", 6379),)
    assert (settings.db, settings.prefix, settings.lua) == (0, "taskmq:", "auto")
    assert settings.tls is None
    assert not settings.cluster


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("redis://example.org", (("example.org", 6379),)),
        ("redis://example.org:7000/3", (("example.org", 7000),)),
        ("redis://[::1]:7000", (("::1", 7000),)),
        ("redis://[::1]", (("::1", 6379),)),
        ("redis://a,b:7000?cluster=1", (("a", 6379), ("b", 7000))),
        ("redis+sentinel://a,b:7000,[::1]:5/main", (("a", 26379), ("b", 7000), ("::1", 5))),
    ],
)
def test_hosts_and_ports_are_read(url: str, hosts: tuple[tuple[str, int], ...]) -> None:
    assert parse(url).hosts == hosts


@pytest.mark.parametrize("url", ["redis://h/4", "redis://h?db=4", "redis+sentinel://h/main/4"])
def test_the_database_is_in_the_path_or_an_option(url: str) -> None:
    assert parse(url).db == 4


def test_a_unix_socket_is_a_path() -> None:
    settings = parse("redis+unix://me:pw@/run/re%20dis/redis.sock?db=2")
    assert (settings.path, settings.db) == ("/run/re dis/redis.sock", 2)
    assert (settings.username, settings.password) == ("me", "pw")


def test_sentinel_has_a_service_and_credentials_of_its_own() -> None:
    settings = parse(
        "redis+sentinel://u:p@h1,h2/my%20main/1?sentinel_username=s&sentinel_password=%25x&sentinel_tls=1"
    )
    assert settings.service == "my main"
    assert settings.sentinel == {"username": "s", "password": "%x", "ssl": True}
    assert (settings.username, settings.password, settings.db) == ("u", "p", 1)


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_password_travels_percent_encoded_and_is_never_shown(name: str, word: str) -> None:
    secret = f"Zq7{word}Zq7"
    url = f"redis://{quote(name, safe='')}:{quote(secret, safe='')}@h:1/0?prefix=a%40b:"
    settings = parse(url)
    assert (settings.username, settings.password) == (name, secret)
    assert settings.prefix == "a@b:"
    assert "Zq7" not in repr(settings)
    assert "Zq7" not in str(RedisTransport(settings).describe())


def test_an_at_sign_in_an_option_is_no_login() -> None:
    settings = parse("redis://h:7/0?prefix=me@home:1")
    assert settings.hosts == (("h", 7),)
    assert settings.prefix == "me@home:1"


def test_tls_files_and_the_degree_of_checking_are_read(files: dict[str, str]) -> None:
    options = "&".join(f"{name}={quote(path)}" for name, path in files.items())
    tls = parse(f"rediss://h?{options}&key_password=x&verify=ca").tls
    assert tls == {
        "ssl_ca_certs": files["ca"],
        "ssl_certfile": files["cert"],
        "ssl_keyfile": files["key"],
        "ssl_password": "x",
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": False,
    }


def test_certificates_are_checked_unless_said_otherwise() -> None:
    tls = parse("rediss://h").tls
    assert tls is not None
    assert (tls["ssl_cert_reqs"], tls["ssl_check_hostname"]) == ("required", True)
    tls = parse("rediss://h?verify=off").tls
    assert tls is not None
    assert (tls["ssl_cert_reqs"], tls["ssl_check_hostname"]) == ("none", False)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://h:x", "port"),
        ("redis://a,b", "several hosts"),
        ("redis://h?lua=maybe", "lua.*auto, on, off|lua.*auto.*on.*off"),
        ("redis://h?cluster=2", "cluster"),
        ("redis://h/1?cluster=1", "database 0 only"),
        ("redis+unix:///s?cluster=1", "host and port"),
        ("redis+unix://", "no socket"),
        ("redis+sentinel://h", "no service"),
        ("redis://h/1?db=1", "twice"),
        ("redis://h/x", "db must be a whole number"),
        ("redis://h?db=-1", "db must be a whole number"),
        ("redis://h?connections=0", "connections must be a whole number of at least 1"),
        ("redis://h?prefx=a", "did you mean 'prefix'"),
        ("redis://h?sentinel_password=a", "unknown option"),
        ("redis://h?ca=/x", "rediss://"),
        ("rediss://h?ca=/does/not/exist", "no file '/does/not/exist'"),
        ("rediss://h?verify=some", "verify"),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){complaint}"):
        parse(url)


def test_a_key_goes_with_a_certificate(files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="key goes with cert"):
        parse(f"rediss://h?key={quote(files['key'])}")


@pytest.mark.parametrize("url", ["redis://u:se%40cret@h/x", "redis://u:se%40cret@a,b"])
def test_complaints_keep_the_password_to_themselves(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert "cret" not in str(caught.value)


@given(st.text())
def test_escaped_names_hold_no_hash_tag_and_stay_apart(name: str) -> None:
    assert not set(escape(name)) & set("{}")
    assert escape(name) != escape(name + "{")
    assert escape(name).replace("%7B", "{").replace("%7D", "}").replace("%25", "%") == name


@pytest.mark.parametrize(
    "scheme", ["redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"]
)
@pytest.mark.parametrize("kind", ["transports", "results"])
def test_each_scheme_is_found_by_its_entry_point(kind: str, scheme: str) -> None:
    made = Plugins().resolve(kind, scheme)
    assert getattr(made, "from_url", None) is not None
