"""Where a store may lie: a folder, the memory of this process, a bucket of an S3 server."""

import uuid

import pytest


@pytest.fixture(scope="session")
def s3():
    """The address of an S3 server in this process."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(s3, monkeypatch):
    """The URL of an empty place in a bucket; who may read it, the environment says."""
    import s3fs

    words = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": "us-east-1"}
    for name, word in (words | {"ENDPOINT_URL": s3}).items():
        monkeypatch.setenv(f"AWS_{name}", word)
    name = uuid.uuid4().hex
    s3fs.S3FileSystem().mkdir(name)
    return f"s3://{name}/runs"


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request, tmp_path):
    """Where a store may lie, as a user writes it; nothing is there yet."""
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    if request.param == "folder":
        return str(tmp_path / "runs")
    pytest.importorskip("upath")
    return f"memory://{uuid.uuid4().hex}"
