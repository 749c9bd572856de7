//! Programs that cannot run under Wine, known by name: said before they fail in words of their own.

/// Why the program of a command line cannot run here, and what to do instead.
pub fn refusal(argv: &[String]) -> Option<String> {
    let program = argv.first()?;
    let name = program.rsplit(['/', '\\']).next().unwrap_or(program).to_ascii_lowercase();
    let stem = name.strip_suffix(".exe").unwrap_or(&name);
    let (what, instead) = match stem {
        "servicemonitor" | "w3wp" | "inetinfo" => (
            format!("{program} watches over {}, a service of a real Windows", argv.get(1).map_or("IIS", String::as_str)),
            "pods of microsoft/iis and mcr.microsoft.com/windows/servercore/iis have a stand-in for IIS",
        ),
        "powershell" => (format!("{program} needs .NET Framework, which only a real Windows has"), "use cmd, or a program of your own"),
        "sqlservr" | "logmonitor" | "msmdsrv" => (format!("{program} needs services and drivers of a real Windows"), "run it on a Windows node"),
        _ => return None,
    };
    Some(format!("{what}, and simulated Windows nodes run programs under Wine: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_not_to_run_is_named() {
        let said = |words: &[&str]| refusal(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(said(&[r"C:\ServiceMonitor.exe", "w3svc"]).unwrap().contains("watches over w3svc"));
        assert!(said(&["PowerShell", "-Command", "ls"]).unwrap().contains(".NET Framework"));
        assert_eq!(said(&["cmd.exe"]), None);
        assert_eq!(said(&[]), None);
    }
}
