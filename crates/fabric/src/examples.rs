//! Settings for tests, in few words.

use crate::mode::{Attachment, PodSettings};

/// A Linux bridge.
pub fn bridge() -> Attachment {
    Attachment::Linux { bridge: "cni0".into() }
}

/// How pods of a node with IPv4 are attached.
pub fn pods(attachment: Attachment) -> PodSettings {
    PodSettings {
        attachment,
        cluster_uid: "uid".into(),
        network_name: "mullion".into(),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        lans: vec!["10.240.0.0/24".parse().unwrap()],
        dns_ip: "10.96.0.10".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
        cni_conf_dir: "/conf".into(),
        ipam_dir: None,
        subnet_env: None,
    }
}
