//! Names that controllers and node agents derive alike from a CSI volume (pkg/volume/csi).

pub mod migration;

use sha2::{Digest as _, Sha256};

/// What the names of CSI volumes in a node's status begin with.
pub const PREFIX: &str = "kubernetes.io/csi/";

/// The name of a volume in a node's status (upstream: `GetUniqueVolumeName` of the CSI plug-in).
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PREFIX}{driver}^{handle}")
}

/// The name of the VolumeAttachment of a volume and a node (upstream: `getAttachmentName`).
pub fn attachment_name(driver: &str, handle: &str, node: &str) -> String {
    format!("csi-{}", digest(&format!("{handle}{driver}{node}")))
}

/// The handle of a volume that is written into the pod itself (upstream: `makeVolumeHandle`).
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", digest(&format!("{pod_uid}{volume}")))
}

/// SHA-256 in lower-case hexadecimal digits.
pub fn digest(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_driver_handle_and_node() {
        assert_eq!(unique_name("d.example", "vol-1"), "kubernetes.io/csi/d.example^vol-1");
        // printf 'vol-1d.examplen1' | sha256sum
        assert_eq!(attachment_name("d.example", "vol-1", "n1"), format!("csi-{}", digest("vol-1d.examplen1")));
        assert_eq!(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(inline_handle("uid", "v"), format!("csi-{}", digest("uidv")));
    }
}
