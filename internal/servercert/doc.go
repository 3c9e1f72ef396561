// Package servercert has the certificates of this mail system's own TLS servers: the SMTP server
// and the web services. A [Keyring] reads them, and notices when their files change. They are in files
// of the administrator's (smtpd_tls_chain_files and so on), or else, with tls_acme, in a [Store],
// where the acme service keeps what it gets from a certification authority.
//
// # The files of a Store
//
// They are in the directory acme below data_directory. All have mode 0600 and belong to the
// owner of data_directory.
//
//	key.pem      the private key of the certificate, which stays over renewals
//	next.pem     the private key that is to follow it, while there is one
//	chain.pem    the key again and the certificate with its chain, for the servers
//	account.pem  the key of the account with the authority
//	state.json   what the service must remember: see State
//	request      is there while somebody waits for a renewal
//
// chain.pem has both, so that no server finds a key and a certificate that do not belong together.
// Files are replaced by rename after a sync.
//
// # Security
//
// data_directory belongs to the mail owner. Root reads and writes there with that user's rights
// (package statedir).
package servercert
