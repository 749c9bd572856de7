//! Routes through IP Helper. Our mark is the metric 0x4d together with the protocol "network
//! management", since Windows routes carry no free field.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

use ipnet::IpNet;
use windows_sys::Win32::Foundation::{ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceAliasToLuid, ConvertInterfaceLuidToIndex, CreateIpForwardEntry2, DeleteIpForwardEntry2, FreeMibTable, GetIfEntry,
    GetIpForwardTable2, GetIpInterfaceEntry, InitializeIpForwardEntry, MIB_IFROW, MIB_IPFORWARD_ROW2, MIB_IPFORWARD_TABLE2, MIB_IPINTERFACE_ROW,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6, AF_UNSPEC, MIB_IPPROTO_NETMGMT, SOCKADDR_INET};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::{s, w};

use super::{HostRoute, Routes, RoutesError, failed, refuse_foreign};

const OUR_METRIC: u32 = super::OUR_PROTOCOL as u32;

/// The routing table of this machine (default compartment).
#[derive(Debug, Default)]
pub struct WindowsRoutes;

impl Routes for WindowsRoutes {
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
        let mut table: *mut MIB_IPFORWARD_TABLE2 = ptr::null_mut();
        // SAFETY: `table` is a valid place for the pointer that the call returns.
        check(unsafe { GetIpForwardTable2(AF_UNSPEC, &mut table) }).map_err(failed("list routes", None))?;
        // SAFETY: on success the table holds NumEntries rows, valid until FreeMibTable.
        let rows = unsafe { std::slice::from_raw_parts((*table).Table.as_ptr(), (*table).NumEntries as usize) };
        let routes = rows.iter().filter_map(route_of).collect();
        // SAFETY: the table came from GetIpForwardTable2 and `rows` is not used again.
        unsafe { FreeMibTable(table.cast()) };
        Ok(routes)
    }

    fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let row = row_of(route);
        // SAFETY: `row` was initialised by InitializeIpForwardEntry and filled in.
        match unsafe { CreateIpForwardEntry2(&row) } {
            0 | ERROR_OBJECT_ALREADY_EXISTS => Ok(()),
            code => check(code).map_err(failed("add", Some(route))),
        }
    }

    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
        refuse_foreign(route)?;
        let row = row_of(route);
        // SAFETY: as in `add`.
        match unsafe { DeleteIpForwardEntry2(&row) } {
            0 | ERROR_NOT_FOUND => Ok(()),
            code => check(code).map_err(failed("delete", Some(route))),
        }
    }

    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let mut row = row_of(route);
        row.Metric = route.metric;
        // SAFETY: as in `add`.
        match unsafe { CreateIpForwardEntry2(&row) } {
            0 | ERROR_OBJECT_ALREADY_EXISTS => Ok(()),
            code => check(code).map_err(failed("restore", Some(route))),
        }
    }

    fn mtu(&self, interface: u32) -> Result<Option<u32>, RoutesError> {
        if !has_ip_interfaces() {
            return Ok(link_mtu(interface));
        }
        let mut row = MIB_IPINTERFACE_ROW { InterfaceIndex: interface, Family: AF_INET, ..Default::default() };
        // SAFETY: `row` is a valid structure that names one interface and family, and is filled by the call.
        match unsafe { GetIpInterfaceEntry(&mut row) } {
            0 => Ok(Some(row.NlMtu)),
            ERROR_FILE_NOT_FOUND | ERROR_NOT_FOUND => Ok(None),
            code => check(code).map(|()| None).map_err(failed("read the MTU of an interface", None)),
        }
    }

    fn interface(&self, name: &str) -> Result<Option<u32>, RoutesError> {
        let alias: Vec<u16> = name.encode_utf16().chain([0]).collect();
        let mut luid = Default::default();
        let mut index = 0;
        // SAFETY: `alias` ends with NUL and both results have room for what is written.
        let code = unsafe {
            match ConvertInterfaceAliasToLuid(alias.as_ptr(), &mut luid) {
                0 => ConvertInterfaceLuidToIndex(&luid, &mut index),
                code => code,
            }
        };
        match code {
            0 => Ok(Some(index)),
            ERROR_FILE_NOT_FOUND | ERROR_NOT_FOUND | 87 => Ok(None),
            code => check(code).map(|()| None).map_err(failed("find an interface", None)),
        }
    }
}

/// Wine's IP Helper has no `GetIpInterfaceEntry`: there the call would end this process.
fn has_ip_interfaces() -> bool {
    // SAFETY: both names end with NUL; a library that this program is linked to stays loaded.
    unsafe {
        let library = GetModuleHandleW(w!("iphlpapi.dll"));
        !library.is_null() && GetProcAddress(library, s!("GetIpInterfaceEntry")).is_some()
    }
}

/// The MTU of an interface's link, which is that of IP where nobody made it smaller.
fn link_mtu(interface: u32) -> Option<u32> {
    let mut row = MIB_IFROW { dwIndex: interface, ..Default::default() };
    // SAFETY: `row` is a valid structure that names one interface, and is filled by the call.
    (unsafe { GetIfEntry(&mut row) } == 0).then_some(row.dwMtu)
}

pub(crate) fn check(code: u32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code as i32)) }
}

fn row_of(route: &HostRoute) -> MIB_IPFORWARD_ROW2 {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: `row` is a valid structure for the call to fill with defaults.
    unsafe { InitializeIpForwardEntry(&mut row) };
    row.InterfaceIndex = route.oif;
    row.DestinationPrefix.Prefix = address_in(route.dst.network());
    row.DestinationPrefix.PrefixLength = route.dst.prefix_len();
    let unspecified = match route.dst {
        IpNet::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpNet::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    row.NextHop = address_in(route.via.unwrap_or(unspecified));
    row.Metric = OUR_METRIC;
    row.Protocol = MIB_IPPROTO_NETMGMT;
    row
}

pub(crate) fn address_in(address: IpAddr) -> SOCKADDR_INET {
    let mut out = SOCKADDR_INET::default();
    match address {
        IpAddr::V4(a) => {
            out.Ipv4.sin_family = AF_INET;
            out.Ipv4.sin_addr.S_un.S_addr = u32::from_ne_bytes(a.octets());
        }
        IpAddr::V6(a) => {
            out.Ipv6.sin6_family = AF_INET6;
            out.Ipv6.sin6_addr.u.Byte = a.octets();
        }
    }
    out
}

pub(crate) fn address_out(address: &SOCKADDR_INET) -> Option<IpAddr> {
    // SAFETY: every variant of the union starts with the family, which says which one it is.
    unsafe {
        match address.si_family {
            AF_INET => Some(IpAddr::V4(address.Ipv4.sin_addr.S_un.S_addr.to_ne_bytes().into())),
            AF_INET6 => Some(IpAddr::V6(address.Ipv6.sin6_addr.u.Byte.into())),
            _ => None,
        }
    }
}

fn route_of(row: &MIB_IPFORWARD_ROW2) -> Option<HostRoute> {
    let dst = address_out(&row.DestinationPrefix.Prefix)?;
    Some(HostRoute {
        dst: IpNet::new(dst, row.DestinationPrefix.PrefixLength).ok()?,
        via: address_out(&row.NextHop).filter(|a| !a.is_unspecified()),
        oif: row.InterfaceIndex,
        on_link: false,
        metric: row.Metric,
        ours: row.Protocol == MIB_IPPROTO_NETMGMT && row.Metric == OUR_METRIC,
    })
}
