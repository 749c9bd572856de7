//! The switches (sysctls) of a new network namespace.
//!
//! A new namespace copies the IPv4 settings `conf.all` and `conf.default` of the machine's first namespace (with
//! `net.core.devconf_inherit_init_net=1` the IPv6 ones too, with 3 those of its creator), and has the bridge firewall switched on
//! wherever `br_netfilter` is loaded. So it forwards where Docker or a kubelet ran, and filters by reverse path where a distribution's
//! sysctl.d says so. [`reset_switches`] makes all of them alike.

use std::io;

use crate::sysctl;

/// Settings below `net.ipv4.conf`: the name, and the value for `all`, `default` and `lo`. Where the kernel combines `all` with a link's
/// own value, 0 in each is off.
const IPV4: [(&str, &str); 21] = [
    ("accept_local", "0"),
    ("accept_redirects", "1"),
    ("accept_source_route", "0"),
    ("arp_accept", "0"),
    ("arp_announce", "0"),
    ("arp_filter", "0"),
    ("arp_ignore", "0"),
    ("arp_notify", "0"),
    ("bc_forwarding", "0"),
    ("drop_gratuitous_arp", "0"),
    ("drop_unicast_in_l2_multicast", "0"),
    ("ignore_routes_with_linkdown", "0"),
    ("log_martians", "0"),
    ("promote_secondaries", "0"),
    ("proxy_arp", "0"),
    ("proxy_arp_pvlan", "0"),
    ("route_localnet", "0"),
    ("rp_filter", "0"),
    ("secure_redirects", "1"),
    ("send_redirects", "1"),
    ("src_valid_mark", "0"),
];

/// Settings below `net.ipv6.conf`: the name, and the values for `all` and `default`.
const IPV6: [(&str, &str, &str); 11] = [
    ("accept_dad", "0", "1"),
    ("accept_ra", "1", "1"),
    ("accept_redirects", "1", "1"),
    ("accept_source_route", "0", "0"),
    ("addr_gen_mode", "0", "0"),
    ("autoconf", "1", "1"),
    ("dad_transmits", "1", "1"),
    ("ignore_routes_with_linkdown", "0", "0"),
    ("keep_addr_on_down", "0", "0"),
    ("ndisc_notify", "0", "0"),
    ("proxy_ndp", "0", "0"),
];

/// Settings below `net.bridge`: bridged frames are the bridge's matter alone.
const BRIDGE: [&str; 6] = [
    "bridge-nf-call-arptables",
    "bridge-nf-call-ip6tables",
    "bridge-nf-call-iptables",
    "bridge-nf-filter-pppoe-tagged",
    "bridge-nf-filter-vlan-tagged",
    "bridge-nf-pass-vlan-input-dev",
];

/// Gives the current, new network namespace the switches of a kernel that nobody configured, with the bridge firewall off, whatever it
/// inherited. [`NetNs::create_at`](super::NetNs::create_at) and [`NetNs::new_anonymous`](super::NetNs::new_anonymous) have done it; call it
/// in a namespace that came with a process, before its first link but the loopback. What a place needs beyond that it sets on top.
///
/// # Errors
/// When a switch that has another value cannot be set. A switch that this kernel does not have is as good as off.
pub fn reset_switches() -> io::Result<()> {
    each(|name, value| match sysctl::get(&name) {
        // What is right already is not written: /proc/sys may be read-only.
        Ok(now) if now == value => Ok(()),
        Ok(_) => sysctl::set(&name, value),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    })
}

/// Calls `f` for each switch and its value, in the order in which they are to be set.
fn each(mut f: impl FnMut(String, &'static str) -> io::Result<()>) -> io::Result<()> {
    // Forwarding first: to switch it changes others.
    f("net.ipv4.ip_forward".into(), "0")?;
    for place in ["default", "lo"] {
        f(format!("net.ipv4.conf.{place}.forwarding"), "0")?;
    }
    for (name, value) in IPV4 {
        for place in ["all", "default", "lo"] {
            f(format!("net.ipv4.conf.{place}.{name}"), value)?;
        }
    }
    for place in ["all", "default", "lo"] {
        f(format!("net.ipv6.conf.{place}.disable_ipv6"), "0")?;
        f(format!("net.ipv6.conf.{place}.forwarding"), "0")?;
    }
    for (name, all, default) in IPV6 {
        f(format!("net.ipv6.conf.all.{name}"), all)?;
        f(format!("net.ipv6.conf.default.{name}"), default)?;
    }
    BRIDGE.iter().try_for_each(|name| f(format!("net.bridge.{name}"), "0"))
}

/// The variable that [`inherit_for_tests`] reads.
pub const TEST_INHERIT: &str = "MULLION_TEST_INHERIT";

/// For tests, in debug builds alone: gives a new namespace what it could have inherited. `MULLION_TEST_INHERIT=opposite` is a host on
/// which each switch has another value than [`reset_switches`] gives it, `defaults` one on which forwarding, reverse path filters,
/// routed localhost and the bridge firewall are off; without it the namespace has what the machine gave it.
///
/// # Errors
/// When a switch cannot be set, or the variable has another value.
pub fn inherit_for_tests() -> io::Result<()> {
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    match std::env::var(TEST_INHERIT).as_deref() {
        Err(_) => Ok(()),
        Ok("opposite") => inherit(|_, value| Some(if value == "0" { "1" } else { "0" })),
        Ok("defaults") => {
            const NAMED: [&str; 4] = ["forward", "rp_filter", "route_localnet", "bridge-nf-call"];
            inherit(|name, _| NAMED.iter().any(|named| name.contains(named)).then_some("0"))
        }
        Ok(other) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{TEST_INHERIT} is `opposite` or `defaults`, not {other:?}"))),
    }
}

/// Sets each switch to what `value` makes of its name and its known value.
fn inherit(value: impl Fn(&str, &str) -> Option<&'static str>) -> io::Result<()> {
    each(|name, known| match value(&name, known).map(|value| sysctl::set(&name, value)) {
        Some(Err(e)) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ns::{NetNs, in_lab};

    /// The switches that differ from what they should be.
    fn different() -> Vec<String> {
        let mut different = Vec::new();
        each(|name, value| {
            match sysctl::get(&name) {
                Ok(now) if now != value => different.push(format!("{name}={now}")),
                Err(e) if e.kind() != io::ErrorKind::NotFound => panic!("{e}"),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
        different
    }

    #[test]
    fn a_new_namespace_is_in_the_known_state_whatever_it_inherited() {
        in_lab("ns::switches::tests::a_new_namespace_is_in_the_known_state_whatever_it_inherited", || {
            assert_eq!(different(), [""; 0], "of the lab itself");
            let made = NetNs::new_anonymous().unwrap();
            assert_eq!(made.run(different).unwrap(), [""; 0]);
            made.run(|| {
                inherit(|_, value| Some(if value == "0" { "1" } else { "0" })).unwrap();
                let hostile = different();
                for name in ["net.ipv4.ip_forward=1", "net.ipv4.conf.lo.rp_filter=1", "net.ipv4.conf.default.route_localnet=1"] {
                    assert!(hostile.iter().any(|switch| switch == name), "{name} in {hostile:?}");
                }
                reset_switches().unwrap();
                assert_eq!(different(), [""; 0], "after what the namespace could have inherited");
            })
            .unwrap();
        });
    }
}
