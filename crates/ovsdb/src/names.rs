//! Names that programs of this project write into databases and annotations, and others of them read: the pod network's side that writes
//! OVN's northbound database, and the CNI plug-in that writes the local switch's.

/// The key of the owner's mark in `external_ids`.
pub const OWNER: &str = "mullion.io/owner";
/// The database of this machine's Open vSwitch.
pub const LOCAL_SOCKET: &str = "unix:/run/openvswitch/db.sock";
/// The annotation of 2017 and 2018 with a pod's addresses.
pub const ANNOTATION: &str = "ovn";
/// Today's.
pub const NETWORKS: &str = "k8s.ovn.org/pod-networks";
/// On the mirror of a pod from a file: that pod's UID.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// The MTU of pods: what geneve leaves of 1500, rounded down.
pub const POD_MTU: u16 = 1400;

/// The name of a pod's logical port, which is the `iface-id` of its interface too.
#[must_use]
pub fn port_name(namespace: &str, pod: &str) -> String {
    format!("{namespace}_{pod}")
}

/// What keeps a logical port from the interface of an earlier pod of the same name (`iface-id-ver`): the UID that a runtime is told. Of a pod from
/// a file the API has a mirror with a UID of its own, which names the pod's. `mirrored`: its annotation [`MIRROR`].
#[must_use]
pub fn port_version<'a>(uid: &'a str, mirrored: Option<&'a str>) -> &'a str {
    mirrored.filter(|of| !of.is_empty()).unwrap_or(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_the_version_of_its_pod() {
        assert_eq!(port_version("a", None), "a");
        assert_eq!(port_version("a", Some("b")), "b");
        assert_eq!(port_version("a", Some("")), "a");
    }
}
