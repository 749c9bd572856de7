//! Addresses through IP Helper. Windows keeps no owner of an address: ours are those that stand alone (no prefix) and are
//! never a source of what this machine sends by itself, which nobody else sets together.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::ptr;

use windows_sys::Win32::Foundation::{ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CreateUnicastIpAddressEntry, DeleteUnicastIpAddressEntry, FreeMibTable, GetUnicastIpAddressTable, InitializeUnicastIpAddressEntry,
    MIB_UNICASTIPADDRESS_ROW, MIB_UNICASTIPADDRESS_TABLE,
};
use windows_sys::Win32::Networking::WinSock::{AF_UNSPEC, IpDadStatePreferred};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::{s, w};

use super::{Addresses, AddressesError, HostAddress, failed, missing};
use crate::routes::{Routes, WindowsRoutes, address_in, address_out, check};

/// The addresses of one interface (default compartment).
#[derive(Debug)]
pub struct WindowsAddresses {
    index: u32,
    name: String,
}

impl WindowsAddresses {
    /// Those of the interface with the alias `name`.
    pub fn open(name: &str) -> Result<Self, AddressesError> {
        let found = WindowsRoutes.interface(name).map_err(|error| failed(error.operation)(error.source))?;
        Ok(Self { index: found.ok_or_else(|| missing(name))?, name: name.to_owned() })
    }

    fn row(&self, ip: IpAddr) -> io::Result<MIB_UNICASTIPADDRESS_ROW> {
        writable()?;
        let mut row = MIB_UNICASTIPADDRESS_ROW::default();
        // SAFETY: `row` is a valid structure for the call to fill with defaults.
        unsafe { InitializeUnicastIpAddressEntry(&mut row) };
        fill(&mut row, self.index, ip);
        Ok(row)
    }
}

/// Makes `row` one of ours.
fn fill(row: &mut MIB_UNICASTIPADDRESS_ROW, index: u32, ip: IpAddr) {
    row.InterfaceIndex = index;
    row.Address = address_in(ip);
    row.OnLinkPrefixLength = if ip.is_ipv4() { 32 } else { 128 };
    // Usable at once: nobody else has an address of a Service.
    row.DadState = IpDadStatePreferred;
    row.SkipAsSource = true;
}

/// Wine's IP Helper reads addresses and has nothing that writes one: there a call would end this process.
fn writable() -> io::Result<()> {
    // SAFETY: both names end with NUL; a library that this program is linked to stays loaded.
    let found = unsafe {
        let library = GetModuleHandleW(w!("iphlpapi.dll"));
        if library.is_null() { None } else { GetProcAddress(library, s!("CreateUnicastIpAddressEntry")) }
    };
    match found {
        Some(_) => Ok(()),
        None => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "this system's IP Helper has no CreateUnicastIpAddressEntry, as Wine's; real Windows has"))
        }
    }
}

impl Addresses for WindowsAddresses {
    fn list(&self) -> Result<Vec<HostAddress>, AddressesError> {
        let mut table: *mut MIB_UNICASTIPADDRESS_TABLE = ptr::null_mut();
        // SAFETY: `table` is a valid place for the pointer that the call returns.
        check(unsafe { GetUnicastIpAddressTable(AF_UNSPEC, &mut table) }).map_err(failed(format!("list addresses of {}", self.name)))?;
        // SAFETY: on success the table holds NumEntries rows, valid until FreeMibTable.
        let rows = unsafe { std::slice::from_raw_parts((*table).Table.as_ptr(), (*table).NumEntries as usize) };
        let here = rows.iter().filter(|row| row.InterfaceIndex == self.index);
        let addresses = here.filter_map(|row| Some(host_address(address_out(&row.Address)?, row))).collect();
        // SAFETY: the table came from GetUnicastIpAddressTable and `rows` is not used again.
        unsafe { FreeMibTable(table.cast()) };
        Ok(addresses)
    }

    fn add(&self, ip: IpAddr) -> Result<(), AddressesError> {
        let row = self.row(ip).map_err(failed(format!("add {ip} to {}", self.name)))?;
        // SAFETY: `row` was initialised by InitializeUnicastIpAddressEntry and filled in.
        match unsafe { CreateUnicastIpAddressEntry(&row) } {
            0 | ERROR_OBJECT_ALREADY_EXISTS => Ok(()),
            code => check(code).map_err(failed(format!("add {ip} to {}", self.name))),
        }
    }

    fn delete(&self, ip: IpAddr) -> Result<(), AddressesError> {
        let row = self.row(ip).map_err(failed(format!("delete {ip} of {}", self.name)))?;
        // SAFETY: as in `add`.
        match unsafe { DeleteUnicastIpAddressEntry(&row) } {
            0 | ERROR_NOT_FOUND => Ok(()),
            code => check(code).map_err(failed(format!("delete {ip} of {}", self.name))),
        }
    }
}

fn host_address(ip: IpAddr, row: &MIB_UNICASTIPADDRESS_ROW) -> HostAddress {
    let alone = row.OnLinkPrefixLength == if ip.is_ipv4() { 32 } else { 128 };
    HostAddress { ip, ours: alone && row.SkipAsSource }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_recognised_by_their_mark() {
        for ip in ["10.96.0.1", "fd00:96::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            let mut row = MIB_UNICASTIPADDRESS_ROW::default();
            fill(&mut row, 7, ip);
            assert_eq!((row.InterfaceIndex, address_out(&row.Address)), (7, Some(ip)));
            assert_eq!(host_address(ip, &row), HostAddress { ip, ours: true });
            // An adapter's address lies in a network; an administrator's own may be a source.
            let [mut wide, mut source] = [row, row];
            wide.OnLinkPrefixLength = 24;
            source.SkipAsSource = false;
            assert!(!host_address(ip, &wide).ours && !host_address(ip, &source).ours, "{ip}");
        }
    }

    #[test]
    fn addresses_come_and_go_and_failures_name_address_and_interface() {
        let unknown = WindowsAddresses::open("no such interface").unwrap_err();
        assert!(unknown.to_string().contains("\"no such interface\"; name one that this machine has"), "{unknown}");
        let name = ["lo", "Loopback Pseudo-Interface 1"].into_iter().find(|name| WindowsAddresses::open(name).is_ok()).expect("a loopback");
        let interface = WindowsAddresses::open(name).unwrap();
        let local = IpAddr::from([127, 0, 0, 1]);
        let there = interface.list().unwrap();
        assert!(there.contains(&HostAddress { ip: local, ours: false }), "{there:?}");
        let ip = IpAddr::from([10, 96, 255, 1]);
        match interface.add(ip) {
            Ok(()) => {
                interface.add(ip).expect("that it is there is fine");
                assert!(interface.list().unwrap().contains(&HostAddress { ip, ours: true }));
                interface.delete(ip).unwrap();
                interface.delete(ip).expect("that it is gone is fine");
                assert_eq!(interface.list().unwrap(), there);
            }
            // Wine reads addresses and writes none.
            Err(error) => {
                assert!(error.source.to_string().contains("no CreateUnicastIpAddressEntry"), "{error}: {}", error.source);
                assert_eq!(error.to_string(), format!("cannot add {ip} to {name}"));
            }
        }
    }
}
