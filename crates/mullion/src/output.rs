//! Standard output and standard error: `print!`, `println!` and `eprintln!` of this crate.
//!
//! std's macros panic when the reader has closed the pipe (`mullion status | head -1`). These drop what nobody reads, and the command goes
//! on to its own exit code: a supervisor whose log was closed keeps its cluster, too. SIGPIPE stays ignored, because it would also end
//! commands that write to a socket whose other end is gone.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write as _};

/// Replaces std's macro of the same name.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!($($text)*)) };
}

/// Replaces std's macro of the same name.
macro_rules! println {
    () => { $crate::output::to_stdout(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::to_stdout(format_args!("{}\n", format_args!($($text)*))) };
}

/// Replaces std's macro of the same name.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!($($text)*)) };
}

/// Replaces std's macro of the same name.
macro_rules! eprintln {
    () => { $crate::output::to_stderr(format_args!("\n")) };
    ($($text:tt)*) => { $crate::output::to_stderr(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints an answer. One that cannot be written whole, on a full disk say, ends the command.
pub fn to_stdout(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            to_stderr(format_args!("mullion: cannot write to standard output: {error}\n"));
            std::process::exit(crate::exit::Code::Failure.number().into());
        }
        _ => {}
    }
}

/// Prints a message. There is no other place for one that cannot be written.
pub fn to_stderr(text: Arguments<'_>) {
    drop(io::stderr().lock().write_fmt(text));
}
