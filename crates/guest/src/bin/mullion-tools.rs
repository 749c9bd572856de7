//! `curl.exe`, `ping.exe`, `tar.exe`, … of containers of Windows images: installed once under each name.

fn main() -> std::process::ExitCode {
    guest::tools::dispatch().unwrap_or_else(|| {
        eprintln!("mullion-tools: call it by the name of one of its tools: {}", guest::tools::INSTALLED.join(", "));
        std::process::ExitCode::from(2)
    })
}
