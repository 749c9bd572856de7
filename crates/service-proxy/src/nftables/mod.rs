//! The backend for Linux.

pub mod elements;
