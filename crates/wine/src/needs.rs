//! Programs that cannot run under Wine, known by name: said before they fail in words of their own.
//!
//! Asked when a container is made (so that its creation is refused), and of the file that a command line turns out to
//! mean when it is started.

/// Why a program of that file name cannot run here, and what to do instead.
pub fn known(file: &str) -> Option<&'static str> {
    let name = file.to_ascii_lowercase();
    Some(match name.strip_suffix(".exe").unwrap_or(&name) {
        "servicemonitor" | "w3wp" | "inetinfo" | "iisexpress" => {
            "it is part of IIS, which needs the services and drivers of a real Windows: the images of IIS itself (microsoft/iis and \
             mcr.microsoft.com/windows/servercore/iis) have a stand-in here, whose content can be mounted at C:\\inetpub\\wwwroot"
        }
        "powershell" => "it needs .NET Framework, which only a real Windows has: use cmd, or a program of your own",
        "sqlservr" | "logmonitor" | "msmdsrv" => "it needs services and drivers of a real Windows: run it on a Windows node",
        _ => return None,
    })
}

/// Why the program of a command line cannot run here, and what to do instead.
pub fn refusal(argv: &[String]) -> Option<String> {
    let program = argv.first()?;
    let reason = known(program.rsplit(['/', '\\']).next().unwrap_or(program))?;
    Some(format!("{program} cannot run on a simulated node: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_not_to_run_is_named() {
        let said = |words: &[&str]| refusal(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(
            said(&[r"C:\ServiceMonitor.exe", "w3svc"])
                .unwrap()
                .starts_with(r"C:\ServiceMonitor.exe cannot run on a simulated node: it is part of IIS")
        );
        assert!(said(&["PowerShell", "-Command", "ls"]).unwrap().contains(".NET Framework"));
        assert_eq!(said(&["cmd.exe"]), None);
        assert_eq!(said(&[]), None);
    }
}
