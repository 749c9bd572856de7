use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use super::*;

#[test]
fn a_process_ends_unless_it_is_another_and_one_that_has_ended_is_fine() {
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    end_process(process.id(), || false).unwrap();
    assert!(process.try_wait().unwrap().is_none(), "it was not meant");
    end_process(process.id(), || true).unwrap();
    assert_eq!(process.wait().unwrap().signal(), Some(9));
    end_process(process.id(), || true).unwrap();
}
