//! The plug-ins as a program, for the tests of this crate.

fn main() -> std::process::ExitCode {
    cni::program_main()
}
