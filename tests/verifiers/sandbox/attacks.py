"""Hostile programs. Each prints BREACH where it got what it wanted; none can take more than its limits."""

ATTACKS = {
    "fork bomb": "import os\nwhile True: os.fork(); print('BREACH')",
    "subprocess": "import subprocess\nsubprocess.run(['true']); print('BREACH')",
    "exec": "import os\nos.execv('/bin/echo', ['echo', 'BREACH'])",
    "child outlives parent": "import os, time\n"
    "if os.fork() == 0:\n  os.setsid(); time.sleep(60)\nprint('BREACH')",
    "vfork by ctypes": "import ctypes\nif ctypes.CDLL(None).syscall(58) >= 0: print('BREACH')",
    "thread bomb": "import threading, time\nthreading.stack_size(32768)\n"
    "while True: threading.Thread(target=time.sleep, args=(9,)).start()",
    "memory": "x = bytearray(4 << 30); print('BREACH')",
    "memory in pieces": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "infinite loop": "while True: pass",
    "sleep": "import time; time.sleep(60)",
    "blocks all signals": "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
    "  except (OSError, ValueError): pass\nwhile True: pass",
    "1 GB of output": "for _ in range(1024): print('a' * (1 << 20))",
    "closed descriptors": "import os\nos.closerange(0, 64)\nwhile True: pass",
    "reads /etc/passwd": "open('/etc/passwd').read(); print('BREACH')",
    "reads the parent's environment": "import os\n"
    "open(f'/proc/{os.getppid()}/environ').read(); print('BREACH')",
    "reads its own /proc": "open('/proc/self/environ').read(); print('BREACH')",
    "lists /tmp": "import os; os.listdir('/tmp'); print('BREACH')",
    "symlink": "import os; os.symlink('/etc/passwd', '/tmp/turnpoint-link'); print('BREACH')",
    "writes /tmp": "open('/tmp/turnpoint-file', 'w'); print('BREACH')",
    "writes here": "open('turnpoint-file', 'w'); print('BREACH')",
    "temporary file": "import tempfile; tempfile.TemporaryFile(); print('BREACH')",
    "fills shared memory": "open('/dev/shm/turnpoint-file', 'wb').write(bytes(1 << 30)); print('BREACH')",
    "memory file": "import os; os.memfd_create('x'); print('BREACH')",
    "chmod": "import os; os.chmod('/tmp', 0o1777); print('BREACH')",
    "removes": "import os; os.rmdir('/tmp/turnpoint-nothing')\nprint('BREACH')",
    "socket": "import socket; socket.socket(); print('BREACH')",
    "abstract socket": "import socket; socket.socket(socket.AF_UNIX).bind('\\0x'); print('BREACH')",
    "kills parent": "import os; os.kill(os.getppid(), 9); print('BREACH')",
    "kills all": "import os; os.kill(-1, 9); print('BREACH')",
    "signal by a pipe's owner": "import fcntl, os\nr, w = os.pipe()\n"
    "fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()); print('BREACH')",
    "limits the parent": "import os, resource\n"
    "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)); print('BREACH')",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1)); print('BREACH')",
    "traces the parent": "import ctypes, os\n"
    "if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: print('BREACH')",
    "setuid": "import ctypes\nif ctypes.CDLL(None).syscall(105, 0) == 0: print('BREACH')",
    "namespaces": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('BREACH')",
    "raw disk": "open('/dev/vda', 'rb'); print('BREACH')",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "stack overflow": "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: [*map(lambda _: f(), [0])]\nf()",
    "own environment": "import os\n"
    "if set(os.environ) & {'HOME', 'PATH', 'USER', 'PYTHONPATH'}: print('BREACH')",
}
