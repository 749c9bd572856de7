//! Generates the messages, clients and servers of the two protocols.

fn main() -> std::io::Result<()> {
    tonic_prost_build::configure().btree_map(".").compile_protos(&["proto/deviceplugin.proto", "proto/podresources.proto"], &["proto"])
}
