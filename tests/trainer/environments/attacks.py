"""What a hostile program tries.  Plain texts, so that tests can run them under every mechanism and every user."""

from __future__ import annotations

LOOP = "while True: pass"
SLEEP = "import time\ntime.sleep(10_000)"
FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
THREAD_BOMB = """
import threading, time
threading.stack_size(32768)
while True:
    threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()
"""
ALLOCATE = "bytearray(8 << 30)"
ALLOCATE_SLOWLY = "held = []\nwhile True: held.append(bytearray(1 << 20))"
CONNECT = "import socket\nsocket.create_connection(({host!r}, {port})).sendall(b'hello')"
CONNECT_LOCAL = "import socket\nsocket.socket(socket.AF_UNIX).connect({path!r})"
SEND_LOCAL = "import socket\nsocket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'mine', {path!r})"
WRITE_OUTSIDE = "open({path!r}, 'w').write('mine')"
TRUNCATE_OUTSIDE = "import os\nos.truncate({path!r}, 0)"
REMOVE_OUTSIDE = "import os\nos.unlink({path!r})"
CHANGE_MODE_OUTSIDE = "import os\nos.chmod({path!r}, 0o777)"
LINK_OUTSIDE = "import os\nos.symlink({path!r}, 'link')\nopen('link', 'w').write('mine')"
READ_OUTSIDE = "print(open({path!r}).read())"
READ_PARENTS_VARIABLES = """
import glob, sys
for path in glob.glob('/proc/[0-9]*/environ'):
    try:
        sys.stdout.write(open(path).read())
    except OSError:
        pass
"""
KILL_PARENT = """
import fcntl, os, signal
read, write = os.pipe()
for target in (os.getppid(), {pid}, -1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
    try:
        fcntl.fcntl(read, 10, signal.SIGKILL)
        fcntl.fcntl(read, fcntl.F_SETOWN, target)
        fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | fcntl.FASYNC)
        os.write(write, b"x")
    except OSError:
        pass
"""
SHOUT = "while True: print('x' * 1_000_000)"
COMPLAIN = "import sys\nwhile True: sys.stderr.write('x' * 1_000_000)"
FILL_DISK = """
number = 0
while True:
    with open(f'file{number}', 'wb') as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    number += 1
"""
OUTLIVE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for descriptor in range(64):
            try:
                os.close(descriptor)
            except OSError:
                pass
        time.sleep(10_000)
    os._exit(0)
os.wait()
print('done')
"""
SILENT = """
import os, time
for descriptor in range(64):
    try:
        os.close(descriptor)
    except OSError:
        pass
time.sleep(10_000)
"""
STOP_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass"
IGNORE_SIGNALS = """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True: pass
"""
EXECUTE = "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo mine'])"
CRASH = "import ctypes\nctypes.string_at(0)"
HARD_TO_REMOVE = """
import os
open('line\\nfeed', 'w').close()
os.mkdir('locked')
open('locked/file', 'w').close()
os.symlink('/', 'locked/link')
os.mkdir('deep')
os.chdir('deep')
for _ in range(1500):
    os.mkdir('d')
    os.chdir('d')
os.chdir('/')
print('done')
"""
DEEP_SOURCE = "(" * 100_000
CALL_ALL_BUT = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
found = {{}}
for number in set(range({most})) - set({known}):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    if result != -1 or ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        found[number] = errno.errorcode.get(ctypes.get_errno(), result)
print(found)
"""
CHANGE_ATTRIBUTES_OUTSIDE = """
import ctypes, os, struct
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry, 2**32 - 1) for entry in ((1, 6), (4, 4), (32, 4)))
held = ctypes.create_string_buffer(acl, len(acl))
given = ctypes.create_string_buffer(struct.pack("<QII", ctypes.addressof(held), len(acl), 0), 16)
ctypes.CDLL(None).syscall(463, -100, {path!r}.encode(), 0, b"system.posix_acl_access", given, ctypes.c_size_t(16))
print(open({path!r}).read())
"""
LOCK_LIBRARY = """
import fcntl, json
file = open(json.__file__)
fcntl.lockf(file, fcntl.LOCK_EX)
print("granted", end=", ")
try:
    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
except BlockingIOError:
    print("blocked", end="")
except OSError:
    print("refused", end="")
"""
