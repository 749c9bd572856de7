//! Text of a pod's hosts file, as upstream's kubelet writes it.

use k8s_openapi::api::core::v1::HostAlias;

/// What comes before the pod's aliases.
pub(super) enum Base<'a> {
    /// Addresses and names of a pod with a network of its own.
    Pod { addresses: &'a [String], name: &'a str, domain: Option<String> },
    /// The node's own file, for a pod that shares the node's network.
    Node(&'a [u8]),
}

/// The whole file.
pub(super) fn text(base: &Base<'_>, aliases: &[HostAlias]) -> Vec<u8> {
    let mut out = match base {
        Base::Pod { addresses, name, domain } => pod(addresses, name, domain.as_deref()).into_bytes(),
        Base::Node(file) => [b"# Kubernetes-managed hosts file (host network).\n", *file].concat(),
    };
    if !aliases.is_empty() {
        out.extend_from_slice(b"\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        out.extend_from_slice(format!("{}\t{names}\n", alias.ip).as_bytes());
    }
    out
}

fn pod(addresses: &[String], name: &str, domain: Option<&str>) -> String {
    let mut text = String::from("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for address in addresses {
        match domain {
            Some(domain) => text.push_str(&format!("{address}\t{name}.{domain}\t{name}\n")),
            None => text.push_str(&format!("{address}\t{name}\n")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alias(ip: &str, names: &[&str]) -> HostAlias {
        HostAlias { ip: ip.to_owned(), hostnames: Some(names.iter().map(|&name| name.to_owned()).collect()) }
    }

    fn read(base: &Base<'_>, aliases: &[HostAlias]) -> String {
        String::from_utf8(text(base, aliases)).unwrap()
    }

    #[test]
    fn a_pod_finds_itself_and_its_aliases() {
        let addresses = ["192.168.0.7".to_owned(), "fd00::7".to_owned()];
        let base = Base::Pod { addresses: &addresses, name: "web-0", domain: Some("web.shop.svc.cluster.local".to_owned()) };
        assert_eq!(
            read(&base, &[alias("10.0.0.1", &["a", "b"])]),
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             192.168.0.7\tweb-0.web.shop.svc.cluster.local\tweb-0\nfd00::7\tweb-0.web.shop.svc.cluster.local\tweb-0\n\
             \n# Entries added by HostAliases.\n10.0.0.1\ta\tb\n"
        );
        let plain = Base::Pod { addresses: &addresses[..1], name: "web-0", domain: None };
        assert!(read(&plain, &[]).ends_with("\n192.168.0.7\tweb-0\n"));
    }

    #[test]
    fn a_pod_in_its_nodes_network_has_the_nodes_file_and_its_aliases() {
        let node = Base::Node(b"127.0.0.1\tlocalhost\n10.240.0.1\tgateway\n");
        let text = read(&node, &[alias("10.0.0.1", &["a"])]);
        assert_eq!(
            text,
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n10.240.0.1\tgateway\n\
             \n# Entries added by HostAliases.\n10.0.0.1\ta\n"
        );
    }
}
