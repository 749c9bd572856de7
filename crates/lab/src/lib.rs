//! The machine room of `mullion up`: namespaces, LAN, supervision, the NodePort relay.
