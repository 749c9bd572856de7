//! Stop signals of containers: `Signal` of upstream's api.proto, which the generated messages do not have yet.

/// Upstream's names in the order of the enumeration, whose first member means that a container has none of its own.
const NAMES: [&str; 65] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMAX-14",
    "SIGRTMAX-13",
    "SIGRTMAX-12",
    "SIGRTMAX-11",
    "SIGRTMAX-10",
    "SIGRTMAX-9",
    "SIGRTMAX-8",
    "SIGRTMAX-7",
    "SIGRTMAX-6",
    "SIGRTMAX-5",
    "SIGRTMAX-4",
    "SIGRTMAX-3",
    "SIGRTMAX-2",
    "SIGRTMAX-1",
    "SIGRTMAX",
];

/// Numbers of Linux (x86 and Arm) in the same order, without those of real time, which follow each other.
const NUMBERS: [i32; 34] =
    [6, 14, 7, 17, 17, 18, 8, 1, 4, 2, 29, 6, 9, 13, 29, 27, 30, 3, 11, 16, 19, 31, 15, 5, 20, 21, 22, 23, 10, 12, 26, 28, 24, 25];
const RTMIN: i32 = 34;

/// A signal that asks a container to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(usize);

impl Signal {
    /// The signal of this name in a pod's `lifecycle.stopSignal`.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().position(|known| *known == name).map(Self)
    }

    /// The signal of this number of CRI's; None of zero, which is the runtime's own choice, and of numbers that are not known.
    pub fn from_cri(number: i32) -> Option<Self> {
        usize::try_from(number).ok()?.checked_sub(1).filter(|index| *index < NAMES.len()).map(Self)
    }

    /// Its number in CRI.
    pub fn cri(self) -> i32 {
        i32::try_from(self.0 + 1).unwrap_or_default()
    }

    /// As pods name it.
    pub fn name(self) -> &'static str {
        NAMES.get(self.0).copied().unwrap_or_default()
    }

    /// The first signal with this number of Linux.
    pub fn from_linux(number: i32) -> Option<Self> {
        (0..NAMES.len()).map(Self).find(|signal| signal.linux() == number)
    }

    /// Its number of Linux.
    pub fn linux(self) -> i32 {
        let real_time = || RTMIN + i32::try_from(self.0 - NUMBERS.len()).unwrap_or_default();
        NUMBERS.get(self.0).copied().unwrap_or_else(real_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_enumeration_and_of_linux() {
        for (name, cri, linux) in [
            ("SIGABRT", 1, 6),
            ("SIGCLD", 5, 17),
            ("SIGIO", 11, 29),
            ("SIGKILL", 13, 9),
            ("SIGPWR", 17, 30),
            ("SIGQUIT", 18, 3),
            ("SIGTERM", 23, 15),
            ("SIGUSR1", 29, 10),
            ("SIGXFSZ", 34, 25),
            ("SIGRTMIN", 35, 34),
            ("SIGRTMIN+1", 36, 35),
            ("SIGRTMIN+15", 50, 49),
            ("SIGRTMAX-14", 51, 50),
            ("SIGRTMAX-1", 64, 63),
            ("SIGRTMAX", 65, 64),
        ] {
            let signal = Signal::named(name).unwrap();
            assert_eq!((signal.cri(), signal.linux(), signal.name()), (cri, linux, name));
            assert_eq!(Signal::from_cri(cri), Some(signal));
        }
        assert_eq!([Signal::from_cri(0), Signal::from_cri(66), Signal::from_cri(-1)], [None; 3]);
        assert_eq!(["", "RUNTIME_DEFAULT", "sigterm", "TERM", "SIGRTMIN+16"].map(Signal::named), [None; 5]);
        for number in 1..=64 {
            // Numbers that no signal of the list has.
            let unknown = [32, 33].contains(&number);
            assert_eq!(Signal::from_linux(number).map(Signal::linux), (!unknown).then_some(number));
        }
        assert_eq!(Signal::from_linux(17).unwrap().name(), "SIGCHLD");
    }
}
