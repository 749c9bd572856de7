//! Netlink, nf_tables, namespaces and spawning into them: the only Linux system calls Mullion makes.
