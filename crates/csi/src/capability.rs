//! What a driver can do, and what is asked of a volume: pure.

use crate::v1::node_service_capability::{Type, rpc};
use crate::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use crate::v1::{NodeGetCapabilitiesResponse, VolumeCapability};

/// What a driver says it can do on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// NodeStageVolume and NodeUnstageVolume.
    pub stages: bool,
    /// NodeGetVolumeStats.
    pub stats: bool,
    /// NodeExpandVolume.
    pub expands: bool,
    /// It tells a volume for one pod from a volume for one node.
    pub single_node_multi_writer: bool,
    /// It gives a volume to a group by itself.
    pub mount_group: bool,
}

impl Capabilities {
    pub(crate) fn of(answer: &NodeGetCapabilitiesResponse) -> Self {
        let mut all = Self::default();
        for capability in &answer.capabilities {
            let Some(Type::Rpc(rpc)) = &capability.r#type else { continue };
            match rpc.r#type() {
                rpc::Type::StageUnstageVolume => all.stages = true,
                rpc::Type::GetVolumeStats => all.stats = true,
                rpc::Type::ExpandVolume => all.expands = true,
                rpc::Type::SingleNodeMultiWriter => all.single_node_multi_writer = true,
                rpc::Type::VolumeMountGroup => all.mount_group = true,
                rpc::Type::Unknown | rpc::Type::VolumeCondition => {}
            }
        }
        all
    }
}

/// How a volume is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Block,
    /// Through a file system of this type ("" for the driver's choice), mounted with these options, given to this group.
    Mount {
        fs_type: String,
        options: Vec<String>,
        group: Option<i64>,
    },
}

/// Kubernetes' access mode in CSI's terms (upstream: `asCSIAccessModeV1`, `asSingleNodeMultiWriterCapableCSIAccessModeV1`).
pub fn access_mode(mode: &str, capabilities: Capabilities) -> Mode {
    match mode {
        "ReadWriteOnce" if capabilities.single_node_multi_writer => Mode::SingleNodeMultiWriter,
        "ReadWriteOncePod" if capabilities.single_node_multi_writer => Mode::SingleNodeSingleWriter,
        "ReadWriteOnce" | "ReadWriteOncePod" => Mode::SingleNodeWriter,
        "ReadOnlyMany" => Mode::MultiNodeReaderOnly,
        "ReadWriteMany" => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// What is asked of a volume.
pub fn volume_capability(access: Access, mode: Mode) -> VolumeCapability {
    let access_type = match access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount { fs_type, options, group } => AccessType::Mount(MountVolume {
            fs_type,
            mount_flags: options,
            volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
        }),
    };
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_depend_on_what_the_driver_tells_apart() {
        let plain = Capabilities::default();
        let fine = Capabilities { single_node_multi_writer: true, ..plain };
        for (mode, wanted, finely) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!((access_mode(mode, plain), access_mode(mode, fine)), (wanted, finely), "{mode}");
        }
    }
}
