//! The file `vol_data.json`, in which node agents keep what they need to take a volume down again. Its members are upstream's
//! (pkg/volume/csi/csi_mounter.go `volDataKey`), so that a node can change agents while pods run.

use serde::{Deserialize, Serialize};

/// The name of the file.
pub const FILE: &str = "vol_data.json";
/// Bytes of the file at most.
pub const MAX_FILE: u64 = 64 * 1024;

/// What the file says of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeData {
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment: String,
    #[serde(rename = "driverName")]
    pub driver: String,
    #[serde(rename = "nodeName", skip_serializing_if = "String::is_empty")]
    pub node: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    /// `Persistent` or `Ephemeral`.
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

/// Why a file says nothing of a volume.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{FILE} has more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("{FILE} cannot be read as JSON")]
    Json(#[from] serde_json::Error),
    #[error("{FILE} names no {0}")]
    Missing(&'static str),
}

impl VolumeData {
    /// Reads a file's bytes. Members that other versions may have are passed over.
    ///
    /// # Errors
    /// When they are no JSON object of texts, or name no driver or handle.
    pub fn parse(bytes: &[u8]) -> Result<Self, DataError> {
        if bytes.len() as u64 > MAX_FILE {
            return Err(DataError::TooLarge);
        }
        let data: Self = serde_json::from_slice(bytes)?;
        match () {
            () if data.driver.is_empty() => Err(DataError::Missing("driverName")),
            () if data.handle.is_empty() => Err(DataError::Missing("volumeHandle")),
            () => Ok(data),
        }
    }

    /// The bytes of a file that says this.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_files_are_read_and_ours_read_the_same() {
        let pod =
            br#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}"#;
        let data = VolumeData::parse(pod).unwrap();
        assert_eq!(String::from_utf8(data.to_bytes()).unwrap().trim_end().as_bytes(), pod);
        let global = VolumeData::parse(b"{\"driverName\":\"d\",\"volumeHandle\":\"h\",\"seLinuxMountContext\":\"x\"}\n").unwrap();
        assert_eq!(global.to_bytes(), b"{\"driverName\":\"d\",\"volumeHandle\":\"h\"}\n");
        for wrong in [&b""[..], b"{}", b"[]", b"{\"driverName\":\"d\"}", b"{\"driverName\":1,\"volumeHandle\":\"h\"}", b"null"] {
            assert!(VolumeData::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(matches!(VolumeData::parse(&vec![b' '; 70_000]), Err(DataError::TooLarge)));
    }
}
