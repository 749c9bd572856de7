//! Rules of Kubernetes that the node agent, the scheduler, the controllers and the API server must apply alike.
//!
//! About pods and nodes: resource requests, taints and tolerations, node affinity, label and field selectors, host ports, readiness, OS
//! admission. About what a pod says: image names and Windows builds, kernel settings, quantities, environment expansion, path forms, schedules, durations and
//! QoS classes. About any object: errors of fields. About files: the text that users write. About clusters: bootstrap tokens. About CSI volumes: names. Pure: no I/O, no clock. Upstream's semantics decide; each module names its source.

pub mod admission;
pub mod bootstrap_token;
pub mod cron;
pub mod csi;
pub mod duration;
pub mod expand;
pub mod field;
pub mod host_ports;
pub mod image;
pub mod node_affinity;
pub mod node_labels;
pub mod os;
pub mod path;
pub mod pem;
pub mod qos;
pub mod quantity;
pub mod readiness;
pub mod reference;
pub mod requests;
pub mod selector;
pub mod static_pod;
mod stop_signals;
pub mod sysctl;
pub mod taints;
mod text;

pub use admission::{Refusal, admit_os};
pub use expand::expand;
pub use field::{ErrorKind, FieldError};
pub use host_ports::{HostPort, host_ports};
pub use image::{BuildMismatch, image_build, match_build, match_image};
pub use node_affinity::{NodeSelector, NodeTerm, RequiredNodeAffinity};
pub use os::{NodeOs, WINDOWS_RELEASES, WindowsRelease, release};
pub use path::{PathError, PodPath, container_path};
pub use qos::qos_class;
pub use quantity::{Quantity, QuantityError};
pub use readiness::{is_node_ready, is_pod_ready, is_status_ready};
pub use reference::{Reference, ReferenceError};
pub use requests::{Amounts, Resources, pod_limits, pod_requests};
pub use selector::{FieldSelector, Labels, Selector, SelectorError};
pub use stop_signals::STOP_SIGNALS;
pub use text::decode_text;
