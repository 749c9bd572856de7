//! Windows programs in containers: their root, start and exit codes.
//!
//! The root is small: `/prefix` is the Windows that programs see (an overlay; drive C is `/prefix/drive_c`), `/usr` holds
//! Wine, `/c` and the like lead stand-ins to the drives, `/tmp` takes Wine's own socket. The rest of the machine is gone.

mod host_process;
mod root;
mod run;

pub(super) use root::{build, protect};
pub(super) use run::{Place, Watch, line};

/// Where a container's prefix is inside.
const PREFIX: &str = "/prefix";

/// Where a HostProcess container finds its image's files.
pub(crate) const IMAGE: &str = r"C:\hpc";
