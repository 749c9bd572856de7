//! Generates the messages and clients of the two protocols (servers too: tests have drivers of their own).

fn main() -> std::io::Result<()> {
    // Messages with secrets in them have no text.
    tonic_prost_build::configure()
        .btree_map(".")
        .skip_debug(["NodeStageVolumeRequest", "NodePublishVolumeRequest", "NodeExpandVolumeRequest"].map(|name| format!("csi.v1.{name}")))
        .compile_protos(&["proto/csi.proto", "proto/registration.proto"], &["proto"])
}
