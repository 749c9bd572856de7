//! Stop signals of containers: `Signal` of upstream's api.proto, which the generated messages do not have yet.

use kube_rules::STOP_SIGNALS;

/// Numbers of Linux (x86 and Arm) in the order of [`STOP_SIGNALS`], without those of real time, which follow each other.
const NUMBERS: [i32; 34] =
    [6, 14, 7, 17, 17, 18, 8, 1, 4, 2, 29, 6, 9, 13, 29, 27, 30, 3, 11, 16, 19, 31, 15, 5, 20, 21, 22, 23, 10, 12, 26, 28, 24, 25];
const RTMIN: i32 = 34;

/// A signal that asks a container to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(usize);

impl Signal {
    /// The signal of this name in a pod's `lifecycle.stopSignal`.
    pub fn named(name: &str) -> Option<Self> {
        STOP_SIGNALS.iter().position(|known| *known == name).map(Self)
    }

    /// The signal of this number of CRI's; None of zero, which is the runtime's own choice, and of numbers that are not known.
    pub fn from_cri(number: i32) -> Option<Self> {
        usize::try_from(number).ok()?.checked_sub(1).filter(|index| *index < STOP_SIGNALS.len()).map(Self)
    }

    /// Its number in CRI.
    pub fn cri(self) -> i32 {
        i32::try_from(self.0 + 1).unwrap_or_default()
    }

    /// As pods name it.
    pub fn name(self) -> &'static str {
        STOP_SIGNALS.get(self.0).copied().unwrap_or_default()
    }

    /// The first signal with this number of Linux.
    pub fn from_linux(number: i32) -> Option<Self> {
        (0..STOP_SIGNALS.len()).map(Self).find(|signal| signal.linux() == number)
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
