//! Programs known not to run under Wine, by name.
//!
//! Checked when a container is made, so that its creation is refused, and again for the file of the command line when it starts.

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
    #[test]
    fn known_programs_are_refused() {
        let refusal = |words: &[&str]| super::refusal(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(
            refusal(&[r"C:\ServiceMonitor.exe", "w3svc"])
                .unwrap()
                .starts_with(r"C:\ServiceMonitor.exe cannot run on a simulated node: it is part of IIS")
        );
        assert!(refusal(&["PowerShell", "-Command", "ls"]).unwrap().contains(".NET Framework"));
        assert_eq!(refusal(&["cmd.exe"]), None);
        assert_eq!(refusal(&[]), None);
    }
}
