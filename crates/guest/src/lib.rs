//! Small programs for pods: the stand-in servers.
