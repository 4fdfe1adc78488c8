//! A tunnel from plain HTTP to TLS, byte for byte. The clients of the tests read and write raw
//! bytes without TLS, while Shopify uses only TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::authority::Authority;

/// A running tunnel. Once dropped, it accepts no more connections.
#[derive(Debug)]
pub struct Tunnel {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Tunnel {
    /// Opens a tunnel to a server that has a certificate of `authority` for `name`.
    pub async fn to(server: SocketAddr, name: &str, authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_file(authority.certificate());
        roots.add(certificate.expect("read the authority")).expect("a certificate to trust");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from(name.to_owned()).expect("a host name");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind a tunnel");
        let address = listener.local_addr().expect("the tunnel's address");
        let accepting = tokio::spawn(accept(listener, server, connector, name));
        Self { address, accepting }
    }

    /// Address on which the tunnel accepts connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    server: SocketAddr,
    connector: TlsConnector,
    name: ServerName<'static>,
) {
    while let Ok((mut near, _)) = listener.accept().await {
        let (connector, name) = (connector.clone(), name.clone());
        tokio::spawn(async move {
            near.set_nodelay(true).ok();
            let Ok(far) = TcpStream::connect(server).await else { return };
            far.set_nodelay(true).ok();
            let Ok(mut far) = connector.connect(name, far).await else { return };
            // The two sides see how it ended.
            copy_bidirectional(&mut near, &mut far).await.ok();
        });
    }
}
