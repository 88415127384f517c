import ipaddress
import stat
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cafedcl.config.sections import read_file
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.folders import (
    ServerOptions,
    SiteOptions,
    make_folders,
    read_server,
    read_site,
    site_names,
)
from cafedcl.task.resolve import resolve

SITES = {"north": "/data/north", "south": ""}


def made(folder, *, simulated=False, **options):
    return make_folders(
        folder, ServerOptions(host="203.0.113.7", port=8123, **options), dict(SITES), simulated
    )


def test_a_deployment_is_a_server_and_a_folder_for_every_site(tmp_path):
    server, north, south = made(tmp_path / "d")
    assert read_server(server) == ServerOptions(host="203.0.113.7", port=8123)
    assert (read_site(north).data, read_site(south).data) == ("/data/north", "")
    assert (read_site(north).host, read_site(north).port, read_site(north).insecure) == (
        "203.0.113.7",
        8123,
        False,
    )
    assert site_names(server) == ["north", "south"]
    run = resolve(read_file(server / "run.toml"))
    assert (run.data.name, run.federation.clients) == ("sites", 2)


def test_the_proxys_config_is_there_to_be_looked_at(tmp_path):
    text = (made(tmp_path / "d")[0] / "nginx.conf").read_text()
    assert "listen 0.0.0.0:8123 ssl;" in text
    assert "server 127.0.0.1:8001;" in text


def test_simulated_sites_are_clients_of_the_runs_data_set(tmp_path):
    server, north, south = make_folders(
        tmp_path, ServerOptions(), {"north": "", "south": ""}, simulated=True
    )
    assert [read_site(place).client for place in (north, south)] == [0, 1]
    assert resolve(read_file(server / "run.toml")).data.name == "digits"


def test_secrets_are_their_owners_and_public_parts_are_where_they_belong(tmp_path):
    server, north, _ = made(tmp_path / "d")
    for secret in (server / "server.key", north / "node.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(north.stat().st_mode) == 0o700
    assert {path.name for path in north.iterdir()} == {"ca.crt", "node.key", "site.toml"}
    assert not list(server.rglob("node.key"))
    # Nobody can sign a second certificate.
    assert not list((tmp_path / "d").rglob("ca.key"))


def test_the_certificate_is_signed_by_the_ca_and_good_for_the_host(tmp_path):
    server, north, _ = made(tmp_path / "d")
    ca, leaf = (
        x509.load_pem_x509_certificate((server / name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    leaf.verify_directly_issued_by(ca)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert addresses == [ipaddress.ip_address("203.0.113.7"), ipaddress.ip_address("127.0.0.1")]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    key = serialization.load_pem_private_key((server / "server.key").read_bytes(), None)
    assert key.public_key() == leaf.public_key()
    assert (north / "ca.crt").read_bytes() == (server / "ca.crt").read_bytes()


def test_every_site_has_a_key_of_its_own_that_the_server_knows(tmp_path):
    server, north, south = made(tmp_path / "d")
    keys = [
        serialization.load_ssh_private_key((place / "node.key").read_bytes(), None)
        for place in (north, south)
    ]
    known = [
        serialization.load_ssh_public_key((server / "sites" / f"{n}.pub").read_bytes())
        for n in SITES
    ]
    assert [key.public_key() for key in keys] == known
    assert known[0] != known[1]
    assert isinstance(known[0].curve, ec.SECP384R1)


def test_without_security_there_are_no_keys_and_every_config_says_so(tmp_path):
    server, north, _ = made(tmp_path / "d", insecure=True)
    assert read_server(server).insecure
    assert read_site(north).insecure
    assert not list((tmp_path / "d").rglob("*.key"))
    assert site_names(server) == ["north", "south"]


@pytest.mark.parametrize("name", ["server", "a b", "../up", "", "-x", "x" * 64])
def test_a_name_that_cannot_be_a_folder_is_refused(name, tmp_path):
    with pytest.raises(CafedclError, match=r"site .*: use letters"):
        make_folders(tmp_path / "d", ServerOptions(), {name: ""}, simulated=False)
    assert not (tmp_path / "d").exists()


def test_an_existing_deployment_is_never_overwritten(tmp_path):
    made(tmp_path / "d")
    key = (tmp_path / "d" / "server" / "server.key").read_bytes()
    with pytest.raises(CafedclError, match="not an empty folder"):
        made(tmp_path / "d")
    with pytest.raises(CafedclError, match="not an empty folder"):
        made(tmp_path / "d" / "server" / "server.key")
    assert (tmp_path / "d" / "server" / "server.key").read_bytes() == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "deploy init"),
        ("[site", "site.toml: not valid TOML"),
        ("[server]\nport = 1\n", r"one section \[site\]"),
        ("[site]\nprot = 1\n", "port"),
        ("[site]\nport = 0\n", "at least 1"),
    ],
)
def test_a_config_that_does_not_fit_is_explained(text, words, tmp_path):
    if text is not None:
        (tmp_path / "site.toml").write_text(text)
    with pytest.raises(CafedclError, match=words):
        read_site(tmp_path)


def test_configs_explain_themselves(tmp_path):
    _, north, _ = made(tmp_path / "d")
    text = (north / "site.toml").read_text()
    assert text.startswith("# cafedcl deploy site THIS-FOLDER\n")
    assert set(tomllib.loads(text)["site"]) == {field.name for field in fields(SiteOptions)}
    assert "# this site's data" in text


@pytest.mark.parametrize("host", ["", "a b", "http://x.org:80", "klinik-süd.de"])
def test_a_host_that_is_no_name_is_refused_before_anything_is_written(host, tmp_path):
    with pytest.raises(CafedclError, match="a host name or an address is expected"):
        make_folders(tmp_path / "d", ServerOptions(host=host), dict(SITES), simulated=False)
    assert not (tmp_path / "d").exists()


def test_a_long_host_name_is_in_the_certificate(tmp_path):
    host = f"{'x' * 60}.example.org"
    server, *_ = make_folders(tmp_path / "d", ServerOptions(host=host), dict(SITES), False)
    certificate = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert host in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("names", [("North", "north"), ("Server",)])
def test_site_names_that_are_one_folder_on_some_systems_are_refused(names, tmp_path):
    with pytest.raises(CafedclError, match=r"upper and lower case|not the name 'server'"):
        make_folders(tmp_path / "d", ServerOptions(), dict.fromkeys(names, ""), False)


def test_an_option_of_the_wrong_kind_is_told_with_its_file(tmp_path):
    server, *_ = made(tmp_path / "d")
    file = server / "server.toml"
    file.write_text(file.read_text().replace("port = 8123", 'port = "x"'))
    with pytest.raises(CafedclError, match=r"server/server\.toml: server\.port = \"x\": a whole"):
        read_server(server)


def test_a_folder_that_is_one_too_high_or_elsewhere_is_found(tmp_path, monkeypatch):
    make_folders(tmp_path / "d", ServerOptions(), {"north": ""}, simulated=True)
    with pytest.raises(CafedclError, match=r"no server.toml; did you mean .*d/server\?"):
        read_server(tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CafedclError, match=r"^north: .* did you mean d/north\?"):
        read_site(Path("north"))
    with pytest.raises(CafedclError, match="`cafedcl deploy init` makes one"):
        read_site(Path("west"))
