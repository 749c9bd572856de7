//! What differs between operating systems, behind small ports.
