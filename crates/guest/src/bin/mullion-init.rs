//! First process of a Windows program in a container; runs under Wine.

fn main() -> std::process::ExitCode {
    #[cfg(windows)]
    return guest::windows::main();
    #[cfg(not(windows))]
    {
        eprintln!("mullion-init: this starts Windows programs in containers, so it runs on Windows (under Wine) only");
        std::process::ExitCode::FAILURE
    }
}
