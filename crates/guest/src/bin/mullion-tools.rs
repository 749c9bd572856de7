//! `curl.exe`, `tar.exe`, `nslookup.exe`, … of containers of Windows images: installed once under each name.

fn main() -> std::process::ExitCode {
    guest::tools::dispatch().unwrap_or_else(|| {
        eprintln!("mullion-tools: call it as curl, tar or nslookup");
        std::process::ExitCode::from(2)
    })
}
