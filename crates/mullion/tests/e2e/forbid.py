"""Runs a program that the kernel refuses something: forbid.py RULE PROGRAM ARGUMENTS...

It stands for kernels and security modules that this machine does not have, by a seccomp filter:
  no-nftables   sockets of netlink's netfilter family do not exist, as in a kernel without nf_tables
  bare-userns   user namespaces can be made but give nothing, as where AppArmor restricts them (Ubuntu 24.04)
"""
import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NR, ARGUMENT_0, ARGUMENT_2 = 0, 16, 32
# System calls of x86-64.
SOCKET, MOUNT, SETHOSTNAME = 41, 165, 170
AF_NETLINK, NETLINK_NETFILTER = 16, 12
EPERM, EPROTONOSUPPORT = 1, 93

# (operation, jump when true, jump when false, operand)
RULES = {
    "no-nftables": [
        (LOAD, 0, 0, NR), (EQUAL, 0, 5, SOCKET),
        (LOAD, 0, 0, ARGUMENT_0), (EQUAL, 0, 3, AF_NETLINK),
        (LOAD, 0, 0, ARGUMENT_2), (EQUAL, 0, 1, NETLINK_NETFILTER),
        (RETURN, 0, 0, REFUSE | EPROTONOSUPPORT), (RETURN, 0, 0, ALLOW),
    ],
    "bare-userns": [
        (LOAD, 0, 0, NR), (EQUAL, 1, 0, MOUNT), (EQUAL, 0, 1, SETHOSTNAME),
        (RETURN, 0, 0, REFUSE | EPERM), (RETURN, 0, 0, ALLOW),
    ],
}

filters = b"".join(struct.pack("HBBI", *rule) for rule in RULES[sys.argv[1]])
memory = ctypes.create_string_buffer(filters)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(filters) // 8, ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, MODE_FILTER, program, 0, 0):
    sys.exit(f"forbid.py: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
