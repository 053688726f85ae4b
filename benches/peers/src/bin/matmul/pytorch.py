# Products by PyTorch for `pytorch.rs`: commands come as lines on stdin, operands after them as f32; answers go to stdout.
import math
import os
import sys

import torch

device, precision = sys.argv[1:3]
torch.set_grad_enabled(False)
# As many as everybody else has, also where two are one core's.
torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
source, sink = sys.stdin.buffer, sys.stdout.buffer
dtype = torch.float16 if precision == "f16" else torch.float32


def synchronize():
    if device == "cuda":
        torch.cuda.synchronize()


def matrix(*sizes):
    values = bytearray(source.read(4 * math.prod(sizes)))
    return torch.frombuffer(values, dtype=torch.float32).reshape(sizes).to(device=device, dtype=dtype)


def answer(data):
    sink.write(data)
    sink.flush()


where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
answer(f"PyTorch {torch.__version__}, {where}\n".encode())
a = b = None
for line in source:
    command, *numbers = line.split()
    if command == b"prepare":
        batch, m, k, n, turned = map(int, numbers)
        before = [batch] if batch > 1 else []
        a = b = None
        a = matrix(*before, k, m).transpose(-1, -2) if turned else matrix(*before, m, k)
        b = matrix(*before, k, n)
        answer(b"ready\n")
    elif command == b"run":
        for _ in range(int(numbers[0])):
            torch.matmul(a, b)
        synchronize()
        answer(b"done\n")
    elif command == b"result":
        answer(torch.matmul(a, b).float().cpu().numpy().tobytes())
