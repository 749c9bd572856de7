//! What the served objects look like: upstream's types, the decoder's checks, discovery and OpenAPI documents.

mod decode;
mod discovery;
mod downgrade;
mod openapi;
mod openapi_v2;
mod tree;
pub mod types;

pub use decode::{decode_as, decode_check};
pub use discovery::{discovery_aggregated, discovery_api_versions, discovery_group, discovery_group_list, discovery_resource_list};
pub use openapi::{openapi_hash, openapi_v3, openapi_v3_index};
pub use openapi_v2::openapi_v2;
pub use tree::tree;
