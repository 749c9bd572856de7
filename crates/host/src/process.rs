//! Processes of the machine.

use std::io;

use linux_sys::spawn::PidFd;
use nix::sys::signal::Signal;

/// Ends a process at once, which cannot refuse it. One that has ended already is fine.
///
/// # Errors
/// When it belongs to somebody else.
pub fn end_process(pid: u32) -> io::Result<()> {
    match PidFd::open(pid) {
        Ok(process) => process.kill(Signal::SIGKILL),
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_process_ends_and_one_that_has_is_fine() {
        let mut process = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        end_process(process.id()).unwrap();
        assert_eq!(process.wait().unwrap().signal(), Some(9));
        end_process(process.id()).unwrap();
    }
}
