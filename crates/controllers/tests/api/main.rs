//! The controllers and the scheduler against the real API server, all in this process.

mod budgets;
mod common;
mod daemonsets;
mod deletion;
mod dns;
mod nodes;
mod storage;
mod watches;
mod workloads;
