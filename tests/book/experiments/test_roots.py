"""A store by URL: what can be none, and what is said where nobody is let in."""

import pytest

from crtbook import roots
from crtbook.store import Store
from crtlib.checks import AccessError, ParameterError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s4://x/s", "store='s4://x/s': must be a folder or a URL that fsspec knows"),
        ("s3://me:word@x/s", "store: the URL holds a password; give it to fsspec, not to us"),
        ("", "store='': must name a folder or a URL"),
    ],
)
def test_what_can_be_no_store_is_one_line(name, message):
    with pytest.raises(ParameterError) as raised:
        roots.root(name)
    assert str(raised.value) == message


def test_without_credentials_it_is_one_line(bucket, monkeypatch, tmp_path):
    import s3fs

    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(AccessError, match=r"does not let us in \(NoCredentialsError\); fsspec"):
        Store(bucket).begin()
    s3fs.S3FileSystem.clear_instance_cache()
