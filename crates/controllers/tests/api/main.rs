//! The controllers and the scheduler against the real API server, all in this process.

mod addresses;
mod attachments;
mod autoscaling;
mod bootstrap;
mod budgets;
mod certificates;
mod common;
mod cronjobs;
mod daemonsets;
mod deletion;
mod dns;
mod jobs;
mod load_balancers;
mod nodes;
mod quotas;
mod replication_controllers;
mod service_accounts;
mod statefulsets;
mod storage;
mod watches;
mod workloads;
