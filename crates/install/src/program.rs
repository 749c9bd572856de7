//! Who may replace a program that is to run as root.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Why a program does not become a service.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("cannot look at {path}, where the service's program is to be")]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{owned} belongs to others than root, or others may write to it: they could put another program in the place of {program}; copy it to \
         /usr/local/bin, and run the command from there"
    )]
    Replaceable { owned: PathBuf, program: PathBuf },
}

/// Whoever may replace the program, or a directory above it, would be root with the service's next start.
///
/// # Errors
/// [`ProgramError`]
pub fn only_root_replaces(program: &Path) -> Result<(), ProgramError> {
    let real = program.canonicalize().map_err(|source| ProgramError::Look { path: program.to_owned(), source })?;
    for path in real.ancestors() {
        let metadata = path.metadata().map_err(|source| ProgramError::Look { path: path.to_owned(), source })?;
        if metadata.uid() != 0 || metadata.mode() & 0o022 != 0 {
            return Err(ProgramError::Replaceable { owned: path.to_owned(), program: program.to_owned() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_in_a_directory_of_others_is_refused() {
        // Programs of the system are root's, and links to them are followed.
        only_root_replaces(Path::new("/bin/sh")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("mullion");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(only_root_replaces(&program), Err(ProgramError::Replaceable { program: of, .. }) if of == program));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        only_root_replaces(&link).unwrap();
        assert!(matches!(only_root_replaces(Path::new("/nonexistent/mullion")), Err(ProgramError::Look { .. })));
    }
}
