//! Pure rules about pods and nodes that the node agent, the API server and the linter share:
//! operating systems and Windows builds, image names and their match, OS admission, kernel settings, quantities, environment
//! expansion, path forms and QoS classes. No I/O, no clock.

pub mod admission;
pub mod expand;
pub mod image;
pub mod os;
pub mod path;
pub mod qos;
pub mod quantity;
pub mod reference;
pub mod sysctl;

pub use admission::{Refusal, admit_os};
pub use expand::expand;
pub use image::{BuildMismatch, image_build, match_build, match_image};
pub use os::{NodeOs, WINDOWS_RELEASES, WindowsRelease, release};
pub use path::{PathError, PodPath, container_path};
pub use qos::qos_class;
pub use quantity::{Quantity, QuantityError};
pub use reference::{Reference, ReferenceError};
