//! `parity check FILE` compares the tables of docs/service-proxy.md with the proofs in FILE; `parity write FILE` writes them into the
//! page. Both remove FILE.

use std::path::Path;
use std::process::ExitCode;

use parity::{Proofs, page};

fn run(verb: &str, file: &Path) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/service-proxy.md");
    let proofs = Proofs::read(file)?;
    std::fs::remove_file(file).map_err(|error| format!("cannot remove {}: {error}; remove it before the next run", file.display()))?;
    let there = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let proved = page::filled(&there, &proofs)?;
    match verb {
        "write" => std::fs::write(&path, proved).map_err(|error| format!("cannot write {}: {error}", path.display())),
        "check" => match page::differences(&there, &proved) {
            lines if lines.is_empty() => Ok(()),
            lines => Err(format!(
                "docs/service-proxy.md (-) differs from what the tests proved (+); `make docs-tables` writes it again:\n{}",
                lines.join("\n")
            )),
        },
        _ => Err(format!("there is no verb {verb}: use check or write")),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match &args[..] {
        [verb, file] => run(verb, Path::new(file)),
        _ => Err("usage: parity check|write FILE".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
