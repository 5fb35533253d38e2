"""Kernels that are forks of one process, which has imported what every chapter imports.

A kernel of its own takes three seconds for that, so the book a minute. On Linux alone: elsewhere a
process that has begun to work is not forked safely, and kernels start as they always do.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from typing import Any

from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

IMPORTED = [
    *("__main__", "pandas", "matplotlib.pyplot", "myst_nb"),
    *("crtlib.experiments.crt", "crtbook.settings", "crtbook.figures.crt"),
    "ipykernel.kernelapp",  # last: tqdm, imported after it, warns that there are no widgets
]
BACKEND = "module://matplotlib_inline.backend_inline"


class _Provisioner(LocalProvisioner):
    """Starts a kernel as a fork; all else is done as for any process of this machine."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        started = context.Process(
            target=_kernel,
            args=(cmd[cmd.index("-f") :], dict(kwargs["env"]), kwargs.get("cwd") or os.getcwd()),
        )
        started.start()
        self.process, self.pid, self.pgid = _Popen(started), started.pid, None
        self.cwd = kwargs.get("cwd")
        return self.connection_info


class _Popen:
    """What a provisioner asks of ``subprocess.Popen``."""

    stdin = stdout = stderr = None

    def __init__(self, process: Any) -> None:
        self.process, self.pid = process, process.pid
        self.kill, self.terminate = process.kill, process.terminate

    def poll(self) -> int | None:
        code: int | None = self.process.exitcode
        return code

    def wait(self) -> int | None:
        self.process.join()
        return self.poll()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _kernel(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """One kernel, until it is shut down or the build ends."""
    from ipykernel.kernelapp import IPKernelApp

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["ipykernel_launcher", *arguments]
    threading.Thread(target=_leave_with_the_build, daemon=True).start()
    # A kernel waits for its parent's end too, if it has one: ours is the fork server, which waits
    # for us. Without one it would print how to connect to it.
    IPKernelApp.launch_instance(argv=[*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])


def _leave_with_the_build() -> None:
    build = multiprocessing.parent_process()
    assert build is not None
    build.join()
    os._exit(1)


class Manager(AsyncKernelManager):
    """A kernel manager whose kernels are forks."""

    async def _async_pre_start_kernel(self, **kwargs: Any) -> Any:
        self.kernel_id = self.kernel_id or kwargs.pop("kernel_id", None) or os.urandom(16).hex()
        if self.provisioner is None:
            self.provisioner = _Provisioner(
                kernel_id=self.kernel_id, kernel_spec=self.kernel_spec, parent=self
            )
        return await super()._async_pre_start_kernel(**kwargs)


def engine() -> dict[str, Any]:
    """What papermill's engine needs to know of it."""
    if sys.platform != "linux":
        return {}
    os.environ.setdefault("MPLBACKEND", BACKEND)  # read where matplotlib is imported
    return {"kernel_manager_class": Manager}
