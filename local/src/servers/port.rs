//! Free ports of 127.0.0.1 for private servers.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

use anyhow::bail;

/// Below 32768, where the kernel starts to hand out ports to outgoing connections.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// A port that nothing listens on now and that this process has not handed out before.
pub fn free_port() -> anyhow::Result<u16> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let given = given.get_or_insert_default();
    for _ in 0..1_000 {
        let port = rand::random_range(RANGE);
        if is_free(port) && given.insert(port) {
            return Ok(port);
        }
    }
    bail!("no free port of 127.0.0.1 in {RANGE:?}; stop some servers, then try again")
}

/// Whether nothing listens on the port.
#[must_use]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_handed_out_once_and_only_if_nothing_listens_on_it() {
        let taken = free_port().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        assert!(!is_free(taken));
        let more: HashSet<u16> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(more.len(), 100);
        assert!(!more.contains(&taken));
        assert!(more.iter().all(|port| RANGE.contains(port)));
        drop(listener);
    }
}
