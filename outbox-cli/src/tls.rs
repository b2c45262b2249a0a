//! TLS to PostgreSQL as libpq's `sslmode` and `sslrootcert` ask for it, by rustls.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::Failure;

/// How much is asked of the connection, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, whoever it is.
    Prefer,
    /// TLS, whoever the server is.
    Require,
    /// TLS with a certificate of an authority that is trusted, whatever name it has.
    VerifyCa,
    /// And the certificate has the host's name.
    VerifyFull,
}

impl SslMode {
    pub(crate) fn parse(word: &str) -> Result<Self, Failure> {
        Ok(match word {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            other => {
                return Err(Failure::usage(format!("sslmode={other} is not known"))
                    .advice("write disable, prefer, require, verify-ca or verify-full"));
            }
        })
    }

    /// With a root certificate, `require` verifies: so it is in libpq.
    fn effective(self, has_root: bool) -> Self {
        if self == Self::Require && has_root { Self::VerifyCa } else { self }
    }

    /// What tokio-postgres knows of it.
    pub(crate) fn transport(self) -> tokio_postgres::config::SslMode {
        match self {
            Self::Disable => tokio_postgres::config::SslMode::Disable,
            Self::Prefer => tokio_postgres::config::SslMode::Prefer,
            _ => tokio_postgres::config::SslMode::Require,
        }
    }
}

/// Makes TLS connections as asked.
pub(crate) fn connector(mode: SslMode, root: Option<&str>) -> Result<MakeRustlsConnect, Failure> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has all of TLS 1.2 and 1.3");
    let mode = mode.effective(root.is_some());
    let config = if mode < SslMode::VerifyCa {
        let verifier = Verifier { provider, authorities: None };
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    } else {
        let roots = Arc::new(roots(root)?);
        if mode == SslMode::VerifyFull {
            builder.with_root_certificates(roots)
        } else {
            let inner = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
            let inner = inner.build().map_err(|error| Failure::usage(error.to_string()))?;
            let verifier = Verifier { provider, authorities: Some(inner) };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

/// The authorities of the file, or the system's.
fn roots(file: Option<&str>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    match file.filter(|file| *file != "system") {
        Some(file) => {
            let unusable = |why: String| {
                Failure::usage(format!("sslrootcert {file} cannot be used: {why}"))
                    .advice("name a file with PEM certificates of authorities")
            };
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file)
                .map_err(|error| unusable(error.to_string()))?
                .collect();
            for certificate in certificates.map_err(|error| unusable(error.to_string()))? {
                roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
            }
        }
        None => {
            // Some of the system's may be unreadable: the others do.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(Failure::usage("no certificate authority is known to verify the server with")
            .advice("name a file of PEM certificates: ?sslrootcert=/path/to/ca.pem"));
    }
    Ok(roots)
}

/// Accepts any certificate, or one of these authorities with whatever name. The handshake is checked
/// all the same.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified = authorities.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            // The name is looked at last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
