//! Netlink, namespaces and spawning into them: the only Linux system calls Mullion makes.
//!
//! | module | what it gives |
//! | --- | --- |
//! | [`ns`] | network namespaces as descriptors, pinned at paths; `in_lab` for tests |
//! | [`netlink`] | links, addresses, routes, rules, neighbours and forwarding entries |
//! | [`conntrack`] | connections that the kernel remembers: listed, forgotten |
//! | [`spawn`] | the one way to start a process in namespaces |
//! | [`ethtool`], [`mount`], [`sysctl`], [`fdpass`], [`signal`], [`terminal`], [`seccomp`], [`lock`], [`memory`], [`tcp_md5`] | what their names say |
//!
//! Everything is synchronous: a netlink exchange with the kernel does not wait for anybody else.
//! Netlink messages are built by this crate's own codec ([`netlink::wire`]), because nf_tables (crate `nft`) needs
//! one in any case (libnftnl is copyleft) and one codec for both families is less than two.
#![cfg(target_os = "linux")]

pub mod conntrack;
pub mod ethtool;
pub mod fdpass;
pub mod lock;
pub mod memory;
pub mod mount;
pub mod netlink;
pub mod ns;
pub mod seccomp;
pub mod signal;
pub mod spawn;
pub mod sysctl;
pub mod tcp_md5;
pub mod terminal;
